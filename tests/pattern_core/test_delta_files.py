"""Delta's files in and out: each row once, none lost, and as it came if nobody changed it."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pattern_core.delta import Delta
from pattern_core.delta_files import as_memories, export_delta, import_delta
from pattern_core.errors import InvalidInput
from pattern_db.connection import fetch_all, open_connection
from pattern_db.errors import BackupInvalid, RowConflict
from pattern_db.program_files import COLUMNS, read, write
from tests.pattern_core.test_delta import memory

SESSION = "1795294271726-lrse60"
T = 1795294271726
# The rows of the original's dump: `[]` against no tags, a child with another scope, an archived note.
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "kv": [("build.cmd", "make all", T, T + 1_000)],
    "episodes": [
        (1, "Chose React", "architecture", '["decision"]', T, SESSION),
        (2, "Tests are slow – 90 s", None, None, T + 5, SESSION),
    ],
    "tasks": [
        (1, "Parent", "with text", "in_progress", "critical", "project", "[]", None, T, T + 9, None, None),
        (2, "Child", None, "done", "low", "session", None, 1, T, T + 20, T + 20, SESSION),
    ],
    "project_notes": [
        (1, "Style", "Use tabs", "convention", "normal", 1, T, T),
        (2, "Old", "gone", "issue", "critical", 0, T, T + 1),
    ],
}
GOLDEN: dict[str, list[dict[str, Any]]] = {
    table: [dict(zip(COLUMNS[table], row, strict=True)) for row in rows] for table, rows in ROWS.items()
}
DIGEST = "3f512b54090040d282f45d92ddc0af6f5f571adc37b2575f74936cb9cc935f10"


def dump(path: Path) -> str:
    lines = []
    with closing(open_connection(path)) as connection:
        for table in ("kv", "episodes", "tasks", "project_notes"):
            lines.append([table, *COLUMNS[table]])
            lines += [list(row) for row in fetch_all(connection, f"SELECT * FROM {table} ORDER BY 1")]
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


def file_of(folder: Path, version: Any = "v1", tables: Any = None) -> Path:
    write(folder / "delta.db", version, GOLDEN if tables is None else tables)
    return folder / "delta.db"


async def imported(delta: Delta, path: Path, source: str = "srv_shop-main") -> Any:
    found = read(path)
    return await import_delta(delta, found.tables, source=source, version=found.version)


async def test_the_original_dump_comes_out_as_it_went_in_and_twice_changes_nothing(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    assert hashlib.sha256(dump(path).encode()).hexdigest() == DIGEST
    async with memory() as delta:
        done = await imported(delta, path)
        assert (dict(done.added), done.conflicts, done.skipped) == (
            {"kv": 1, "episodes": 2, "tasks": 2, "project_notes": 2},
            [],
            [],
        )
        again = await imported(delta, path)
        assert (dict(again.added), dict(again.present)) == ({}, dict(done.added))
        audits = await delta.constellation.database.read(fetch_all, "SELECT source_file FROM migration_audit")
        assert audits == [("srv_shop-main",)]
        write(tmp_path / "out.db", "v1", await export_delta(delta))
        assert hashlib.sha256(dump(tmp_path / "out.db").encode()).hexdigest() == DIGEST
        assert (await delta.task_get(2)).startswith("● #2 [low] Child (subtask of #1)\n  session | done")
        assert await delta.get("build.cmd") == "make all"
        assert "#2 [CRITICAL] Old\n  issue | archived" in await delta.note_list()
        assert "(architecture)\n  Chose React" in await delta.recall(tags=["decision"])


async def test_a_second_branch_gets_other_numbers_and_a_changed_row_is_a_conflict(tmp_path: Path) -> None:
    async with memory() as delta:
        await delta.task_create("Mine", {})
        first = await imported(delta, file_of(tmp_path), "srv_shop-main")
        assert (await delta.task_get(1)).startswith("○ #1 [medium] Mine")
        second = await imported(replace(delta, branch="dev"), tmp_path / "delta.db", "srv_shop-dev")
        assert first.added["tasks"] == second.added["tasks"] == 2
        assert (dict(second.present), second.conflicts) == ({"kv": 1}, [])
        assert sum(" Child (subtask of" in line for line in (await delta.task_list()).splitlines()) == 2
        changed = {**GOLDEN, "tasks": [{**GOLDEN["tasks"][0], "title": "Other"}, GOLDEN["tasks"][1]]}
        changed["kv"] = [{**GOLDEN["kv"][0], "value": "other"}]
        third = await import_delta(delta, changed, source="srv_shop-main", version="v1")
        assert third.conflicts == [
            "kv 'build.cmd' has another value here",
            "tasks #1 differs from what was imported before",
        ]
        assert not third.added and "Other" not in await delta.task_list()
        await delta.task_update(2, {"title": "Changed here"})
        rows = {row["id"]: row for row in (await export_delta(delta))["tasks"]}
        assert (rows[2]["title"], rows[2]["tags"], rows[2]["created_at"]) == ("Changed here", "[]", T)


@pytest.mark.parametrize(
    ("case", "table", "expected"),
    [
        ("D35", "project_notes", ("Old\n\ngone", '["issue","archived"]', "critical", None, T, T + 1)),
        ("D36", "kv", ("build.cmd: make all", '["kv","build.cmd"]', None, None, T, T + 1_000)),
        ("D37", "episodes", ("Tests are slow – 90 s", None, "normal", SESSION, T + 5, T + 5)),
    ],
)
def test_v1_becomes_v4_as_the_original_does_it(
    tmp_path: Path, case: str, table: str, expected: tuple[Any, ...]
) -> None:
    empty: dict[str, list[Any]] = {name: [] for name in GOLDEN}
    rows = as_memories({**empty, table: GOLDEN[table][-1:]})
    [row] = rows["memories"]
    names = ("content", "tags", "importance", "session_id", "created_at", "updated_at")
    assert tuple(row.get(name) for name in names) == expected, case
    path = file_of(tmp_path, "v4", rows)
    found = read(path)
    assert found.version == "v4" and found.tables["memories"][0]["importance"] == (expected[2] or "normal")
    with closing(open_connection(path)) as connection:
        word = expected[0].split()[0].split(".")[0]
        assert fetch_all(connection, f"SELECT rowid FROM memories_fts('{word}')") == [(1,)]


async def test_memories_of_v4_come_back_and_seconds_become_milliseconds(tmp_path: Path) -> None:
    row = {"id": 7, "content": "It leaks.", "tags": '["bug"]', "importance": "critical", "context": None}
    row |= {"session_id": None, "created_at": T // 1_000, "updated_at": T // 1_000, "last_accessed": 0}
    path = file_of(tmp_path, "v4", {"memories": [row]})
    async with memory() as delta:
        await imported(delta, path)
        assert (await delta.recall()).startswith("Found 1 episodes:\n\n#7 2026-11-21T")
        [made] = as_memories(await export_delta(delta))["memories"]
        assert (made["importance"], made["created_at"]) == ("critical", T // 1_000 * 1_000)


def test_d38_a_file_is_known_by_its_tables_and_never_touched(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    before = path.read_bytes()
    with closing(open_connection(path)) as writer:
        writer.execute("CREATE TABLE schema_version (version INTEGER)")
        writer.execute("INSERT INTO schema_version VALUES (4)")
        writer.execute("INSERT INTO kv VALUES ('late', 'in the log', 1, 1), ('odd', x'00', 9e999, 1)")
        log = path.with_name("delta.db-wal")
        assert log.stat().st_size > 0
        found = read(path)
        assert found.version == "v1" and {row["key"] for row in found.tables["kv"]} == {"build.cmd", "late", "odd"}
        assert found.tables["kv"][2] == {"key": "odd", "value": None, "created_at": None, "updated_at": 1}
        assert path.read_bytes() == before
    with closing(open_connection(tmp_path / "other.db", create=True)) as other:
        other.execute("CREATE TABLE songs (id)")
    with pytest.raises(BackupInvalid, match="songs"):
        read(tmp_path / "other.db")
    with pytest.raises(RowConflict, match="exists"):
        write(path, "v1", GOLDEN)
    variants = {
        "v2": "DROP INDEX idx_tasks_scope; ALTER TABLE tasks DROP COLUMN scope",
        "v3": "DROP TABLE tasks; ALTER TABLE kv ADD COLUMN last_accessed INTEGER",
        "epsilon": "DROP TABLE kv; DROP TABLE episodes; DROP TABLE project_notes",
    }
    for version, change in variants.items():
        copy = Path(shutil.copy(path, tmp_path / f"{version}.db"))
        with closing(open_connection(copy)) as connection:
            connection.execute(change)
        assert read(copy).version == version


async def test_what_cannot_be_stored_is_listed_and_the_rest_arrives() -> None:
    rows: dict[str, Any] = {
        "kv": [{"key": 1, "value": "x", "created_at": T, "updated_at": T}],
        "episodes": [{**GOLDEN["episodes"][0], "timestamp": 10**18}, GOLDEN["episodes"][1]],
        "tasks": [
            {**GOLDEN["tasks"][0], "parent_id": 2, "status": "lost", "tags": "not json", "title": ""},
            {**GOLDEN["tasks"][1], "parent_id": 1},
            {**GOLDEN["tasks"][1], "id": None},
        ],
        "project_notes": [{**GOLDEN["project_notes"][0], "content": None}],
    }
    async with memory() as delta:
        done = await import_delta(delta, rows, source="x", version="v1")
        assert dict(done.added) == {"episodes": 1, "tasks": 2}
        assert done.skipped == [
            "kv: key is not a text",
            "episodes #1: timestamp is outside the years 1 to 9999",
            "tasks: a row has no number",
            "project_notes #1: content is not a text",
        ]
        task = (await export_delta(delta))["tasks"][0]
        assert [task[name] for name in ("status", "tags", "title")] == ["lost", "not json", ""], "as it came"
        with pytest.raises(InvalidInput, match="no table 'songs'"):
            await import_delta(delta, {"songs": []}, source="x", version="v1")


async def test_mutated_rows_are_never_lost() -> None:
    """Each row of a mutated file is added, present, listed as a conflict, or as skipped."""
    values: tuple[Any, ...] = (None, "", "x" * 300, -1, 0, 2, 10**18, 1.5, "[1]", '["a"]', "todo", "\u2028😀", T)
    chance = random.Random(7)
    async with memory() as delta:
        for number in range(60):
            rows = json.loads(json.dumps(GOLDEN))
            for _ in range(chance.randint(1, 4)):
                table = chance.choice(list(rows))
                row = chance.choice(rows[table])
                row[chance.choice(list(row))] = chance.choice(values)
            done = await import_delta(delta, rows, source=str(number % 20), version="v1")
            seen = done.added.total() + done.present.total() + len(done.conflicts) + len(done.skipped)
            assert seen == sum(map(len, rows.values())), rows
