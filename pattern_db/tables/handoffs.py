"""Notes that agents and people hand to an agent, or to the first one that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table, Values, fetch_all

READ_KEPT = 1_000  # newest notes that were read

Handed = tuple["HandoffRow", str | None]
"""A note, and the name of the agent that wrote it; None: a person, or an agent that was deleted."""


@dataclass(frozen=True, slots=True)
class HandoffRow:
    """A note. `to_agent` None: for any agent, until one claims it; `read_at` is when a prompt of that one showed it.

    `author` is `agent:<id>` or `user:<id>`; `from_agent` is None if it is a person, or was deleted.
    """

    id: str
    author: str
    content: str
    created_at: str
    from_agent: str | None = None
    to_agent: str | None = None
    read_at: str | None = None


_NOTES = Table("handoff_notes", HandoffRow, "note {}")
delete = _NOTES.delete


def add(connection: Connection, row: HandoffRow) -> None:
    """Add a note, and delete the oldest read ones beyond `READ_KEPT`.

    Raises:
        apsw.ConstraintError: its receiver does not exist (a `RowConflict` once translated).
    """
    _NOTES.insert(connection, [row])
    connection.execute(
        "DELETE FROM handoff_notes WHERE id IN"
        " (SELECT id FROM handoff_notes WHERE read_at IS NOT NULL ORDER BY id DESC LIMIT -1 OFFSET ?)",
        (READ_KEPT,),
    )


def count_unread(connection: Connection, to_agent: str | None) -> int:
    """Return how many unread notes there are for an agent, or with None for any."""
    return _NOTES.count(connection, "WHERE to_agent IS ? AND read_at IS NULL", (to_agent,))


def page(
    connection: Connection, limit: int, *, before: str | None = None, to_agent: str | None = None, unread: bool = False
) -> list[HandoffRow]:
    """Return notes, newest first: before an id, for one agent, unread ones, if given."""
    return _NOTES.select(
        connection,
        "WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR to_agent = ?2) AND (NOT ?3 OR read_at IS NULL)"
        " ORDER BY id DESC LIMIT ?4",
        (before, to_agent, unread, limit),
    )


def claim(connection: Connection, agent_id: str, limit: int) -> list[Handed]:
    """Return the agent's oldest unread notes; those for any agent, except its own, are for this one from now on."""
    connection.execute(
        "UPDATE handoff_notes SET to_agent = ?1 WHERE to_agent IS NULL AND id IN (SELECT id FROM handoff_notes"
        " WHERE read_at IS NULL AND (to_agent = ?1 OR (to_agent IS NULL AND from_agent IS NOT ?1))"
        " ORDER BY id LIMIT ?2)",
        (agent_id, limit),
    )
    return _handed(connection, "WHERE to_agent = ? AND read_at IS NULL ORDER BY id LIMIT ?", (agent_id, limit))


def find(connection: Connection, note_id: str) -> Handed | None:
    """Return a note; None if there is none of that id."""
    return next(iter(_handed(connection, "WHERE id = ?", (note_id,))), None)


def _handed(connection: Connection, rest: str, values: Values) -> list[Handed]:
    name = "(SELECT name FROM agents WHERE id = from_agent)"
    found = fetch_all(connection, f"SELECT {_NOTES.columns}, {name} FROM handoff_notes {rest}", values)
    return [(_NOTES.make(row), row[-1]) for row in found]


def mark_read(connection: Connection, ids: Sequence[str], read_at: str) -> None:
    """Note that a prompt shows these notes."""
    connection.execute(
        "UPDATE handoff_notes SET read_at = ? WHERE id IN (SELECT value FROM json_each(?))", (read_at, to_json([*ids]))
    )


def mark_unread(connection: Connection, turn: int) -> None:
    """Note that what the turn with the key `turn` was handed is no longer shown: its messages are discarded."""
    connection.execute(
        "UPDATE handoff_notes SET read_at = NULL FROM turn WHERE turn.key = ? AND to_agent = turn.agent_id"
        " AND read_at >= turn.started_at",
        (turn,),
    )
