"""Files of other programs: which program's and variant one is, its rows, and files that these programs open.

A file is never opened where it lies: a program may be writing to it. It is copied with its log, and the copy is read.

Source: schemas of Delta v1 to v4 and Epsilon (2026-01), as their programs create them; times are milliseconds. Those of
Codepilot (2025-12): files of its first days have neither titles nor plans; times are text.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import apsw

from pattern_db.connection import Connection, Value, fetch_all, opened_at, transaction
from pattern_db.errors import BackupInvalid, RowConflict

Version = Literal["v1", "v4", "codepilot"]
Row = Mapping[str, Value]
CODEPILOT: Version = "codepilot"
SECONDS_BELOW = 10**11  # newest times below this are seconds, as one program stores them
_TIMES = ("created_at", "updated_at", "timestamp", "completed_at")
_V1 = """
CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL);
CREATE TABLE episodes (id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT NOT NULL, context TEXT, tags TEXT,
    timestamp INTEGER NOT NULL, session_id TEXT);
CREATE TABLE tasks (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, description TEXT,
    status TEXT NOT NULL DEFAULT 'todo', priority TEXT DEFAULT 'medium', scope TEXT NOT NULL DEFAULT 'project',
    tags TEXT, parent_id INTEGER REFERENCES tasks(id) ON DELETE CASCADE, created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, completed_at INTEGER, session_id TEXT);
CREATE TABLE project_notes (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, content TEXT NOT NULL,
    category TEXT NOT NULL DEFAULT 'general', importance TEXT NOT NULL DEFAULT 'normal',
    active INTEGER NOT NULL DEFAULT 1, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL);
CREATE INDEX idx_episodes_timestamp ON episodes(timestamp);
CREATE INDEX idx_episodes_session ON episodes(session_id);
CREATE INDEX idx_tasks_status ON tasks(status);
CREATE INDEX idx_tasks_scope ON tasks(scope);
CREATE INDEX idx_tasks_session ON tasks(session_id);
CREATE INDEX idx_tasks_parent ON tasks(parent_id);
CREATE INDEX idx_notes_category ON project_notes(category);
CREATE INDEX idx_notes_active ON project_notes(active);
CREATE INDEX idx_notes_importance ON project_notes(importance);
"""
_NEW, _OLD = (f"{which}.id, {which}.content, {which}.tags, {which}.context" for which in ("new", "old"))
_INDEXED = "INSERT INTO memories_fts (rowid, content, tags, context) VALUES"
_UNINDEXED = "INSERT INTO memories_fts (memories_fts, rowid, content, tags, context) VALUES ('delete',"
_V4 = f"""
CREATE TABLE schema_version (id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1), version INTEGER NOT NULL);
INSERT INTO schema_version (id, version) VALUES (1, 4);
CREATE TABLE memories (id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT NOT NULL, tags TEXT,
    importance TEXT NOT NULL DEFAULT 'normal', context TEXT, session_id TEXT, created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, last_accessed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX idx_memories_importance ON memories(importance);
CREATE INDEX idx_memories_session ON memories(session_id);
CREATE INDEX idx_memories_created ON memories(created_at);
CREATE INDEX idx_memories_updated ON memories(updated_at);
CREATE VIRTUAL TABLE memories_fts USING fts5(content, tags, context, content=memories, content_rowid=id);
CREATE TRIGGER memories_fts_ai AFTER INSERT ON memories BEGIN {_INDEXED} ({_NEW}); END;
CREATE TRIGGER memories_fts_ad AFTER DELETE ON memories BEGIN {_UNINDEXED} {_OLD}); END;
CREATE TRIGGER memories_fts_au AFTER UPDATE ON memories BEGIN {_UNINDEXED} {_OLD}); {_INDEXED} ({_NEW}); END;
"""
_CODEPILOT = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, status TEXT NOT NULL DEFAULT 'idle', working_dir TEXT NOT NULL,
    total_tokens INTEGER DEFAULT 0, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, title TEXT, current_plan TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, role TEXT NOT NULL, content TEXT,
    tool_call_id TEXT, tool_calls TEXT, created_at TEXT NOT NULL);
CREATE INDEX idx_messages_session ON messages(session_id);
"""
_SCHEMAS: Mapping[Version, str] = {"v1": _V1, "v4": _V4, CODEPILOT: _CODEPILOT}
DELTA_TABLES = ("kv", "episodes", "tasks", "project_notes", "memories")
CODEPILOT_TABLES = ("sessions", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """What is in a file: which variant it is, and its rows by table, with the columns that the file has."""

    version: str
    tables: Mapping[str, Sequence[Row]]


def read(path: Path) -> ProgramFile:
    """Read a file.

    Raises:
        BackupInvalid: it is of none of the programs; the message names its tables.
        DatabaseError: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="pattern-import-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        if (log := path.with_name(f"{path.name}-wal")).exists():
            shutil.copyfile(log, copy.with_name(f"{copy.name}-wal"))
        try:
            with opened_at(copy, readonly=True) as connection:
                version = _version(connection, path)
                wanted = CODEPILOT_TABLES if version == CODEPILOT else DELTA_TABLES
                tables = {table: _rows(connection, table) for table in wanted if _columns(connection, table)}
        except UnicodeDecodeError as error:
            raise BackupInvalid(f"{path} has a text that is not UTF-8: {error}") from None
        except apsw.SQLError as error:
            raise BackupInvalid(f"{path} is damaged: {error}") from None
    return ProgramFile(version=version, tables=_in_ms(tables))


def _columns(connection: Connection, table: str) -> list[str]:
    return [name for (name,) in fetch_all(connection, "SELECT name FROM pragma_table_info(?)", (table,))]


def _version(connection: Connection, path: Path) -> str:
    """Return which variant a file is, by its tables and columns: a table with its version may be empty or wrong."""
    names = [
        str(name)
        for (name,) in fetch_all(
            connection, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        )
    ]
    kv = _columns(connection, "kv")
    if "memories" in names:
        return "v4"
    if "scope" in _columns(connection, "tasks") and kv:
        return "v1"
    if kv and "episodes" in names:
        return "v3" if "last_accessed" in kv else "v2"
    if names and {*names} <= {"tasks", "schema_version"}:
        return "epsilon"
    if {"sessions", "messages"} <= {*names}:
        return CODEPILOT
    raise BackupInvalid(f"{path} is not a file of Delta or Codepilot: its tables are {', '.join(names) or 'none'}")


def _rows(connection: Connection, table: str) -> list[Row]:
    columns = _columns(connection, table)
    found = fetch_all(connection, f'SELECT * FROM "{table}" ORDER BY 1')
    rows = [dict(zip(columns, map(_json_value, row), strict=True)) for row in found]
    return [{name: value for name, value in row.items() if name != "last_accessed"} for row in rows]  # as it is read


def _json_value(value: Value) -> Value:
    """Return a cell; None for one that JSON cannot hold: bytes, infinity."""
    return None if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)) else value


def _in_ms(tables: Mapping[str, Sequence[Row]]) -> Mapping[str, Sequence[Row]]:
    """Return the rows with times in milliseconds: one program stores seconds."""
    times = [row["created_at"] for row in tables.get("memories", ()) if isinstance(row.get("created_at"), int)]
    if not times or max(map(int, times)) >= SECONDS_BELOW:  # type: ignore[arg-type]  # as was checked
        return tables
    scaled = [
        {name: value * 1_000 if name in _TIMES and isinstance(value, int) else value for name, value in row.items()}
        for row in tables["memories"]
    ]
    return {**tables, "memories": scaled}


def write(path: Path, version: Version, tables: Mapping[str, Sequence[Row]]) -> None:
    """Write a file that the programs of this version open.

    Raises:
        RowConflict: there is a file.
        DatabaseError: it cannot be written.
    """
    if path.exists():
        raise RowConflict(f"{path} exists already; choose another name")
    with opened_at(path, create=True) as connection:
        with transaction(connection):
            connection.execute(_SCHEMAS[version])
            connection.execute("PRAGMA defer_foreign_keys = 1").fetchall()
            for table, rows in tables.items():
                for row in rows:
                    named, marks = ", ".join(row), ", ".join("?" * len(row))
                    connection.execute(f"INSERT INTO {table} ({named}) VALUES ({marks})", tuple(row.values()))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
