"""Metadata of a constellation's file: its id, creation time and ownership epoch."""

from __future__ import annotations

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import RowConflict

CONSTELLATION_ID = "constellation_id"
CREATED_AT = "created_at"
EPOCH = "epoch"  # how many owners the file has had
DECISIONS = "decisions_version"  # how often decisions or their links have changed
EPOCH_OF_FILE = f"SELECT value FROM meta WHERE key = '{EPOCH}'"


def get(connection: Connection, key: str) -> str | None:
    """Return the value of `key`, or None."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def put(connection: Connection, key: str, value: str) -> None:
    """Store `value` under `key`, replacing an existing value."""
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def delete(connection: Connection, key: str) -> None:
    """Delete `key`, if there is one."""
    connection.execute("DELETE FROM meta WHERE key = ?", (key,))


def initialise(connection: Connection, constellation_id: str, created_at: str) -> None:
    """Store the id of a new file, once; repeated with the same id it changes nothing.

    Raises:
        RowConflict: the file belongs to another constellation: a database is in the wrong folder.
    """
    found = get(connection, CONSTELLATION_ID)
    if found == constellation_id:
        return
    if found is not None:
        raise RowConflict(f"this file is constellation {found}, not {constellation_id}; restore the right one")
    put(connection, CONSTELLATION_ID, constellation_id)
    put(connection, CREATED_AT, created_at)


def epoch(connection: Connection) -> int:
    """Return the newest epoch, 0 before the first."""
    return int(get(connection, EPOCH) or 0)


def next_epoch(connection: Connection) -> int:
    """Begin the next epoch and return it; unfinished work of an earlier owner is recognised by its number."""
    return count_up(connection, EPOCH)


def count_up(connection: Connection, key: str) -> int:
    """Add one to the number under `key`, which begins with 0, and return it."""
    row = fetch_all(
        connection,
        "INSERT INTO meta (key, value) VALUES (?, '1')"
        " ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) RETURNING value",
        (key,),
    )
    return int(str(row[0][0]))
