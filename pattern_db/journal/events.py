"""Events: what happened, in one order per constellation. (The calendar's events are `tables/events.py`.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table

DELTAS = ("text.delta", "reasoning.delta")  # streamed pieces of an answer and of its reasoning
# A range of rows instead of an index. A turn that has not ended has no last event, so its range is open.
_FIRST = "(SELECT first_event FROM turn WHERE key = ?1)"
_LAST = (
    "seq <= coalesce((SELECT last.seq FROM turn AS t JOIN event AS last ON last.seq >= t.first_event"
    " AND last.turn = t.key AND last.name = 'turn.' || t.status WHERE t.key = ?1 ORDER BY last.seq LIMIT 1),"
    " 0x7fffffffffffffff)"
)
_UP_TO_LAST = f"turn = ?1 AND {_LAST}"
# What members say and do is part of their group's turn; when their own turns begin and end is not.
_WITH_MEMBERS = (
    f"(turn = ?1 OR (turn IN (SELECT asked FROM group_ask WHERE turn = ?1) AND name NOT LIKE 'turn.%')) AND {_LAST}"
)


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as stored; `turn` is the turn's key, if it belongs to one, and `data` JSON text."""

    seq: int
    turn: int | None
    name: str
    data: str
    created_at: str


_EVENTS = Table("event", EventRow)


def append(connection: Connection, rows: Sequence[tuple[int | None, str, str]], *, created_at: str) -> int:
    """Store events `(turn key or None, name, JSON data)` after the newest and return the first one's sequence number.

    The numbers of one call are consecutive: SQLite gives each row the greatest key plus one.
    """
    if not rows:
        return latest(connection) + 1
    connection.executemany(
        "INSERT INTO event (turn, name, data, created_at) VALUES (?, ?, ?, ?)",
        [(turn, name, data, created_at) for turn, name, data in rows],
    )
    return connection.last_insert_rowid() - len(rows) + 1


def latest(connection: Connection) -> int:
    """Return the newest sequence number, 0 if there is none."""
    seq: int = connection.execute("SELECT coalesce(max(seq), 0) FROM event").get
    return seq


def after(
    connection: Connection, seq: int, *, limit: int, turn: int | None = None, with_members: bool = False
) -> list[EventRow]:
    """Return at most `limit` events after `seq`, oldest first; of one turn (by key) if given, of a group's turn
    `with_members` those of the turns that it led to.
    """
    of_turn = _WITH_MEMBERS if with_members else _UP_TO_LAST
    where = "seq > ?2" if turn is None else f"seq >= max(?2 + 1, {_FIRST}) AND {of_turn}"
    return _EVENTS.select(connection, f"WHERE {where} ORDER BY seq LIMIT ?3", (turn, seq, limit))


def named(connection: Connection, turn: int, names: Sequence[str]) -> list[EventRow]:
    """Return the events of a turn (by key) with one of these names, oldest first."""
    return _EVENTS.select(
        connection,
        f"WHERE seq >= {_FIRST} AND {_UP_TO_LAST} AND name IN (SELECT value FROM json_each(?2)) ORDER BY seq",
        (turn, to_json(list(names))),
    )


def prune_deltas(connection: Connection, turn: int) -> None:
    """Delete a turn's streamed pieces, once their messages are stored. Never deletes the newest event."""
    connection.execute(
        f"DELETE FROM event WHERE seq >= {_FIRST} AND {_UP_TO_LAST} AND name IN {DELTAS}"
        " AND seq < (SELECT max(seq) FROM event)",
        (turn,),
    )
