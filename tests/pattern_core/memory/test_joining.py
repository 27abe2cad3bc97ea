"""A block that two files have: no word is lost, each version keeps its author, and the same again changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.limits import MemoryLimits
from pattern_core.memory import checkpoint, joining
from pattern_core.memory.block import with_schema
from pattern_core.memory.document import TEXT
from pattern_core.memory.history import state_at
from pattern_core.memory.joining import are_related, join_block
from pattern_core.memory.schema import LogSchema
from pattern_db import template
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import HistoryKind
from pattern_db.migrate import migrations_of
from pattern_db.tables import block_checkpoints
from tests.pattern_core.memory.life import Life, create, splice
from tests.pattern_core.memory.rig import NOW, constellation

LATER = "2026-12-01T00:00:00.000Z"
ACTIONS = ("write", "write", "undo", "consolidate", "join")


def copied(connection: Connection) -> Connection:
    """A copy of a database in memory."""
    target = template.in_memory(migrations_of("constellation"), now=NOW)
    with target.backup("main", connection, "main") as copy:
        copy.step()
    return target


def consolidate(life: Life) -> None:
    stored, updates = block_checkpoints.get_checkpoint_and_updates(life.connection, life.block_id)
    if updates:
        checkpoint._merge(life.connection, stored, updates, NOW, MemoryLimits())


def join(here: Life, there: Life, peer: int) -> int:
    """Merge, and open the block again, as the next start does."""
    joined = join_block(here.connection, there.connection, here.block_id, {}, LATER)
    here.reopen(peer)
    return joined.versions


def two(text: str = "start ") -> tuple[Life, Life]:
    """A block and its fork."""
    connection = constellation()
    block = create(connection, text)
    return Life(connection, block), Life(copied(connection), block, peer=3)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=30))
def test_fork_edit_both_and_merge_loses_no_word(steps: list[tuple[bool, str, int]]) -> None:
    sides = two()
    written: dict[str, str] = {}
    for number, (first, action, where) in enumerate(steps):
        side, other = sides if first else sides[::-1]
        author = f"agent:{'ada' if first else 'bob'}"
        if action == "write":
            ends = [at + 1 for at, sign in enumerate(side.text) if sign == " "]
            side.edit(author, splice(ends[where % len(ends)], 0, f"w{number}- "))
            written[f"w{number}-"] = author
        elif action == "undo" and side.text.count("-") > other.text.count("-"):
            last = next((line for line in reversed(side.lines()) if line.kind is HistoryKind.EDIT), None)
            if last is not None and not last.is_undone and last.seq == side.version and last.changed_by == author:
                before = side.text.split()
                side.undo(author)
                for word in set(before) - set(side.text.split()):
                    del written[word]
        elif action == "consolidate":
            consolidate(side)
        elif action == "join":
            join(side, other, number + 10)
    here, there = sides
    join(here, there, 1_000)
    assert sorted(here.text.split()) == sorted(["start", *written])
    version, text = here.version, here.text
    assert join(here, there, 1_001) == 0
    assert (here.version, here.text) == (version, text)
    join(there, here, 1_002)
    assert there.text == here.text
    authors: dict[str, str] = {}
    for line in here.lines(-1):
        for word in set(state_at(here.connection, here.block_id, line.seq or 0).get(TEXT, "").split()) - authors.keys():
            authors[word] = line.changed_by
    assert {word: authors[word] for word in written} == written


def test_versions_keep_author_time_cause_and_can_be_undone() -> None:
    here, there = two()
    there.append("agent:bob", "one ")
    here.append("agent:ada", "two ")
    consolidate(here)
    joined = join_block(here.connection, there.connection, here.block_id, {"bob": "bob_2", "msg_1": "msg_7"}, LATER)
    assert (joined.label, joined.versions, joined.is_too_long) == ("mem_1", 1, False)
    here.reopen(9)
    line = here.lines()[-1]
    assert (line.kind, line.changed_by, line.cause) == (HistoryKind.MERGE, "agent:bob_2", {"message": "msg_7"})
    assert (line.timestamp, line.change_summary) == (NOW, "Edited")
    assert sorted(here.text.split()) == ["one", "start", "two"]
    here.undo("agent:bob_2")
    assert here.text.split() == ["start", "two"]


def test_versions_that_are_too_many_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "VERSIONS_MAX", 3)
    here, there = two()
    for number in range(6):
        there.append("agent:bob", f"{number} ")
    assert join(here, there, 9) == 3
    assert here.text == there.text


def test_a_text_may_become_longer_than_its_block_allows() -> None:
    here, there = two("")
    here.append("agent:ada", "a" * 3_000)
    there.append("agent:bob", "b" * 3_000)
    joined = join_block(here.connection, there.connection, here.block_id, {}, LATER)
    assert joined.is_too_long


def another_schema(there: Connection) -> None:
    metadata = to_json(with_schema({}, LogSchema()))
    there.execute("UPDATE memory_blocks SET metadata = ?", (metadata,)).fetchall()


def no_beginning(there: Connection) -> None:
    there.execute("DELETE FROM memory_block_segments").fetchall()


@pytest.mark.parametrize(
    ("change", "related"), [(lambda _there: None, True), (another_schema, False), (no_beginning, False)]
)
def test_what_is_related(change: Callable[[Connection], None], related: bool) -> None:
    here, there = two()
    there.append("agent:bob", "one ")
    consolidate(there)
    there.append("agent:bob", "two ")
    consolidate(there)
    change(there.connection)
    assert are_related(here.connection, there.connection, here.block_id) is related


def test_blocks_with_one_id_that_did_not_begin_as_one_are_not_related() -> None:
    here, other = constellation(), constellation()
    create(here, "same words")
    Life(other, create(other, ""), peer=7).append("agent:bob", "same words")
    assert not are_related(here, other, "mem_1")
    empty = constellation()
    create(empty, "")
    assert are_related(here, empty, "mem_1")
