"""Timers: moments at which the constellation has something to do, one for each thing."""

from __future__ import annotations

from typing import NamedTuple

from pattern_db.connection import Connection, Table
from pattern_db.errors import RowConflict


class TimerRow(NamedTuple):
    """When something is due. `ref` is the id of what the timer is about; the meaning of `payload` is the kind's."""

    kind: str
    ref: str
    due_at: str
    payload: str | None = None


_TIMERS = Table("timer", TimerRow)


def put(connection: Connection, row: TimerRow) -> None:
    """Set a timer, or move the one of the same kind and `ref`."""
    moved = "ON CONFLICT (kind, ref) DO UPDATE SET due_at = excluded.due_at, payload = excluded.payload"
    _TIMERS.insert(connection, [row], moved)


def take(connection: Connection, row: TimerRow) -> None:
    """Remove a timer that fires.

    Raises:
        RowConflict: it was moved or removed since it was read.
    """
    connection.execute("DELETE FROM timer WHERE kind = ? AND ref = ? AND due_at = ? AND payload IS ?", row)
    if connection.changes() != 1:
        raise RowConflict(f"the timer of {row.kind} {row.ref} has changed")


def delete(connection: Connection, kind: str, ref: str) -> None:
    """Remove a timer; nothing happens if there is none."""
    connection.execute("DELETE FROM timer WHERE kind = ? AND ref = ?", (kind, ref))


def due(connection: Connection, now: str, limit: int) -> list[TimerRow]:
    """Return the timers that are due at `now`, the first ones first."""
    return _TIMERS.select(connection, "WHERE due_at <= ? ORDER BY due_at, kind, ref LIMIT ?", (now, limit))


def first_due(connection: Connection) -> str | None:
    """Return when the next timer is due; None without any."""
    first: str | None = connection.execute("SELECT min(due_at) FROM timer").get
    return first


def outlook(connection: Connection, kind: str) -> tuple[str | None, int]:
    """Return when the next timer is due (None without any), and how many of one kind there are."""
    return first_due(connection), _TIMERS.count(connection, "WHERE kind = ?", (kind,))
