from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.memory.document import UpdateText, state_of
from pattern_core.memory.revisions import plan_merge, plan_revert, plan_rollback
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_versions
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.pen import Pen
from tests.pattern_core.memory.rig import constellation

A, B, ME = "agent:agt_ada", "agent:agt_bob", "user:usr_1"


@pytest.fixture
def life() -> Iterator[Life]:
    connection = constellation()
    yield Life(connection, create(connection, "initial"))
    connection.close()


def test_undo_and_redo_count_what_remains(life: Life) -> None:
    life.append(A, " first")
    life.append(A, " second")
    plan = life.undo(A)
    assert (life.text, plan.undo_remaining, plan.redo_remaining) == ("initial first", 1, 1)
    assert (plan.kind, plan.reverts, plan.note) == (HistoryKind.UNDO, 2, "Undid version 2 (Edited)")
    plan = life.redo(A)
    assert (life.text, plan.undo_remaining, plan.redo_remaining) == ("initial first second", 2, 0)
    life.undo(A)
    life.undo(A)
    assert life.text == "initial"
    with pytest.raises(InvalidInput, match="nothing to undo"):
        life.undo(A)
    life.redo(A)
    life.redo(A)
    assert life.text == "initial first second"
    with pytest.raises(InvalidInput, match="nothing to redo"):
        life.redo(A)


def test_the_beginning_is_not_an_edit(life: Life) -> None:
    with pytest.raises(InvalidInput, match="nothing to undo"):
        life.undo("user:maker")


def test_a_new_edit_ends_redo_for_its_author_only(life: Life) -> None:
    life.append(A, " a")
    life.append(B, " b")
    life.undo(A)
    life.undo(B)
    life.append(B, " B")
    with pytest.raises(InvalidInput, match="nothing to redo"):
        life.redo(B)
    life.redo(A)
    assert sorted(life.text.split()) == ["B", "a", "initial"]


def test_others_edits_stay(life: Life) -> None:
    life.put(A, "one two three")
    life.put(B, "one two! three four")
    life.put(A, "ONE two! three four")
    life.append(B, " five")
    life.undo(A)
    assert life.text == "one two! three four five"
    life.undo(A)  # what it wrote goes, what it replaced returns; what others wrote in between stays
    assert "initial" in life.text
    assert "!" in life.text
    assert " four five" in life.text
    assert "three" not in life.text


def test_text_that_came_back_goes_again_with_the_edit_that_wrote_it(life: Life) -> None:
    life.put(A, "initial foo bar")
    life.put(A, "initial foo baz")
    life.undo(A)
    assert life.text == "initial foo bar"
    life.undo(A)
    assert life.text == "initial"
    life.redo(A)
    life.redo(A)
    assert life.text == "initial foo baz"
    for _ in range(3):
        life.undo(A)
        life.append(B, ".")
        life.redo(A)
    life.undo(A)
    life.undo(A)
    assert life.text == "initial..."


def test_others_may_edit_within_text_that_came_back(life: Life) -> None:
    life.put(A, "initial foo")
    life.put(A, "initial barbarbar")
    life.undo(A)
    life.edit(B, lambda document: document.splice(10, 0, "!"))
    life.append(B, " and more")
    life.undo(A)
    assert life.text == "initial! and more"
    life.redo(A)
    life.redo(A)
    assert "barbarbar" in life.text
    assert "!" in life.text
    assert "and more" in life.text


def test_an_edit_of_which_nothing_is_left_is_passed_over(life: Life) -> None:
    life.append(A, " one")
    life.append(A, " two")
    life.put(B, "initial one")
    plan = life.undo(A)
    assert (life.text, plan.reverts, plan.undo_remaining) == ("initial", 1, 0)
    life.redo(A)
    assert life.text == "initial one"


def test_somebody_else_may_take_an_authors_edit_back(life: Life) -> None:
    life.append(A, " a")
    life.append(ME, " me")
    plan = life.undo(A, by=ME)
    assert (life.text, plan.stack) == ("initial me", A)
    line = block_versions.get(life.connection, life.block_id, 3)
    assert line is not None
    assert (line.changed_by, line.stack, line.reverts) == (ME, A, 1)
    life.undo(ME)
    assert life.text == "initial"
    life.redo(A)
    assert life.text == "initial a"


def test_stacks_survive_restarts_and_lines_say_what_is_undone(life: Life) -> None:
    life.append(A, " a")
    life.undo(A)
    life.reopen(9)
    assert [line.is_undone for line in life.lines()] == [False, True, False]
    life.redo(A)
    assert [line.is_undone for line in life.lines()] == [False, False, True, False]
    life.reopen(10)
    life.undo(A)
    assert life.text == "initial"


def test_a_field_that_somebody_else_set_later_stays_theirs(life: Life) -> None:
    def both(document: Pen) -> None:
        document.put_field("fields", "x", 1)
        document.put_field("fields", "y", 1)

    life.edit(A, both)
    life.edit(B, lambda document: document.put_field("fields", "x", 2))
    life.edit(B, lambda document: document.add("counter_n", 5))
    life.edit(A, lambda document: document.add("counter_n", 2))
    life.undo(A)
    assert state_of(life.document)["counter_n"] == 5
    life.undo(A)
    assert state_of(life.document)["fields"] == {"x": 2}


def test_items_go_by_what_they_are_and_not_by_where(life: Life) -> None:
    life.edit(A, lambda document: document.splice_items("items", 0, 0, ["a", True, {"k": 1}]))
    life.edit(B, lambda document: document.splice_items("items", 1, 1, [1]))
    life.edit(B, lambda document: document.splice_items("items", 0, 0, ["b"]))
    life.undo(A)
    assert state_of(life.document)["items"] == ["b", 1]


def test_undo_ends_where_changes_are_not_known(life: Life) -> None:
    life.append(A, " old")
    life.append(A, " new")
    rows = life.lines()
    rows[1] = replace(rows[1], change=None)
    assert plan_revert(rows, A, HistoryKind.UNDO).reverts == 2
    assert plan_revert([row for row in life.lines() if row.seq != 1], A, HistoryKind.UNDO).reverts == 2
    rows[2] = replace(rows[2], change=None)
    with pytest.raises(InvalidInput, match="nothing to undo"):
        plan_revert(rows, A, HistoryKind.UNDO)


def test_nothing_is_carried_past_a_version_that_is_not_known(life: Life) -> None:
    for number in range(1, 5):
        life.append(A, f" {number}")
    rows = life.lines()
    assert plan_revert(rows, A, HistoryKind.UNDO).undo_remaining == 3
    assert plan_revert([row for row in rows if row.seq != 2], A, HistoryKind.UNDO).undo_remaining == 1  # a gap
    unknown = [replace(row, change=None) if row.seq == 2 else row for row in rows]
    assert plan_revert(unknown, A, HistoryKind.UNDO).undo_remaining == 1


def test_rollback_is_a_new_version(life: Life) -> None:
    life.edit(A, lambda document: document.put_field("fields", "x", 1))
    then = state_of(life.document)
    life.put(B, "something else")
    life.edit(A, lambda document: document.put_field("fields", "x", 2))
    life.rollback(ME, then, 1)
    assert (state_of(life.document), life.version) == (then, 4)
    with pytest.raises(InvalidInput, match="already"):
        plan_rollback(then, then, 1)
    life.undo(ME)
    assert life.text == "something else"


def test_what_was_written_against_an_older_version_is_merged(life: Life) -> None:
    life.put(A, "milk\nbread\ntea\n")
    life.append(B, "salt\n")
    life.put(A, "oat milk\nbread\ntea\nsalt\n")
    life.merge(ME, 1, [UpdateText(text="milk\nbread\ngreen tea\n")])
    assert life.text == "oat milk\nbread\ngreen tea\nsalt\n"
    assert life.lines()[-1].kind is HistoryKind.MERGE
    life.undo(A)
    assert life.text == "milk\nbread\ngreen tea\nsalt\n"


def test_merging_with_what_is_not_known_is_a_conflict(life: Life) -> None:
    life.append(A, "x")
    rows = [replace(row, change=None) for row in life.lines(0)]
    with pytest.raises(Conflict, match="too old"):
        plan_merge(rows, state_of(life.document), [], base=0, note="")
