"""Delta's files in and out: each row once, none lost, and as it came if nobody changed it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pattern_core.delta import Delta
from pattern_core.delta_files import as_memories, export_delta, import_delta, place_of
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.untrusted import MASK
from pattern_db.connection import fetch_all, open_connection
from pattern_db.errors import BackupInvalid, DatabaseError, RowConflict
from pattern_db.program_files import read, write
from pattern_db.tables.workspaces import WorkspaceAlias
from tests.pattern_core.test_delta import SECRET, memory
from tests.support import USER

SESSION = "1795294271726-lrse60"
T = 1795294271726
COLUMNS = {
    "kv": "key value created_at updated_at",
    "episodes": "id content context tags timestamp session_id",
    "tasks": "id title description status priority scope tags parent_id created_at updated_at completed_at session_id",
    "project_notes": "id title content category importance active created_at updated_at",
}
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
    table: [dict(zip(COLUMNS[table].split(), row, strict=True)) for row in rows] for table, rows in ROWS.items()
}
DIGEST = "3f512b54090040d282f45d92ddc0af6f5f571adc37b2575f74936cb9cc935f10"


def dump(path: Path) -> str:
    lines = []
    with closing(open_connection(path)) as connection:
        for table in ("kv", "episodes", "tasks", "project_notes"):
            lines.append([table, *COLUMNS[table].split()])
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


async def test_a_second_branch_gets_other_numbers(tmp_path: Path) -> None:
    async with memory() as delta:
        await delta.task_create("Mine")
        first = await imported(delta, file_of(tmp_path), "srv_shop-main")
        assert (await delta.task_get(1)).startswith("○ #1 [medium] Mine")
        second = await imported(replace(delta, branch="dev"), tmp_path / "delta.db", "srv_shop-dev")
        assert first.added["tasks"] == second.added["tasks"] == 2
        assert (dict(second.present), second.conflicts) == ({"kv": 1}, [])
        assert sum(" Child (subtask of" in line for line in (await delta.task_list()).splitlines()) == 2
        assert [one.alias for one in (await delta.constellation.workspaces.find("shop")).aliases] == [
            "srv_shop-dev",
            "srv_shop-main",
        ]


async def test_what_changed_in_the_file_follows_it_and_what_changed_here_too_is_a_conflict(tmp_path: Path) -> None:
    """Only here: it stays. Only in the file: it follows, twice. In both: it is listed, and nothing is overwritten."""
    async with memory() as delta:
        await imported(delta, file_of(tmp_path))
        rows: dict[str, Any] = json.loads(json.dumps(GOLDEN))
        for step in ("once", "twice"):
            rows["kv"][0]["value"] = f"make {step}"
            rows["tasks"][0] |= {"title": step, "description": step, "status": "blocked", "tags": '["x"]'}
            rows["tasks"][0]["updated_at"] += 1
            rows["project_notes"][0] |= {"title": step, "content": step, "importance": "high", "updated_at": T + 7}
            done = await import_delta(delta, rows, source="srv_shop-main", version="v1")
            assert (dict(done.updated), dict(done.added)) == ({"kv": 1, "tasks": 1, "project_notes": 1}, {})
            assert (done.conflicts, done.skipped) == ([], [])
            assert await export_delta(delta) == rows, "as the file is now"
            assert await delta.task_get(1) == f"⊘ #1 [critical] {step} [x]\n  project | blocked | 2026-11-21\n  {step}"
        await delta.set("build.cmd", "mine")
        await delta.task_update(1, description="Mine")
        await delta.note_update(1, content="Mine")
        await delta.task_update(2, title="Only here")
        for table, column in (("kv", "value"), ("tasks", "title"), ("project_notes", "title")):
            rows[table][0][column] = "in the file"
        rows["tasks"][1]["parent_id"], rows["episodes"][0]["content"] = None, "in the file"
        before = await export_delta(delta)
        assert [before["tasks"][1][name] for name in ("title", "created_at", "tags")] == ["Only here", T, None]
        done = await import_delta(delta, rows, source="srv_shop-main", version="v1")
        changed = "it was changed in the file, and here or in its place"
        assert done.conflicts == [
            "kv 'build.cmd' has another value here",
            *(f"{what}: {changed}" for what in ("episodes #1", "tasks #1", "tasks #2", "project_notes #1")),
        ]
        assert (done.added.total(), done.updated.total(), await export_delta(delta)) == (0, 0, before)
        await delta.task_delete(1)
        assert (
            f"tasks #1: {changed}" in (await import_delta(delta, rows, source="srv_shop-main", version="v1")).conflicts
        )


async def test_an_import_into_another_workspace_stores_nothing(tmp_path: Path) -> None:
    async with memory() as delta:
        await imported(delta, file_of(tmp_path))
        workspaces = delta.constellation.workspaces
        garden = replace(delta, workspace=(await workspaces.ensure("garden", author=USER)).id)
        with pytest.raises(Conflict, match="delta calls the workspace"):
            await imported(garden, tmp_path / "delta.db")
        empty: dict[str, list[Any]] = {table: [] for table in GOLDEN}
        assert await export_delta(garden) == empty
        dry = await import_delta(garden, GOLDEN, source="other", version="v1", is_dry=True)
        assert dry.added.total() == 7 and await export_delta(garden) == empty
        with pytest.raises(Conflict, match="'srv_shop-main'"):
            await place_of(workspaces, "garden", "srv_shop-main", "v1")


@pytest.mark.parametrize(
    ("source", "version", "given", "expected"),
    [
        ("srv_till-main", "v1", None, ("srv_till", None, "main")),
        ("my-till-no-git", "v2", None, ("my-till", None, "no-git")),
        ("till-HEAD", "v1", None, ("till", None, "HEAD")),
        ("srv_shop-fix-bug", "v1", None, ("srv_shop", "srv_shop", "fix-bug")),
        ("srv_shop-fix-bug", "v1", "srv_shop", ("srv_shop", "srv_shop", "fix-bug")),
        ("srv_shop-fix-bug", "v1", "garden", ("garden", None, None)),
        ("known-by-name", "v1", None, ("srv_shop", "srv_shop", None)),
        ("srv_my-till", "v3", None, ("srv_my-till", None, None)),
        ("srv_till-fix-bug", "v1", None, None),
        (".._.git", "v4", None, None),
        (".._.git", "v4", "garden", ("garden", None, None)),
    ],
)
async def test_d31_a_folder_is_one_project_or_it_is_asked(
    source: str, version: str, given: str | None, expected: tuple[str, str | None, str | None] | None
) -> None:
    async with memory() as delta:
        found = delta.constellation.workspaces
        shop = await found.ensure("srv_shop", author=USER)
        await found.add_alias(shop.id, WorkspaceAlias("delta", "known-by-name"), author=USER)
        if expected is None:
            with pytest.raises(InvalidInput, match="name a workspace"):
                await place_of(found, given, source, version)
        else:
            name, there, branch = await place_of(found, given, source, version)
            names = {shop.id: "srv_shop", None: None}
            assert (names.get(name, name), names[there], branch) == expected


async def test_secrets_of_a_file_are_left_out_and_said(tmp_path: Path) -> None:
    rows: dict[str, Any] = json.loads(json.dumps(GOLDEN))
    rows["kv"][0] |= {"key": "api_key", "value": "0123456789"}
    for table, column in (("episodes", "context"), ("tasks", "title"), ("project_notes", "content")):
        rows[table][0][column] = f"the {SECRET}"
    async with memory() as delta:
        done = await import_delta(delta, rows, source="x", version="v1")
        assert done.added.total() == 7
        assert done.skipped == [
            "kv 'api_key': its secrets",
            *(f"{table} #1: its secrets" for table in ("episodes", "tasks", "project_notes")),
        ]
        again = await import_delta(delta, rows, source="x", version="v1")
        assert (again.present.total(), again.skipped) == (7, [])
        shown = json.dumps(await export_delta(delta))
        assert SECRET not in shown and "0123456789" not in shown and shown.count(MASK) == 4


@pytest.mark.parametrize(
    ("case", "table", "expected"),
    [
        ("D35", "project_notes", ("Old\n\ngone", '["issue","archived"]', "critical", None, T, T + 1)),
        ("D36", "kv", ("build.cmd: make all", '["kv","build.cmd"]', "normal", None, T, T + 1_000)),
        ("D37", "episodes", ("Tests are slow – 90 s", None, "normal", SESSION, T + 5, T + 5)),
    ],
)
def test_d35_d36_d37_v1_becomes_v4_as_the_original_does_it(
    tmp_path: Path, case: str, table: str, expected: tuple[Any, ...]
) -> None:
    empty: dict[str, list[Any]] = {name: [] for name in GOLDEN}
    rows = as_memories({**empty, table: GOLDEN[table][-1:]})
    [row] = rows["memories"]
    names = ("content", "tags", "importance", "session_id", "created_at", "updated_at")
    assert tuple(row.get(name) for name in names) == expected, case
    path = file_of(tmp_path, "v4", rows)
    found = read(path)
    assert found.version == "v4" and found.tables["memories"][0]["importance"] == expected[2]
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
        [made] = (await export_delta(delta, "v4"))["memories"]
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
            "tasks #None: it has no number",
            "project_notes #1: content is not a text",
        ]
        task = (await export_delta(delta))["tasks"][0]
        assert [task[name] for name in ("status", "tags", "title")] == ["lost", "not json", ""], "as it came"
        with pytest.raises(InvalidInput, match="no table 'songs'"):
            await import_delta(delta, {"songs": []}, source="x", version="v1")


EXAMPLES = int(os.environ.get("PATTERN_TEST_EXAMPLES", "60"))


def test_damaged_files_are_read_or_refused_in_words(tmp_path: Path) -> None:
    whole = file_of(tmp_path).read_bytes()
    path = tmp_path / "damaged.db"
    formats = bytearray(whole)
    formats[47] = 99  # of the schema
    path.write_bytes(formats)
    with pytest.raises(BackupInvalid, match="is damaged: unsupported file format"):
        read(path)
    for seed in range(EXAMPLES):
        chance, data = random.Random(seed), bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(chance.choice((100, 600, len(data))))
            data[at : at + chance.choice((0, 1, 200))] = chance.randbytes(chance.choice((0, 1, 40)))
        path.write_bytes(data)
        with suppress(DatabaseError):
            assert read(path).tables, seed


async def test_mutated_rows_are_never_lost() -> None:
    """Each row of a mutated file is added, present, listed as a conflict, or as skipped."""
    values: tuple[Any, ...] = (None, "", "x" * 300, -1, 0, 2, 10**18, 1.5, "[1]", '["a"]', "todo", "\u2028😀", T)
    chance = random.Random(7)
    async with memory() as delta:
        for number in range(EXAMPLES):
            rows = json.loads(json.dumps(GOLDEN))
            for _ in range(chance.randint(1, 4)):
                table = chance.choice(list(rows))
                row = chance.choice(rows[table])
                row[chance.choice(list(row))] = chance.choice(values)
            done = await import_delta(delta, rows, source=str(number % 20), version="v1")
            seen = (
                done.added.total()
                + done.updated.total()
                + done.present.total()
                + len(done.conflicts)
                + len(done.skipped)
            )
            assert seen == sum(map(len, rows.values())), rows
