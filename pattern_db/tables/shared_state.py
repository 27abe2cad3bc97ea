"""State that agents and people share: JSON values by key, each with a version that rises with every change."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json
from pattern_db.connection import Connection, Table
from pattern_db.tables import meta

_DELETED = "state_deleted"  # the highest version of a key that was deleted


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value; never null. `updated_by` is an author: `agent:<id>` or `user:<id>`."""

    key: str
    value: Json
    version: int
    updated_at: str
    updated_by: str | None
    created_at: str | None = None


_VALUES = Table("coordination_state", SharedValue, "key {}", key="key", json=("value",))
NAMED = "kv/"  # how the keys of programs that keep values for a workspace begin: kv/<workspace>/<key>


def count(connection: Connection, *, named: bool = False) -> int:
    """Return how many keys there are, those of programs (`named`) or the others."""
    return _VALUES.count(connection, f"WHERE key GLOB '{NAMED}*' = ?", (named,))


def in_workspace(connection: Connection, workspace: str) -> list[SharedValue]:
    """Return the values of a workspace, the newest change first."""
    where = "WHERE key GLOB ? ORDER BY updated_at DESC, key"
    return _VALUES.select(connection, where, (f"{NAMED}{workspace}/*",))


def find(connection: Connection, key: str) -> SharedValue | None:
    """Return the value under a key; None if there is none."""
    return _VALUES.first(connection, "WHERE key = ?", (key,))


def page(connection: Connection, limit: int, after: str | None = None) -> list[SharedValue]:
    """Return values by key; only those after a key, if given."""
    return _VALUES.select(connection, "WHERE key > ? ORDER BY key LIMIT ?", (after or "", limit))


def versions(connection: Connection, key: str) -> tuple[int, int]:
    """Return the version of a key, 0 if there is none, and that of its next change.

    No version is used twice: a key that is created again continues after the highest version that was deleted.
    """
    current = connection.execute("SELECT version FROM coordination_state WHERE key = ?", (key,)).get or 0
    return current, 1 + (current or int(meta.get(connection, _DELETED) or 0))


def put(connection: Connection, row: SharedValue) -> None:
    """Store a value under its key, replacing an existing one."""
    _VALUES.insert(
        connection,
        [row],
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version,"
        " updated_at = excluded.updated_at, updated_by = excluded.updated_by",
    )


def delete(connection: Connection, key: str) -> None:
    """Delete a key.

    Raises:
        RowNotFound: there is none.
    """
    deleted = max(versions(connection, key)[0], int(meta.get(connection, _DELETED) or 0))
    _VALUES.delete(connection, key)
    meta.put(connection, _DELETED, str(deleted))
