"""The registry of constellations, in the global database."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.errors import RowNotFound


@dataclass(frozen=True, slots=True)
class ConstellationRow:
    """One constellation. `db_path` is relative to the data directory; names are unique for one owner.

    `next_due_at` is when it has something to do, as it was when it was last closed.
    """

    id: str
    owner_id: str
    name: str
    db_path: str
    created_at: str
    last_accessed_at: str
    next_due_at: str | None = None


_CONSTELLATIONS = Table("constellations", ConstellationRow, "constellation {}")
# Tokens that are only for a constellation are deleted with it. The caller deletes its files.
create, delete = _CONSTELLATIONS.create, _CONSTELLATIONS.delete


def find(connection: Connection, id_or_name: str, *, owner_id: str | None = None) -> ConstellationRow:
    """Return the owner's constellation with this id, else with this name; without an owner, of any user.

    Raises:
        RowNotFound: there is none, it is another owner's, or (without an owner) several have that name.
    """
    found = _CONSTELLATIONS.select(
        connection,
        "WHERE (id = ?1 OR name = ?1) AND (?2 IS NULL OR owner_id = ?2) ORDER BY id = ?1 DESC LIMIT 2",
        (id_or_name, owner_id),
    )
    if not found:
        raise RowNotFound(f"there is no constellation {id_or_name}")
    if len(found) > 1 and found[0].id != id_or_name:
        raise RowNotFound(f"several users have a constellation {id_or_name}; use its id")
    return found[0]


def list_all(connection: Connection, *, owner_id: str | None = None) -> list[ConstellationRow]:
    """Return all constellations (of one owner), by name."""
    return _CONSTELLATIONS.select(connection, "WHERE ?1 IS NULL OR owner_id = ?1 ORDER BY name, id", (owner_id,))


def places(connection: Connection) -> list[tuple[str, str, str]]:
    """Return id, name and path of all constellations, by name; also of a registry that was not migrated yet."""
    return fetch_all(connection, "SELECT id, name, db_path FROM constellations ORDER BY name, id")


def rename(connection: Connection, constellation_id: str, name: str) -> None:
    """Rename a constellation.

    Raises:
        RowNotFound: there is none.
        apsw.ConstraintError: the owner has another one of that name (translated to `RowConflict`).
    """
    _CONSTELLATIONS.change(connection, constellation_id, {"name": name})


def give(connection: Connection, owner_id: str, heir_id: str) -> None:
    """Give all constellations of an owner to another user.

    Raises:
        apsw.ConstraintError: the other user has one of the same name, or does not exist (translated to `RowConflict`).
    """
    connection.execute("UPDATE constellations SET owner_id = ? WHERE owner_id = ?", (heir_id, owner_id))


def touch(connection: Connection, constellation_id: str, last_accessed_at: str) -> None:
    """Store when it was last used; do nothing if it does not exist."""
    connection.execute(
        "UPDATE constellations SET last_accessed_at = ? WHERE id = ?", (last_accessed_at, constellation_id)
    )


def set_next_due(connection: Connection, constellation_id: str, next_due_at: str | None) -> None:
    """Remember when it has something to do; nothing happens if it is gone, or if that is known."""
    connection.execute(
        "UPDATE constellations SET next_due_at = ?1 WHERE id = ?2 AND next_due_at IS NOT ?1",
        (next_due_at, constellation_id),
    )


def dues(connection: Connection) -> dict[str, str]:
    """Return when constellations have something to do, by id; only those that have."""
    return dict(fetch_all(connection, "SELECT id, next_due_at FROM constellations WHERE next_due_at IS NOT NULL"))
