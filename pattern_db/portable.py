"""Which rows of a constellation travel in an archive, and how they are read from one file and written to another.

Whole tables travel as stored. What this server did (turns, steps, calls, events) stays with it, as do secrets and
consent; what can be derived is built again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import apsw

from pattern_db import backup, files, template
from pattern_db.columns import JSON_DEPTH_MAX, check_depth, from_json
from pattern_db.connection import Connection, Value, fetch_all, opened_at
from pattern_db.errors import BackupInvalid, RowNotFound, SchemaTooNew, translated
from pattern_db.migrate import Migrations
from pattern_db.tables import meta

IMPORTED = "imported"  # id of a file that no server has adopted yet
_ROW = "row"  # the column that full-text search knows a row by; numbered again elsewhere
_JSON_COLUMN = re.compile(r"json_valid\((\w+)\)")
_KEYS = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
_OWN = "agent_id IN (SELECT id FROM temp.scope)"
_BLOCK = f"block_id IN (SELECT id FROM memory_blocks WHERE {_OWN})"
_EITHER = f"({_OWN} OR group_id IN (SELECT id FROM temp.scope))"
_FOLDERS = f"SELECT folder_id FROM folder_attachments WHERE {_OWN}"
_EVENTS = f"event_id IN (SELECT id FROM events WHERE {_OWN})"
_WORKSPACES = " UNION ALL ".join(
    f"SELECT workspace FROM {table} WHERE {whose}"
    for table, whose in {
        **dict.fromkeys(("messages", "archival_entries", "memory_blocks", "tasks"), _OWN),
        "sessions": _EITHER,
    }.items()
)
_TIMES = ("created_at", "updated_at", "timestamp")  # columns with times that are never in the future
Change = Literal["added", "removed", "changed"]
NAMES = ("name", "label", "title")  # columns by which people know a row
_WHOLE = ""  # only with the whole constellation

TRAVELS: Mapping[str, str] = {
    "agents": "id IN (SELECT id FROM temp.scope)",
    "agent_groups": "id IN (SELECT id FROM temp.scope)",
    "group_members": f"{_OWN} AND group_id IN (SELECT id FROM temp.scope)",
    "blob": "digest IN (SELECT unhex(part.value ->> '$.digest') FROM messages AS m, json_each(m.parts) AS part"
    f" WHERE m.{_OWN} AND part.value ->> '$.type' = 'image')",
    "messages": _OWN,
    "memory_blocks": _OWN,
    "memory_block_updates": _BLOCK,
    "memory_block_checkpoints": _BLOCK,
    "memory_block_history": _BLOCK,
    "memory_block_segments": _BLOCK,
    "memory_block_damaged": _BLOCK,
    "shared_block_agents": f"{_OWN} AND {_BLOCK}",
    "archival_entries": _OWN,
    "archive_summaries": _OWN,
    "agent_summaries": _OWN,
    "constellation_summaries": _WHOLE,
    "notable_events": _WHOLE,
    "sessions": _EITHER,
    "session_message": f"session_id IN (SELECT id FROM sessions WHERE {_EITHER})",
    "workspaces": f"id IN ({_WORKSPACES})",
    "workspace_aliases": f"workspace_id IN ({_WORKSPACES})",
    "external_refs": _WHOLE,
    **dict.fromkeys(("decisions", "decision_links", "decision_lines"), _WHOLE),
    **dict.fromkeys(("guidance", "guidance_feedback"), _WHOLE),
    "folders": f"id IN ({_FOLDERS})",
    "folder_attachments": _OWN,
    "folder_files": f"folder_id IN ({_FOLDERS})",
    "file_index": f"file_id IN (SELECT id FROM folder_files WHERE folder_id IN ({_FOLDERS}))",
    "file_passages": f"file_id IN (SELECT id FROM folder_files WHERE folder_id IN ({_FOLDERS}))",
    "tasks": _OWN,
    "events": _OWN,
    "event_occurrences": _EVENTS,
    "event_source": _EVENTS,
    "schedule": _EITHER,
    "schedule_occurrence": f"schedule_id IN (SELECT id FROM schedule WHERE {_EITHER})",
    "tool_results": _OWN,
    "tool_state": _OWN,
    "tool_use": _OWN,
    "activity_events": _OWN,
    "coordination_state": _WHOLE,
    "coordination_tasks": _WHOLE,
    "handoff_notes": _WHOLE,
    "data_sources": _WHOLE,
    "agent_data_sources": _WHOLE,
    "source_seen": _WHOLE,
    "source_chat": _WHOLE,
    "budget": _WHOLE,
    "usage_day": _OWN,
}
"""Tables that travel, and which of their rows do so with single agents and groups: those that `temp.scope` lists."""

_DERIVED = "derived: it is built again from the texts"
_JOURNAL = "what one server did; the messages and the use of each day travel"
STAYS: Mapping[str, str] = {
    **dict.fromkeys(
        ["embeddings", "embedding_indexes", "embedding_cursors", "embedding_changes", "embedding_refusals"], _DERIVED
    ),
    **dict.fromkeys(
        [
            *("turn", "step", "effect", "event", "usage", "inbox", "prompt_log", "reservation", "turn_budget"),
            *("group_run", "group_ask", "history_import"),
        ],
        _JOURNAL,
    ),
    "approval": "a question about a call that only its own server can run",
    "consent_grant": "consent is given to one server",
    "timer": "derived: it is set again when what it belongs to is resumed",
    "outbox": "deliveries of one server; a copy would send them twice",
    "source_person": "who may talk is decided on one server",
    "source_turn": "addresses of answers of one server's turns",
    "workspace_roots": "folders of one machine, in which its agents may work",
    "webhook": "it has a secret, and a copy would deliver everything twice",
    "meta": "the identity of one file",
    "schema_migrations": "the new file has its own",
    "migration_audit": "imports into one file; the new one has its own",
}
"""Tables that do not travel, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows of one table, in its order."""

    table: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A reference to a row that does not travel: the column became NULL, or with `is_lost` the row stayed behind."""

    table: str
    column: str
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row of one table that was added, removed or changed, and of a changed one which `fields`. Its `id` is its
    primary key, the parts with spaces between them; `name` is None if such rows have none.
    """

    table: str
    change: Change
    id: str
    name: str | None
    fields: Sequence[str]


# Out of one file


def reduce(connection: Connection, owners: Sequence[str] | None) -> list[Cut]:
    """Reduce a private copy of a constellation to what travels, all of it or what belongs to these agents and groups;
    return the references that were cut.
    """
    with translated():
        connection.execute("PRAGMA foreign_keys = 0").fetchall()
        for (trigger,) in fetch_all(connection, "SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
            connection.execute(f'DROP TRIGGER "{trigger}"')
        gone = set(STAYS) - {"schema_migrations", "meta"}
        there = set(backup.ordinary_tables(connection))
        with connection:
            for table in sorted(gone & there):
                connection.execute(f"DELETE FROM {table}")
            if owners is not None:
                _keep(connection, owners)
            cut = _cut(connection)
    return cut


def _keep(connection: Connection, owners: Sequence[str]) -> None:
    connection.execute("CREATE TEMP TABLE scope (id TEXT PRIMARY KEY)")
    connection.executemany("INSERT OR IGNORE INTO temp.scope VALUES (?)", [(owner,) for owner in owners])
    for table, condition in TRAVELS.items():
        connection.execute(f"DELETE FROM {table}" + (f" WHERE NOT coalesce({condition}, 0)" if condition else ""))


def _cut(connection: Connection) -> list[Cut]:
    """Remove references to rows that are not there, until there are none."""
    cut: list[Cut] = []
    while broken := fetch_all(connection, "PRAGMA foreign_key_check"):
        for table, row, _parent, number in broken:
            column = next(
                key[3] for key in fetch_all(connection, f"PRAGMA foreign_key_list({table})") if key[0] == number
            )
            needed = {name for _, name, _, needed, *_ in fetch_all(connection, f"PRAGMA table_info({table})") if needed}
            is_lost = column in needed
            change = f"DELETE FROM {table}" if is_lost else f"UPDATE {table} SET {column} = NULL"
            connection.execute(f"{change} WHERE rowid = ?", (row,))
            cut.append(Cut(table=table, column=column, is_lost=is_lost))
    return cut


def tables(connection: Connection, schema: str = "main") -> Iterator[Rows]:
    """Yield the travelling tables that have rows, by name, each with its rows in their stored order; also those of an
    attached database, `schema`, with the same tables.
    """
    for table in sorted(TRAVELS.keys() & set(backup.ordinary_tables(connection))):
        columns = _columns(connection, table)
        named = ", ".join(f'"{column}"' for column in columns)
        keys = ", ".join(f'"{key}"' for (key,) in fetch_all(connection, _KEYS, (table,)))
        order = "rowid" if _has_rowid(connection, table) else keys
        found = connection.execute(f"SELECT {named} FROM {schema}.{table} ORDER BY {order}")
        first = found.fetchone()
        if first is not None:
            yield Rows(table=table, columns=columns, rows=chain([first], found))


def newest_time(connection: Connection) -> str | None:
    """Return the newest time of the travelling rows; None without any."""
    found: list[str] = []
    for table in TRAVELS.keys() & set(backup.ordinary_tables(connection)):
        times = [column for column in _columns(connection, table) if column in _TIMES]
        found += [connection.execute(f"SELECT max({column}) FROM {table}").get or "" for column in times]
    return max(found, default="") or None


def records(
    connection: Connection, table: str, columns: Sequence[str], *, order: str = "", **equal: Value
) -> Iterator[dict[str, Any]]:
    """Yield rows of a table by column, their JSON read: those with these values, in the order of a column, else as
    stored.
    """
    schema = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).get
    valid = set(_JSON_COLUMN.findall(schema))
    where = " AND ".join(f'"{column}" IS ?' for column in equal) or "true"
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {where}" + (f" ORDER BY {order}" if order else "")
    for row in connection.execute(sql, tuple(equal.values())):
        cells = zip(columns, row, strict=True)
        yield {name: from_json(cell) if name in valid else cell for name, cell in cells}


def _columns(connection: Connection, table: str) -> list[str]:
    found = fetch_all(connection, "SELECT name FROM pragma_table_info(?)", (table,))
    return [name for (name,) in found if name != _ROW]


def _has_rowid(connection: Connection, table: str) -> bool:
    listed = fetch_all(connection, "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (table,))
    return not listed[0][0]


def differences(before: Path, after: Path) -> Iterator[Difference]:
    """Yield how the travelling rows of a file differ from those of an earlier one at the same schema, table by table.

    Raises:
        DatabaseError: a file cannot be read.
    """
    with opened_at(before, readonly=True) as connection:
        connection.execute("ATTACH ? AS later", (str(after),)).fetchall()
        for table in sorted(TRAVELS.keys() & set(backup.ordinary_tables(connection))):
            columns = _columns(connection, table)
            keys = [key for (key,) in fetch_all(connection, _KEYS, (table,)) if key in columns] or ["id"]
            values = [column for column in columns if column not in keys]
            name = next((column for column in NAMES if column in columns), "")
            shown = [f"coalesce(was.{column}, now.{column})" for column in (*keys, *filter(None, [name]))]
            changed = [f'was."{column}" IS NOT now."{column}"' for column in values]
            same = " AND ".join(f'was."{key}" IS now."{key}"' for key in keys)
            rows = connection.execute(
                f"SELECT was.{keys[0]} IS NULL, now.{keys[0]} IS NULL, {', '.join([*shown, *changed])}"
                f" FROM main.{table} AS was FULL JOIN later.{table} AS now ON {same}"
                f" WHERE was.{keys[0]} IS NULL OR now.{keys[0]} IS NULL OR {' OR '.join(changed) or 'false'}"
            )
            for is_added, is_removed, *cells in rows:
                own = [cell.hex() if isinstance(cell, bytes) else str(cell) for cell in cells[: len(shown)]]
                flags = zip(values, cells[len(shown) :], strict=True)
                is_changed = not (is_added or is_removed)
                yield Difference(
                    table=table,
                    change="added" if is_added else "removed" if is_removed else "changed",
                    id=" ".join(own[: len(keys)]),
                    name=own[-1] if name else None,
                    fields=[column for column, is_other in flags if is_other and is_changed],
                )


# Into another one


def create(path: Path, migrations: Migrations, version: int, *, now: str) -> None:
    """Create an empty constellation at `path`, at the schema `version` of an archive.

    Raises:
        SchemaTooNew: the archive comes from a newer server.
    """
    if not 0 < version <= migrations.newest:
        raise SchemaTooNew(
            f"the archive is at schema version {version}, this server knows 1 to {migrations.newest}: upgrade the"
            " server that imports it"
        )
    template.create(path, migrations.up_to(version), now=now)


def fill(path: Path, tables: Iterable[Rows]) -> dict[str, int]:
    """Store the rows in a file that `create` made; return their numbers by table.

    Raises:
        BackupInvalid: a table or column is unknown, or the rows break the rules of the schema.
        StorageFailed: the disk is full or failed.
    """
    counts: dict[str, int] = {}
    synced = 0
    with opened_at(path) as connection:
        schemas = dict(fetch_all(connection, "SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))
        known = {table: _columns(connection, table) for table in backup.ordinary_tables(connection) if table in TRAVELS}
        # The finished file is synced before it is used, and an unfinished one is of no use.
        connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY").fetchall()
        connection.execute("PRAGMA foreign_keys = 0").fetchall()  # rows come before those that they refer to
        with by_the_rules(), connection:
            meta.put(connection, meta.CONSTELLATION_ID, IMPORTED)
            for some in tables:
                if some.table not in known or not set(some.columns) <= set(known[some.table]):
                    raise BackupInvalid(f"the archive has columns of {some.table!r} that its schema has not")
                if len(set(some.columns)) < len(some.columns):  # SQLite would store the first one
                    raise BackupInvalid(f"the archive has a column of {some.table!r} twice")
                named = ", ".join(f'"{column}"' for column in some.columns)
                marks = ", ".join("?" * len(some.columns))
                rows = list(some.rows)
                _check_json(some, rows, schemas[some.table])
                connection.executemany(f"INSERT INTO {some.table} ({named}) VALUES ({marks})", rows)
                counts[some.table] = counts.get(some.table, 0) + len(rows)
                if (size := path.stat().st_size) > synced + files.SYNCED_BYTES:
                    files.sync(path)
                    synced = size
            if fetch_all(connection, "SELECT 1 FROM messages WHERE position GLOB '*[^0-9]*' LIMIT 1"):
                raise BackupInvalid("the position of a message is not a number of 19 digits")
            if broken := fetch_all(connection, "PRAGMA foreign_key_check"):
                table, _row, parent, _number = broken[0]
                raise BackupInvalid(f"a row of {table} refers to a missing row of {parent}")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    return counts


@contextmanager
def by_the_rules() -> Iterator[None]:
    """Refuse what breaks the rules of the schema within the block.

    Raises:
        BackupInvalid: a row did.
    """
    try:
        yield
    except (apsw.ConstraintError, apsw.MismatchError, apsw.SQLError, OverflowError, ValueError) as error:
        raise BackupInvalid(f"the archive breaks the rules of its schema: {error}") from error


def _check_json(some: Rows, rows: Iterable[Sequence[Value]], schema: str) -> None:
    """Refuse JSON that is nested too deeply to be shown.

    Raises:
        BackupInvalid: a column with JSON has such a value.
    """
    valid = set(_JSON_COLUMN.findall(schema))
    places = [place for place, column in enumerate(some.columns) if column in valid]
    for row in rows:
        for value in (row[place] for place in places):
            if isinstance(value, str) and value.count("[") + value.count("{") > JSON_DEPTH_MAX:
                try:
                    check_depth(json.loads(value))
                except (ValueError, RecursionError) as error:
                    raise BackupInvalid(f"a row of {some.table} has JSON that cannot be read: {error}") from error


def owners_of(connection: Connection, group: str) -> list[str]:
    """Return the ids of a group and of its members."""
    found = fetch_all(connection, "SELECT agent_id FROM group_members WHERE group_id = ? ORDER BY ordinal", (group,))
    return [group, *(agent for (agent,) in found)]


def find(connection: Connection, kind: str, id_or_name: str) -> tuple[str, str]:
    """Return id and name of the `agent` or `group` with this id or name.

    Raises:
        RowNotFound: there is none.
    """
    table = "agents" if kind == "agent" else "agent_groups"
    found = connection.execute(f"SELECT id, name FROM {table} WHERE id = ?1 OR name = ?1", (id_or_name,)).fetchone()
    if found is None:
        raise RowNotFound(f"there is no {kind} {id_or_name!r} in this constellation")
    return str(found[0]), str(found[1])


def version_of(connection: Connection) -> int:
    """Return the version of the schema."""
    return int(fetch_all(connection, "PRAGMA user_version")[0][0])
