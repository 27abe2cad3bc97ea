"""Which rows of a constellation travel: every table says so, and what is cut off is named."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pattern_db import backup, template
from pattern_db.connection import fetch_all, open_connection
from pattern_db.errors import BackupInvalid, IOFailed, RowNotFound, SchemaTooNew
from pattern_db.migrate import migrations_of
from pattern_db.portable import (
    STAYS,
    TRAVELS,
    Cut,
    Rows,
    by_the_rules,
    create,
    differences,
    fill,
    find,
    newest_time,
    owners_of,
    records,
    reduce,
    tables,
    version_of,
)
from pattern_db.testing.disks import FaultyDisk, Op

NOW = "2026-02-03T04:05:06.007Z"
ALL = migrations_of("constellation")
COLUMNS = ["id", "agent_id", "title", "status", "priority", "parent_task_id", "created_at", "updated_at"]


def task(name: str, agent: str, parent: str | None = None) -> list[str | int | None]:
    return [name, agent, "Water the beds", "pending", 1, parent, NOW, NOW]


def agent(name: str) -> list[str | None]:
    return [name, name, "embedded", "rules-1", "", "{}", "[]", "active", NOW, NOW]


AGENT_COLUMNS = [
    *("id", "name", "model_provider", "model_name", "system_prompt", "config", "enabled_tools", "status"),
    *("created_at", "updated_at"),
]
TWO = [
    Rows(table="tasks", columns=COLUMNS, rows=[task("t1", "a", "t2"), task("t2", "b")]),
    Rows(table="agents", columns=AGENT_COLUMNS, rows=[agent("a"), agent("b")]),
]


def made(folder: Path) -> Path:
    path = folder / "made.db"
    create(path, ALL, ALL.newest, now=NOW)
    return path


def test_every_table_travels_or_says_why_not() -> None:
    with closing(template.in_memory(ALL, now=NOW)) as connection:
        there = set(backup.ordinary_tables(connection))
    assert there == set(TRAVELS) | set(STAYS)
    assert not set(TRAVELS) & set(STAYS)


def test_a_copy_delivers_nothing_and_has_no_consent(tmp_path: Path) -> None:
    path = made(tmp_path)
    fill(path, TWO)
    grant: dict[str, str | int] = {
        "id": "g",
        "agent_id": "a",
        "subject": "tool:shell",
        "granted_by": "user:u",
        "created_at": NOW,
    }
    hook: dict[str, str | int] = {
        "id": "h",
        "name": "n",
        "url": "u",
        "events": "[]",
        "secret": "s",
        "after": 0,
        "created_at": NOW,
    }
    added = {"consent_grant": grant, "webhook": hook}
    with closing(open_connection(path)) as connection:
        for table, row in added.items():
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    backup.cut_loose(path)
    with closing(open_connection(path)) as connection:
        there = backup.row_counts(connection)
        assert [there[table] for table in ("consent_grant", "webhook", "agents")] == [0, 0, 2]


def test_rows_may_come_before_those_that_they_refer_to(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert fill(path, TWO) == {"tasks": 2, "agents": 2}
    with closing(open_connection(path)) as connection:
        assert {rows.table: len(list(rows.rows)) for rows in tables(connection)} == {"agents": 2, "tasks": 2}
        assert version_of(connection) == ALL.newest


def test_a_disk_that_fails_is_named(tmp_path: Path) -> None:
    disk = FaultyDisk(is_default=True)
    try:
        path = made(tmp_path)
        disk.fail(Op.WRITE)
        with pytest.raises(IOFailed):
            fill(path, TWO)
        assert disk.failed[Op.WRITE] == 1
    finally:
        disk.unregister()


def test_one_agent_alone_leaves_the_other_and_says_what_was_cut(tmp_path: Path) -> None:
    path = made(tmp_path)
    fill(path, TWO)
    with closing(open_connection(path)) as connection:
        assert find(connection, "agent", "a") == ("a", "a")
        with pytest.raises(RowNotFound):
            find(connection, "group", "a")
        assert reduce(connection, ["a"]) == [Cut(table="tasks", column="parent_task_id", is_lost=False)]
        assert fetch_all(connection, "SELECT id, parent_task_id FROM tasks") == [("t1", None)]
        assert fetch_all(connection, "SELECT id FROM agents") == [("a",)]


def test_a_group_takes_its_members_along(tmp_path: Path) -> None:
    path = made(tmp_path)
    fill(path, TWO)
    with closing(open_connection(path)) as connection:
        connection.execute(
            "INSERT INTO agent_groups (id, name, pattern_type, pattern_config, created_at, updated_at)"
            " VALUES ('g', 'g', 'parallel', '{}', ?1, ?1)",
            (NOW,),
        )
        connection.execute(
            "INSERT INTO group_members (group_id, agent_id, ordinal, joined_at) VALUES ('g', 'b', 0, ?)", (NOW,)
        )
        assert owners_of(connection, "g") == ["g", "b"]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (Rows(table="tasks", columns=["id", "color"], rows=[["t", "red"]]), "columns of 'tasks'"),
        (Rows(table="turn", columns=["key"], rows=[[1]]), "columns of 'turn'"),
        (Rows(table="tasks", columns=[*COLUMNS, "id"], rows=[[*task("t", "a"), "u"]]), "column of 'tasks' twice"),
        (Rows(table="tasks", columns=COLUMNS, rows=[task("t", "nobody")]), "missing row of agents"),
        (Rows(table="tasks", columns=COLUMNS[:3], rows=[["t", None, "x"]]), "rules of its schema"),
        (Rows(table="agents", columns=AGENT_COLUMNS, rows=[agent("a"), agent("a")]), "rules of its schema"),
    ],
)
def test_what_breaks_the_schema_is_refused(tmp_path: Path, rows: Rows, error: str) -> None:
    with pytest.raises(BackupInvalid, match=error):
        fill(made(tmp_path), [rows])


def test_an_archive_of_a_newer_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaTooNew, match=str(ALL.newest + 1)):
        create(tmp_path / "no.db", ALL, ALL.newest + 1, now=NOW)


def test_records_are_read_by_column_with_their_json_in_an_order(tmp_path: Path) -> None:
    path = made(tmp_path)
    fill(path, TWO)
    with closing(open_connection(path)) as connection:
        found = list(records(connection, "agents", ["id", "config"], order="id", status="active"))
        assert found == [{"id": "a", "config": {}}, {"id": "b", "config": {}}]
        assert [one["id"] for one in records(connection, "tasks", ["id"], parent_task_id=None)] == ["t2"]
        assert newest_time(connection) == NOW
        connection.execute("DELETE FROM tasks")
        connection.execute("DELETE FROM agents")
        assert newest_time(connection) is None


def test_a_position_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    columns = ["id", "agent_id", "position", "role", "created_at"]
    rows = [["msg_x", "a", "x" * 19, "user", NOW]]
    path = tmp_path / "made.db"
    create(path, ALL, ALL.newest, now=NOW)
    with pytest.raises(BackupInvalid, match="not a number"):
        fill(path, [*TWO, Rows(table="messages", columns=columns, rows=rows)])


def test_what_breaks_a_rule_of_the_schema_is_a_refusal(tmp_path: Path) -> None:
    with closing(open_connection(made(tmp_path))) as connection:
        for sql in (
            "INSERT INTO coordination_state VALUES ('k', 'no JSON', '', '', 1)",
            "INSERT INTO meta VALUES (1, NULL)",
        ):
            with pytest.raises(BackupInvalid, match="rules of its schema"), by_the_rules():
                connection.execute(sql)


def test_rows_are_compared_by_their_keys(tmp_path: Path) -> None:
    (tmp_path / "after").mkdir()
    before, after = made(tmp_path), made(tmp_path / "after")
    fill(before, TWO)
    changed: list[str | int | None] = ["t2", "b", "Pick figs", "completed", 1, None, NOW, NOW]
    fill(after, [Rows(table="tasks", columns=COLUMNS, rows=[changed, task("t3", "b")]), TWO[1]])
    found = [(one.table, one.change, one.id, one.name, [*one.fields]) for one in differences(before, after)]
    assert sorted(found) == [
        ("tasks", "added", "t3", "Water the beds", []),
        ("tasks", "changed", "t2", "Water the beds", ["title", "status"]),
        ("tasks", "removed", "t1", "Water the beds", []),
    ]
    assert list(differences(after, after)) == []
