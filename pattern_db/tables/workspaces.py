"""Workspaces: the projects that rows are tagged with, their folders, and what other systems call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import meta

NOTES_MAX, LISTED_MAX = 50, 5  # that a map has of notes, and of keys and tasks

# Of each table that has a workspace: how its rows change to another one.
_TAGGED = (
    *(f"UPDATE {table} SET workspace = ?2 WHERE workspace = ?1" for table in ("messages", "archival_entries")),
    *(f"UPDATE {table} SET workspace = ?2 WHERE workspace = ?1" for table in ("tasks", "sessions")),
    *(f"UPDATE {table} SET workspace = ?2 WHERE workspace = ?1" for table in ("decisions", "guidance")),
    # The lines of its files follow those of the other workspace.
    "UPDATE decision_lines SET workspace = ?2, position = position + (SELECT coalesce(max(position), 0)"
    " FROM decision_lines WHERE workspace = ?2) WHERE workspace = ?1",
    "UPDATE memory_blocks SET metadata = json_set(metadata, '$.workspace', ?2) WHERE workspace = ?1",
    "UPDATE workspace_roots SET workspace_id = ?2 WHERE workspace_id = ?1",
    "UPDATE workspace_aliases SET workspace_id = ?2 WHERE workspace_id = ?1",
    # Other programs know the rows by these numbers: they follow those of the other workspace.
    "UPDATE external_refs SET workspace = ?2, number = number + taken.highest FROM (SELECT system, kind,"
    " coalesce(max(number) FILTER (WHERE workspace = ?2), 0) AS highest FROM external_refs GROUP BY system, kind)"
    " AS taken WHERE workspace = ?1 AND taken.system = external_refs.system AND taken.kind = external_refs.kind",
)
_HIDDEN = "workspace_hidden/"  # before an id: a key in `meta` of a workspace that prompts do not show


class WorkspaceMap(NamedTuple):
    """What is in a workspace: its name, active notes by importance (label and metadata of blocks), titles of open tasks
    of other agents than the reader, and how many open tasks, archived passages and keys there are, of these the newest.
    """

    id: str
    name: str
    notes: Sequence[tuple[str, Json]]
    tasks: Sequence[str]
    open_tasks: int
    passages: int
    keys: Sequence[str]
    key_count: int


@dataclass(frozen=True, slots=True)
class WorkspaceAlias:
    """What a system calls a workspace."""

    system: str
    alias: str


class WorkspaceRoot(NamedTuple):
    """A folder of a workspace, by its real path."""

    path: str
    workspace_id: str


@dataclass(frozen=True, slots=True)
class WorkspaceRow:
    """A project. `roots` are real paths; `in_prompts`: turns of its sessions show a map and decisions of it."""

    id: str
    name: str
    created_at: str
    updated_at: str
    roots: Sequence[str] = ()
    aliases: Sequence[WorkspaceAlias] = ()
    in_prompts: bool = True


_WORKSPACES = Table(
    "workspaces",
    WorkspaceRow,
    "workspace {}",
    computed={
        "roots": "(SELECT json_group_array(path) FROM (SELECT path FROM workspace_roots WHERE workspace_id = id"
        " ORDER BY path))",
        "aliases": "(SELECT json_group_array(json_object('system', system, 'alias', alias)) FROM (SELECT system, alias"
        " FROM workspace_aliases WHERE workspace_id = id ORDER BY system, alias))",
        "in_prompts": f"NOT EXISTS (SELECT 1 FROM meta WHERE key = '{_HIDDEN}' || id)",
    },
    json=("roots",),
    types={"in_prompts": bool, "aliases": lambda text: [WorkspaceAlias(**one) for one in from_json(text)]},
)
_ROOTS = Table("workspace_roots", WorkspaceRoot, "root {} of a workspace", key="path")
create, find, count = _WORKSPACES.create, _WORKSPACES.find, _WORKSPACES.count


def page(connection: Connection, limit: int, *, after: str | None = None) -> list[WorkspaceRow]:
    """Return the first workspaces by name, those after a name, if given."""
    return _WORKSPACES.select(connection, "WHERE name > ? ORDER BY name LIMIT ?", (after or "", limit))


def longest_root(connection: Connection, folders: Sequence[str]) -> WorkspaceRoot | None:
    """Return the longest root among the folders."""
    where = "WHERE path IN (SELECT value FROM json_each(?)) ORDER BY length(path) DESC LIMIT 1"
    return _ROOTS.first(connection, where, (to_json(list(folders)),))


def called(connection: Connection, system: str, alias: str) -> str | None:
    """Return the id of the workspace that a system calls so."""
    found = connection.execute(
        "SELECT workspace_id FROM workspace_aliases WHERE system = ? AND alias = ?", (system, alias)
    ).fetchone()
    return None if found is None else str(found[0])


def show_in_prompts(connection: Connection, workspace_id: str, is_shown: bool) -> None:
    """Say whether prompts show a workspace."""
    if is_shown:
        meta.delete(connection, f"{_HIDDEN}{workspace_id}")
    else:
        meta.put(connection, f"{_HIDDEN}{workspace_id}", "1")


def of_session(connection: Connection, session_id: str) -> tuple[str, str | None] | None:
    """Return the id of the workspace that a session is about, else of the one that its directory lies in, if prompts
    may show it, and the directory.
    """
    found = connection.execute(
        "SELECT about, working_dir FROM (SELECT working_dir, coalesce(workspace, (SELECT workspace_id FROM"
        " workspace_roots WHERE path = working_dir OR substr(working_dir, 1, length(path) + 1) = path || '/'"
        " ORDER BY length(path) DESC LIMIT 1)) AS about FROM sessions WHERE id = ?)"
        f" WHERE about IS NOT NULL AND NOT EXISTS (SELECT 1 FROM meta WHERE key = '{_HIDDEN}' || about)",
        (session_id,),
    ).fetchone()
    return None if found is None else (found[0], found[1])


def map_of(connection: Connection, workspace_id: str, reader: str) -> WorkspaceMap:
    """Return what an agent is shown of a workspace.

    Raises:
        RowNotFound: there is no such workspace.
    """
    row, span = _WORKSPACES.get(connection, workspace_id), (f"kv/{workspace_id}/", f"kv/{workspace_id}0")
    notes = fetch_all(
        connection,
        "SELECT label, metadata FROM memory_blocks WHERE agent_id = ?1 AND is_active = 1 AND workspace = ?2 AND"
        " block_type = 'working' AND metadata ->> '$.note' IS NOT NULL ORDER BY CASE metadata ->> '$.note.importance'"
        " WHEN 'critical' THEN 0 WHEN 'high' THEN 1 WHEN 'low' THEN 3 ELSE 2 END, created_at DESC, label LIMIT ?3",
        (CONSTELLATION_OWNER, workspace_id, NOTES_MAX),
    )
    is_open = "workspace = ?1 AND status IN ('pending', 'in_progress', 'blocked')"
    tasks = fetch_all(
        connection,
        f"SELECT title FROM tasks WHERE {is_open} AND agent_id <> ?2 ORDER BY priority DESC, row LIMIT ?3",
        (workspace_id, reader, LISTED_MAX),
    )
    [(open_tasks, passages, key_count)] = fetch_all(
        connection,
        f"SELECT (SELECT count(*) FROM tasks WHERE {is_open}), (SELECT count(*) FROM archival_entries WHERE"
        " workspace = ?1), (SELECT count(*) FROM coordination_state WHERE key > ?2 AND key < ?3)",
        (workspace_id, *span),
    )
    keys = fetch_all(
        connection,
        "SELECT key FROM coordination_state WHERE key > ? AND key < ? ORDER BY updated_at DESC, key LIMIT ?",
        (*span, LISTED_MAX),
    )
    return WorkspaceMap(
        id=row.id,
        name=row.name,
        notes=[(label, from_json(metadata)) for label, metadata in notes],
        tasks=[title for (title,) in tasks],
        open_tasks=open_tasks,
        passages=passages,
        keys=[key.removeprefix(span[0]) for (key,) in keys],
        key_count=key_count,
    )


def add_root(connection: Connection, workspace_id: str, path: str) -> None:
    """Add a folder to a workspace.

    Raises:
        RowConflict: it is another workspace's.
    """
    _ROOTS.insert(connection, [WorkspaceRoot(path, workspace_id)], "ON CONFLICT DO NOTHING")
    owner = _ROOTS.get(connection, path).workspace_id
    if owner != workspace_id:
        raise RowConflict(f"the folder {path} belongs to the workspace {owner}; merge the two, or choose another")


def remove_root(connection: Connection, workspace_id: str, path: str) -> None:
    """Take a folder from a workspace.

    Raises:
        RowNotFound: it is not a root of this workspace.
    """
    if _ROOTS.get(connection, path).workspace_id != workspace_id:
        raise RowNotFound(f"{path} is not a root of the workspace {workspace_id}")
    _ROOTS.delete(connection, path)


def add_alias(connection: Connection, workspace_id: str, given: WorkspaceAlias) -> None:
    """Add what a system calls a workspace.

    Raises:
        RowConflict: it calls another workspace so.
    """
    connection.execute(
        "INSERT INTO workspace_aliases (system, alias, workspace_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (given.system, given.alias, workspace_id),
    )
    owner = called(connection, given.system, given.alias)
    if owner != workspace_id:
        raise RowConflict(f"{given.system} calls the workspace {owner} {given.alias!r}; merge the two")


def merge(connection: Connection, old: str, new: str, now: str) -> None:
    """Let everything of one workspace belong to another one; the first is gone.

    Raises:
        RowNotFound: there is no such workspace.
        RowConflict: both have a value under the same key.
    """
    keys = fetch_all(connection, "SELECT key FROM coordination_state WHERE key GLOB ?", (f"kv/{old}/*",))
    for (key,) in keys:
        name = key.removeprefix(f"kv/{old}/")
        moved = f"kv/{new}/{name}"
        if fetch_all(connection, "SELECT 1 FROM coordination_state WHERE key = ?", (moved,)):
            raise RowConflict(f"both workspaces have a value under {name!r}; delete one of them")
        connection.execute("UPDATE coordination_state SET key = ? WHERE key = ?", (moved, key))
    for statement in _TAGGED:
        connection.execute(statement, (old, new))
    meta.count_up(connection, meta.DECISIONS)
    meta.delete(connection, f"{_HIDDEN}{old}")
    _WORKSPACES.delete(connection, old)
    _WORKSPACES.change(connection, new, {"updated_at": now})
