"""One constellation's rows join another's: what is in the way, what changes, and that a refusal leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pattern_db import backup, template
from pattern_db.connection import Connection, fetch_all, open_connection
from pattern_db.enums import BlockType, Role
from pattern_db.errors import BackupInvalid, IOFailed, RowConflict
from pattern_db.merging import Merged, Policy, merge, merging
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, archival, groups, imports, memory_blocks, messages
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.groups import GroupRow, Member
from pattern_db.tables.imports import ArchiveImport
from pattern_db.tables.memory_blocks import BlockRow
from pattern_db.tables.messages import MessageRow
from pattern_db.testing.disks import FaultyDisk, Op

NOW = "2026-02-03T04:05:06.007Z"
AT = 100_000_000_000_000_000


def an_id(prefix: str, number: int) -> str:
    return f"{prefix}_{number:026}"


def position(number: int) -> str:
    return f"{AT + number:019}"


def add_agent(connection: Connection, number: int, name: str, said: Sequence[str] = ()) -> str:
    """An agent with one block, one entry, and messages at the positions from `AT` on."""
    agent = an_id("agent", number)
    agents.create(connection, AgentRow(agent, name, "p", "m", "", NOW, NOW))
    block = BlockRow(
        an_id("mem", number), agent, "human", "", BlockType.CORE, NOW, NOW, content_preview=f"{name} knows"
    )
    memory_blocks.create(connection, block)
    connection.execute(
        "INSERT INTO memory_block_history (block_id, seq, version_frontiers, changed_by, timestamp)"
        " VALUES (?, 0, '[]', ?, ?)",
        (block.id, f"agent:{agent}", NOW),
    )
    entry = ArchivalRow(an_id("arch", number), agent, "an entry", NOW, {"block": block.id})
    archival.insert(connection, entry)
    rows = [
        MessageRow(f"msg_{position(at)}", agent, position(at), Role.USER, NOW, words, batch_id=position(0))
        for at, words in enumerate(said)
    ]
    messages.append(connection, rows)
    return agent


def database(path: Path, *filled: Any) -> Path:
    template.create(path, migrations_of("constellation"), now=NOW)
    with closing(open_connection(path)) as connection:
        for number, name, said in filled:
            add_agent(connection, number, name, said)
    return path


def joined(
    target: Path,
    source: Path,
    policy: Policy = "refuse",
    *,
    is_final: bool = True,
    related: Callable[[str], bool] = lambda _block: False,
) -> Merged:
    numbers = count(500)
    with merging(target, source) as connection:
        made = merge(connection, policy, lambda prefix: an_id(prefix, next(numbers)), agents_max=9, are_related=related)
        if is_final:
            connection.execute("COMMIT").fetchall()
    with closing(open_connection(target)) as connection:
        assert backup.check_integrity(connection) == []
    return made


def rows(path: Path, sql: str) -> list[Any]:
    with closing(open_connection(path)) as connection:
        return fetch_all(connection, sql)


def digest(path: Path) -> str:
    with closing(open_connection(path)) as connection:
        return backup.content_digest(connection)


def test_what_is_not_in_the_way_arrives_as_it_is(tmp_path: Path) -> None:
    target = database(tmp_path / "t.db", (1, "ada", ["hello"]))
    source = database(tmp_path / "s.db", (2, "ben", []))
    made = joined(target, source)
    assert made.owners == [an_id("agent", 2)]
    assert (made.present, made.decisions) == ({}, [])
    assert made.added == {"agents": 1, "archival_entries": 1, "memory_blocks": 1, "memory_block_history": 1}
    found = rows(target, "SELECT id, changed_by FROM memory_block_history ORDER BY id")
    assert [by for _, by in found] == [f"agent:{an_id('agent', 1)}", f"agent:{an_id('agent', 2)}"]
    assert rows(target, "SELECT count(*) FROM memory_fts WHERE memory_fts MATCH 'ben'") == [(1,)]


def test_names_and_ids_in_use_are_refused_with_a_list_and_nothing_is_stored(tmp_path: Path) -> None:
    target = database(tmp_path / "t.db", (1, "ada", ["hello"]), (2, "ben", []))
    source = database(tmp_path / "s.db", (3, "ada", []), (2, "other", []))
    before = digest(target)
    with pytest.raises(RowConflict, match=r"agent 'other', agent 'ada'.*rename.*merge"):
        joined(target, source)
    assert digest(target) == before


def test_a_disk_that_fails_behind_the_commit_is_named(tmp_path: Path) -> None:
    disk = FaultyDisk(is_default=True)
    try:
        target, source = database(tmp_path / "t.db", (1, "ada", [])), database(tmp_path / "s.db")
        with pytest.raises(IOFailed), merging(target, source) as connection:
            add_agent(connection, 2, "ben")
            connection.execute("COMMIT").fetchall()
            disk.fail(Op.WRITE)  # of the log into the file, when the connection is closed
        assert disk.failed[Op.WRITE] == 1
        assert rows(target, "SELECT name FROM agents ORDER BY name") == [("ada",), ("ben",)]
    finally:
        disk.unregister()


def test_renamed_copies_have_ids_positions_and_references_of_their_own(tmp_path: Path) -> None:
    said = ["one", "two", "three"]
    target = database(tmp_path / "t.db", (1, "ada", said), (4, "ada-2", []))
    source = database(tmp_path / "s.db", (1, "ada", said))
    made = joined(target, source, "rename")
    assert made.decisions == [{"kind": "agent", "name": "ada", "decision": "renamed", "to": "ada-3"}]
    ((new,),) = rows(target, "SELECT id FROM agents WHERE name = 'ada-3'")
    assert made.owners == [new]
    assert rows(target, f"SELECT content, position FROM messages WHERE agent_id = '{new}' ORDER BY position") == [
        (words, position(number)) for number, words in enumerate(said, 3)
    ]
    assert rows(target, f"SELECT DISTINCT batch_id FROM messages WHERE agent_id = '{new}'") == [(position(3),)]
    ((block, by),) = rows(
        target,
        "SELECT block_id, changed_by FROM memory_block_history AS h JOIN memory_blocks AS b ON b.id = block_id"
        f" WHERE agent_id = '{new}'",
    )
    assert by == f"agent:{new}"
    assert rows(target, f"SELECT metadata ->> '$.block' FROM archival_entries WHERE agent_id = '{new}'") == [(block,)]
    assert made.present == {}


def test_messages_keep_their_order_when_some_positions_are_taken(tmp_path: Path) -> None:
    target = database(tmp_path / "t.db", (1, "ada", ["taken"]))
    source = database(tmp_path / "s.db", (2, "ben", ["a", "b", "c"]), (3, "cleo", []))
    with closing(open_connection(source)) as connection:
        connection.execute("UPDATE messages SET position = ?1, id = 'msg_' || ?1 WHERE content = 'c'", (position(9),))
        late = [MessageRow(f"msg_{position(2)}", an_id("agent", 3), position(2), Role.USER, NOW, "cleo's")]
        messages.append(connection, late)
    joined(target, source)
    found = rows(target, "SELECT content FROM messages WHERE content <> 'taken' ORDER BY agent_id, position")
    assert [words for (words,) in found] == ["a", "b", "c", "cleo's"]
    assert rows(target, f"SELECT content FROM messages WHERE position = '{position(9)}'") == [("c",)]
    assert rows(target, "SELECT count(DISTINCT position), count(*) FROM messages") == [(5, 5)]
    assert rows(target, "SELECT count(*) FROM messages WHERE id <> 'msg_' || position") == [(0,)]


def test_merging_adds_what_is_new_and_repeating_it_adds_nothing(tmp_path: Path) -> None:
    target = database(tmp_path / "t.db", (1, "ada", ["one", "two"]))
    source = database(tmp_path / "s.db", (1, "ada", ["one", "another", "three"]))
    with closing(open_connection(source)) as connection:
        connection.execute("UPDATE memory_blocks SET content_preview = 'changed there'")
    made = joined(target, source, "merge")
    assert made.present == {"agents": 1, "archival_entries": 1, "messages": 1}
    found = [words for (words,) in rows(target, "SELECT content FROM messages ORDER BY position")]
    assert sorted(found) == ["another", "one", "three", "two"]
    assert found.index("another") < found.index("three")
    blocks = rows(target, "SELECT label, content_preview FROM memory_blocks ORDER BY label")
    assert blocks == [("human", "ada knows"), ("human-2", "changed there")]
    assert {"kind": "memory block", "name": "human", "decision": "renamed", "to": "human-2"} in made.decisions


def test_merging_joins_another_agent_of_the_same_name_and_its_groups(tmp_path: Path) -> None:
    target = database(tmp_path / "t.db", (1, "ada", []))
    source = database(tmp_path / "s.db", (7, "ada", ["hello"]))
    for path, number, agent in ((target, 1, 1), (source, 2, 7)):
        with closing(open_connection(path)) as connection:
            groups.create(connection, GroupRow(an_id("group", number), "team", "dynamic", NOW, NOW))
            groups.replace_members(connection, an_id("group", number), [Member(an_id("agent", agent), "ada")], NOW)
    made = joined(target, source, "merge")
    assert made.owners == [an_id("agent", 1), an_id("group", 1)]
    assert rows(target, "SELECT group_id, agent_id FROM group_members") == [(an_id("group", 1), an_id("agent", 1))]
    assert rows(target, "SELECT agent_id, content FROM messages") == [(an_id("agent", 1), "hello")]
    assert made.present["group_members"] == 1


def test_blocks_of_the_constellation_are_refused_renamed_or_the_same(tmp_path: Path) -> None:
    target, source = database(tmp_path / "t.db"), database(tmp_path / "s.db")
    for path, number, rules in ((target, 1, "be kind"), (source, 2, "be brief")):
        with closing(open_connection(path)) as connection:
            for label, words in (("rules", rules), ("same", "equal")):
                row = BlockRow(
                    an_id("mem", number * 10 + len(label)), "_constellation_", label, "", BlockType.CORE, NOW, NOW,
                    content_preview=words,
                )  # fmt: skip
                memory_blocks.create(connection, row)
                connection.execute(
                    "INSERT INTO memory_block_checkpoints (block_id, created_at, snapshot) VALUES (?, ?, x'00')",
                    (row.id, NOW),
                )
    with pytest.raises(RowConflict, match="memory block 'rules'"):
        joined(target, source)
    made = joined(target, source, "rename")
    assert made.present == {"memory_blocks": 1, "memory_block_checkpoints": 1}
    assert rows(target, "SELECT count(*) FROM memory_block_checkpoints") == [(3,)]
    found = rows(target, "SELECT label FROM memory_blocks ORDER BY label")
    assert [label for (label,) in found] == ["rules", "rules-2", "same"]


def test_too_many_agents_and_missing_rows_are_refused(tmp_path: Path) -> None:
    target = database(tmp_path / "t.db", *((number, f"a{number}", []) for number in range(1, 9)))
    source = database(tmp_path / "s.db", (20, "b", []), (21, "c", []))
    with pytest.raises(RowConflict, match="at most 9 agents"):
        joined(target, source)
    with closing(open_connection(source)) as connection:
        connection.execute("PRAGMA foreign_keys = 0").fetchall()
        connection.execute("DELETE FROM agents WHERE name = 'c'")
        connection.execute("UPDATE archival_entries SET superseded_by = 'gone' WHERE id = ?", (an_id("arch", 20),))
    with pytest.raises(BackupInvalid, match="missing row of archival_entries"):
        joined(target, source)


def test_an_import_is_complete_as_long_as_its_agents_are_there(tmp_path: Path) -> None:
    path = database(tmp_path / "t.db", (1, "ada", []))
    with closing(open_connection(path)) as connection:
        for number, root in enumerate(("r", "r", "other")):
            log = {"root": root, "owners": [an_id("agent", 1)], "decisions": []}
            imports.add(connection, ArchiveImport(f"import_{number}", NOW, "a.car", 4, 0, 0, log))
        found = imports.complete(connection, "r")
        assert found is not None
        assert (found.id, found.audit_log["root"]) == ("import_1", "r")
        assert [row.id for row in imports.page(connection, 2, before="import_2")] == ["import_1", "import_0"]
        agents.delete(connection, an_id("agent", 1))
        assert imports.complete(connection, "r") is None
        assert json.loads(connection.execute("SELECT audit_log FROM migration_audit LIMIT 1").get)["root"] == "r"


@pytest.mark.parametrize(("policy", "is_related"), [("merge", True), ("merge", False), ("rename", True)])
def test_a_block_of_both_is_left_to_the_caller(tmp_path: Path, policy: Policy, is_related: bool) -> None:
    target = database(tmp_path / "a.db", (1, "ada", ["Hello"]))
    source = database(tmp_path / "b.db", (1, "ada", ["Hello"]))
    with closing(open_connection(source)) as connection:
        connection.execute("UPDATE memory_blocks SET content_preview = 'ada knows more'").fetchall()
    made = joined(target, source, policy, related=lambda _block: is_related)
    is_left = policy == "merge" and is_related
    assert made.blocks == ([an_id("mem", 1)] if is_left else [])
    assert made.added.get("memory_blocks", 0) == (0 if is_left else 1)
    assert bool(made.ids) is not is_left
