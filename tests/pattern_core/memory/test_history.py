from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import Conflict, NotFound
from pattern_core.memory.changes import change_to
from pattern_core.memory.document import Change, Splice, Spliced, State
from pattern_core.memory.history import blame, content_at, diff, line_versions, state_at, versions
from pattern_core.memory.revisions import UNDO_REACH, lines_since
from pattern_db.database import Database
from pattern_db.enums import HistoryKind
from tests.pattern_core.memory.life import Life, create, put_field

A, B = "agent:agt_ada", "agent:agt_bob"


@pytest.fixture
async def life(database: Database) -> Life:
    return await database.read(lambda connection: Life(connection, create(connection, "one\ntwo\n")))


async def test_versions_newest_first_page_by_page(database: Database, life: Life) -> None:
    life.append(A, "three\n")
    life.undo(A, by=B)
    await life.consolidate(database)
    newest = await database.read(versions, life.block_id, limit=2)
    assert [(one.version, one.kind, one.author, one.undone) for one in newest] == [
        (2, HistoryKind.UNDO, B, False),
        (1, HistoryKind.EDIT, A, True),
    ]
    assert newest[1].cause == {"message": "msg_1"}
    [first] = await database.read(versions, life.block_id, limit=5, before=1)
    assert (first.version, first.kind, first.author, first.summary) == (0, HistoryKind.CREATE, "user:maker", "Created")
    assert await database.read(versions, "mem_none", limit=5) == []


async def test_there_is_nothing_before_the_first_version_or_after_the_last(database: Database, life: Life) -> None:
    life.append(A, "three\n")
    for version in (-1, 2):
        with pytest.raises(NotFound, match="has no version"):
            await database.read(state_at, life.block_id, version)


@pytest.mark.parametrize("is_merged", [False, True])
async def test_versions_whose_changes_were_not_recorded_come_from_the_documents_history(
    database: Database, life: Life, is_merged: bool
) -> None:
    life.append(A, "three\n")
    life.append(A, "four\n")
    if is_merged:
        await life.consolidate(database)
        life.reopen(7)
    life.connection.execute("UPDATE memory_block_history SET change = NULL")
    life.append(B, "five\n")
    assert (await database.read(state_at, life.block_id, 1))["content"] == "one\ntwo\nthree\n"
    assert (await database.read(state_at, life.block_id, 2))["content"] == "one\ntwo\nthree\nfour\n"
    blamed = await database.read(blame, life.block_id)
    assert [(one.version, one.author) for one in blamed] == [(2, ""), (2, ""), (2, ""), (2, ""), (3, B)]
    life.connection.execute("DELETE FROM memory_block_history WHERE seq = 1")
    with pytest.raises(NotFound, match="no longer known"):
        await database.read(state_at, life.block_id, 1)


async def test_versions_are_rendered_by_the_schema_of_the_block(database: Database, life: Life) -> None:
    schema = '{"schema":{"Map":{"fields":[{"name":"name"},{"name":"age","field_type":"Number"}]}}}'
    life.connection.execute("UPDATE memory_blocks SET metadata = ? WHERE id = ?", (schema, life.block_id))
    life.edit(A, put_field("name", "Ada"))
    life.edit(B, put_field("age", 36))
    life.edit(A, put_field("age", 37))
    assert [(one.text, one.version, one.author) for one in await database.read(blame, life.block_id)] == [
        ("name: Ada", 1, A),
        ("age: 37", 3, A),
    ]
    assert "-age: 36\n+age: 37\n" in await database.read(diff, life.block_id, 2, 3)
    then = "name: Ada\nage: 36", {"name": "Ada", "age": 36}
    assert await database.read(content_at, life.block_id, 2) == then


async def test_lines_for_undo_must_be_all_that_there_are(database: Database, life: Life) -> None:
    for number in range(3):
        life.append(A, str(number))
    assert [row.seq for row in await database.read(lines_since, life.block_id, -1, 3)] == [0, 1, 2, 3]
    assert [row.seq for row in await database.read(lines_since, life.block_id, 1, 3)] == [2, 3]
    assert await database.read(lines_since, life.block_id, 3, 3) == []
    with pytest.raises(Conflict, match="a separate call"):
        await database.read(lines_since, life.block_id, -1, 4)
    with pytest.raises(Conflict, match="versions back"):
        await database.read(lines_since, life.block_id, 3 - UNDO_REACH - 1, 3)


def text_of(state: State) -> str:
    return str(state.get("content", ""))


@given(st.lists(st.text(alphabet="ab\n🌍", max_size=12), min_size=1, max_size=8))
def test_a_line_is_there_since_the_version_that_made_it(texts: list[str]) -> None:
    states: list[State] = [{"content": text} if text else {} for text in texts]
    changes = [change_to(before, after) for before, after in pairwise(states)]
    found = line_versions(states[-1], list(enumerate(changes, 1))[::-1], len(changes), text_of)
    for line, (version, is_certain) in zip(texts[-1].splitlines(), found, strict=True):
        assert is_certain
        assert all(line in text.splitlines() for text in texts[version:])
        if texts[-1].splitlines().count(line) == 1 and version:  # else any of those that are the same
            before = texts[version - 1].splitlines()
            assert line not in before or before != texts[version].splitlines()


def test_a_line_of_which_something_went_is_another_line() -> None:
    texts = ["one\ntwo and more\n", "one\ntwo\n"]
    change = change_to({"content": texts[0]}, {"content": texts[1]})
    assert line_versions({"content": texts[1]}, [(1, change)], 1, text_of) == [(0, True), (1, True)]


def test_only_as_much_of_the_past_is_read_as_is_needed() -> None:
    read: list[int] = []

    def past() -> Iterator[tuple[int, Change]]:
        for seq in (9, 8, 7):
            read.append(seq)
            yield seq, {"content": Spliced(True, (Splice(0, "old", "new\n"),))}

    assert line_versions({"content": "new\n"}, past(), 9, text_of) == [(9, True)]
    assert read == [9]


def test_what_is_older_than_the_known_past_is_uncertain() -> None:
    change: Change = {"content": Spliced(True, (Splice(4, "", "two\n"),))}
    assert line_versions({"content": "one\ntwo\n"}, [(5, change)], 5, text_of) == [(4, False), (5, True)]
    assert line_versions({"content": "one\n"}, [], 7, text_of) == [(7, False)]
    assert line_versions({"content": "one\n"}, [], 0, text_of) == [(0, True)]
    assert line_versions({}, [], 3, text_of) == []
