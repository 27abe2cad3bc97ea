"""Undo, redo, rollback and merging through a running constellation: one path, one transaction, one event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from pattern_core.errors import Conflict, InvalidInput, PermissionDenied
from pattern_core.memory.block import BlockSettings, Edited, NewBlock
from pattern_core.memory.document import Keys
from pattern_core.memory.edits import AppendText, BlockEdit, ReplaceText, SetField, SetText, SetValue
from pattern_core.memory.history import versions
from pattern_core.memory.revisions import plan_merge, plan_revert
from pattern_db.columns import Json
from pattern_db.enums import HistoryKind, Permission
from pattern_db.tables import block_versions
from pattern_db.tables.memory_blocks import Attribution
from tests.pattern_core.memory.life import Life, add, put_field, splice_items
from tests.support import BY_USER, USER, Running, running

PROFILE = {"schema": {"Map": {"fields": [{"name": name, "field_type": "Text"} for name in ("name", "city")]}}}


@dataclass
class Desk:
    """A block `notes` of ada's, edited by her and by a person."""

    here: Running
    ada: str
    label: str = "notes"

    @property
    def by_ada(self) -> Attribution:
        return Attribution(author=f"agent:{self.ada}", cause={"turn": "turn_1"})

    async def edit(self, by: Attribution, edit: BlockEdit) -> None:
        await self.here.constellation.memory.edit(self.ada, self.label, edit, by=by)

    async def undo(self, by: Attribution, *, of: str | None = None) -> Edited:
        return await self.here.constellation.revisions.revert(self.ada, self.label, by, HistoryKind.UNDO, of=of)

    async def redo(self, by: Attribution) -> Edited:
        return await self.here.constellation.revisions.revert(self.ada, self.label, by, HistoryKind.REDO)

    async def value(self) -> Json:
        memory = self.here.constellation.memory
        return await memory.value_of(await memory.view(self.ada, self.label))

    async def content(self) -> str:
        return (await self.here.constellation.memory.view(self.ada, self.label)).content


@asynccontextmanager
async def desk(new: NewBlock | None = None) -> AsyncIterator[Desk]:
    async with running() as here:
        ada = await here.agent("ada")
        new = new or NewBlock(label="notes", content="one")
        await here.constellation.memory.create(ada.id, new, by=BY_USER)
        yield Desk(here, ada.id, new.label)


async def test_undo_takes_back_an_authors_own_edit_and_keeps_the_others() -> None:
    async with desk() as at:
        await at.edit(at.by_ada, AppendText(text=" two"))
        await at.edit(BY_USER, ReplaceText(old="one", new="ONE"))
        undone = await at.undo(at.by_ada)
        assert (undone.block.content, undone.undo_remaining, undone.redo_remaining) == ("ONE", 0, 1)
        redone = await at.redo(at.by_ada)
        assert (redone.block.content, redone.redo_remaining) == ("ONE two", 0)
        await at.undo(BY_USER, of=at.by_ada.author)  # a person may take back what the agent wrote
        assert await at.content() == "ONE"
        kinds = [one.kind for one in await at.here.database.read(versions, undone.block.id, limit=10)]
        undo, redo, edit = HistoryKind.UNDO, HistoryKind.REDO, HistoryKind.EDIT
        assert kinds == [undo, redo, undo, edit, edit, HistoryKind.CREATE]
        assert [event.name for event in await at.here.events()][-1] == "memory.changed"
        found = await at.here.database.read(
            lambda c: c.execute("SELECT count(*) FROM memory_fts WHERE memory_fts MATCH 'two'").fetchall()
        )
        assert found == [(0,)]  # search knows it too


async def test_rollback_is_a_new_version() -> None:
    async with desk() as at:
        revisions = at.here.constellation.revisions
        await at.edit(at.by_ada, SetText(text="two"))
        await at.edit(at.by_ada, SetText(text="three"))
        back = await revisions.rollback(at.ada, "notes", BY_USER, version=1)
        assert (back.block.content, back.block.version) == ("two", 3)
        with pytest.raises(InvalidInput, match="already"):
            await revisions.rollback(at.ada, "notes", BY_USER, version=1)
        assert (await at.undo(BY_USER)).block.content == "three"


async def test_what_was_written_against_an_older_version_is_merged() -> None:
    async with desk(NewBlock(label="notes", content="milk\nbread\neggs\n")) as at:
        revisions = at.here.constellation.revisions
        await at.edit(at.by_ada, ReplaceText(old="eggs", new="six eggs"))
        merged = await revisions.merge(at.ada, "notes", BY_USER, SetText(text="oat milk\nbread\neggs\n"), base=0)
        assert merged.block.content == "oat milk\nbread\nsix eggs\n"
        [line, *_] = await at.here.database.read(versions, merged.block.id, limit=1)
        assert (line.kind, line.author) == (HistoryKind.MERGE, USER)
        same = await revisions.merge(at.ada, "notes", BY_USER, SetText(text=merged.block.content), base=2)
        assert (same.note, same.block.version) == ("Nothing changed", 2)
        with pytest.raises(Conflict, match="versions are 0 to 2"):
            await revisions.merge(at.ada, "notes", BY_USER, SetText(text="x"), base=7)


async def test_fields_merge_one_by_one() -> None:
    async with desk(NewBlock(label="who", metadata=PROFILE, value={"name": "Ada", "city": "Rome"})) as at:
        await at.edit(at.by_ada, SetField(field="city", value="Oslo"))
        await at.here.constellation.revisions.merge(
            at.ada, "who", BY_USER, SetValue(value={"name": "Ada L.", "city": "Rome"}), base=0
        )
        assert await at.value() == {"name": "Ada L.", "city": "Oslo"}
        undone = await at.undo(at.by_ada)
        assert await at.value() == {"name": "Ada L.", "city": "Rome"}
        assert undone.undo_remaining == 0


async def test_permission_and_limit_hold_here_too() -> None:
    async with desk() as at:
        await at.edit(at.by_ada, AppendText(text=" and more"))
        await at.edit(at.by_ada, SetText(text="x"))
        memory = at.here.constellation.memory
        await memory.set_metadata(at.ada, "notes", BlockSettings(permission=Permission.APPEND), by=BY_USER)
        with pytest.raises(PermissionDenied):
            await at.undo(at.by_ada)
        await memory.set_metadata(at.ada, "notes", BlockSettings(char_limit=5), by=BY_USER)
        with pytest.raises(InvalidInput, match="at most 5 characters"):
            await at.undo(BY_USER, of=at.by_ada.author)
        assert await at.content() == "x"


A, B, ME = "agent:agt_ada", "agent:agt_bob", "user:usr_1"


def test_undo_and_redo_count_what_remains(life: Life) -> None:
    life.append(A, " first")
    life.append(A, " second")
    plan = life.undo(A)
    assert (life.text, plan.undo_remaining, plan.redo_remaining) == ("initial first", 1, 1)
    assert (plan.kind, plan.reverts, plan.note) == (HistoryKind.UNDO, 2, "Undid version 2 (Edited)")
    plan = life.redo(A)
    assert (life.text, plan.undo_remaining, plan.redo_remaining) == ("initial first second", 2, 0)
    with pytest.raises(InvalidInput, match="nothing to redo"):
        life.redo(A)
    life.undo(A)
    life.undo(A)
    assert life.text == "initial"
    with pytest.raises(InvalidInput, match="nothing to undo"):
        life.undo(A)


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


def test_an_edit_of_which_nothing_is_left_is_passed_over(life: Life) -> None:
    life.append(A, " one")
    life.append(A, " two")
    life.put(B, "initial one")
    plan = life.undo(A)
    assert (life.text, plan.reverts, plan.undo_remaining) == ("initial", 1, 0)
    life.redo(A)
    assert life.text == "initial one"


def test_another_author_may_take_an_authors_edit_back(life: Life) -> None:
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


def test_a_field_that_another_author_set_later_stays_theirs(life: Life) -> None:
    life.edit(A, {"fields": Keys({"x": (None, 1), "y": (None, 1)})})
    life.edit(B, put_field("x", 2))
    life.edit(B, add(5))
    life.edit(A, add(2))
    life.undo(A)
    assert life.document.state()["counter_n"] == 5
    life.undo(A)
    assert life.document.state()["fields"] == {"x": 2}


def test_items_go_by_what_they_are_and_not_by_where(life: Life) -> None:
    life.edit(A, splice_items(0, 0, ["a", True, {"k": 1}]))
    life.edit(B, splice_items(1, 1, [1]))
    life.edit(B, splice_items(0, 0, ["b"]))
    life.undo(A)
    assert life.document.state()["items"] == ["b", 1]


def test_nothing_is_carried_past_a_version_that_is_not_known(life: Life) -> None:
    for number in range(1, 5):
        life.append(A, f" {number}")
    rows = life.lines()
    assert plan_revert(rows, A, HistoryKind.UNDO).undo_remaining == 3
    assert plan_revert([row for row in rows if row.seq != 2], A, HistoryKind.UNDO).undo_remaining == 1  # a gap
    unknown = [replace(row, change=None) if row.seq == 2 else row for row in rows]
    assert plan_revert(unknown, A, HistoryKind.UNDO).undo_remaining == 1


def test_merging_with_what_is_not_known_is_a_conflict(life: Life) -> None:
    life.append(A, "x")
    rows = [replace(row, change=None) for row in life.lines(0)]
    with pytest.raises(Conflict, match="too old"):
        plan_merge(rows, life.document.state(), {}, base=0, note="")
