"""Accepted messages that wait for their turn; a row lives from T0 (accepted) to T1 (taken)."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.errors import Conflict


@dataclass(frozen=True, slots=True)
class InboxRow:
    """A waiting message: the key of its turn and the JSON payload `{"content", "source"?, "source_metadata"?, …}`."""

    turn: int
    payload: str


def put(connection: Connection, *, turn: int, agent_id: str, priority: int, payload: str, created_at: str) -> None:
    """Store a message for the agent. `priority` is 0 (low) to 3 (urgent); `payload` JSON text."""
    connection.execute(
        "INSERT INTO inbox (turn, agent_id, priority, payload, created_at) VALUES (?, ?, ?, ?, ?)",
        (turn, agent_id, priority, payload, created_at),
    )


def first(connection: Connection, agent_id: str) -> InboxRow | None:
    """The message to take next: highest priority first, then in order of acceptance."""
    row = connection.execute(
        "SELECT turn, payload FROM inbox WHERE agent_id = ? ORDER BY priority DESC, turn LIMIT 1", (agent_id,)
    ).fetchone()
    return None if row is None else InboxRow(*row)


def steering(connection: Connection, agent_id: str) -> list[InboxRow]:
    """The messages that shall join the agent's turn under way, oldest first."""
    rows = connection.execute(
        "SELECT turn, payload FROM inbox WHERE agent_id = ? AND payload ->> '$.policy' = 'steer' ORDER BY turn",
        (agent_id,),
    )
    return [InboxRow(*row) for row in rows]


def take(connection: Connection, turn: int) -> None:
    """Remove the message; its turn starts in the same transaction.

    Raises:
        Conflict: somebody took it already.
    """
    connection.execute("DELETE FROM inbox WHERE turn = ?", (turn,))
    if connection.changes() != 1:
        raise Conflict(f"the message of turn {turn} was taken already")


def take_first(connection: Connection, agent_id: str, turn: int) -> None:
    """As `take`, if the message is the one to take next: messages are taken in order, whoever hears of which first.

    Raises:
        Conflict: somebody took it already, or another message goes before it.
    """
    connection.execute(
        "DELETE FROM inbox WHERE turn = ?2"
        " AND turn = (SELECT turn FROM inbox WHERE agent_id = ?1 ORDER BY priority DESC, turn LIMIT 1)",
        (agent_id, turn),
    )
    if connection.changes() != 1:
        raise Conflict(f"the message of turn {turn} was taken already, or another one goes before it")


def count(connection: Connection, agent_id: str) -> int:
    """How many messages wait for the agent."""
    waiting: int = connection.execute("SELECT count(*) FROM inbox WHERE agent_id = ?", (agent_id,)).get
    return waiting
