"""What the agents of a constellation did lately: their turns, and events that were noted for everybody."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json, from_json
from pattern_db.connection import Connection, fetch_all

TURNS_REACH = 500  # newest turns that are looked at, so that a file with years of them costs no more
WORDS_CHARS = 300  # read of what a turn was about


@dataclass(slots=True, kw_only=True)
class TurnActivity:
    """A turn that was started. `words` is the beginning of the message that it answered; `sender` as in the turn.

    Whoever keeps it follows what happens: `status` and `agent_name` change.
    """

    id: str
    agent_id: str
    agent_name: str
    sender: str
    status: str
    started_at: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedActivity:
    """An event noted for everybody; `agent_id` and `agent_name` are None for the system's. `details` is JSON."""

    id: str
    agent_id: str | None
    agent_name: str | None
    event_type: str
    details: Json
    timestamp: str


def newest_turns(connection: Connection, limit: int) -> list[TurnActivity]:
    """The newest turns of all agents that were started, oldest first."""
    rows = fetch_all(
        connection,
        f"{_TURN} WHERE t.key > (SELECT coalesce(max(key), 0) FROM turn) - ? AND t.started_at IS NOT NULL"
        " ORDER BY t.key DESC LIMIT ?",
        (TURNS_REACH, limit),
    )
    return [_activity(row) for row in reversed(rows)]


def turn(connection: Connection, turn_id: str) -> TurnActivity | None:
    """The activity of one turn; None if there is no such turn, or it was never started."""
    row = connection.execute(f"{_TURN} WHERE t.id = ? AND t.started_at IS NOT NULL", (turn_id,)).fetchone()
    return None if row is None else _activity(row)


def noted_since(connection: Connection, since: str, *, limit: int) -> list[NotedActivity]:
    """The newest noted events from `since` on, newest first."""
    rows = connection.execute(
        f"{_NOTED} WHERE e.timestamp >= ? ORDER BY e.timestamp DESC, e.id DESC LIMIT ?", (since, limit)
    )
    return [_noted(row) for row in rows]


def noted(connection: Connection, event_id: str) -> NotedActivity | None:
    """One noted event; None if there is none of that id."""
    row = connection.execute(f"{_NOTED} WHERE e.id = ?", (event_id,)).fetchone()
    return None if row is None else _noted(row)


_TURN = (
    "SELECT t.id, t.agent_id, a.name, t.sender, t.status, t.started_at,"
    f" (SELECT substr(content, 1, {WORDS_CHARS}) FROM messages WHERE agent_id = t.agent_id AND position = t.batch_id"
    " AND is_deleted = 0) FROM turn AS t JOIN agents AS a ON a.id = t.agent_id"
)
_NOTED = (
    "SELECT e.id, e.agent_id, a.name, e.event_type, e.details, e.timestamp"
    " FROM activity_events AS e LEFT JOIN agents AS a ON a.id = e.agent_id"
)


def _activity(row: tuple[Json, ...]) -> TurnActivity:
    return TurnActivity(
        id=row[0],
        agent_id=row[1],
        agent_name=row[2],
        sender=row[3],
        status=row[4],
        started_at=row[5],
        words=row[6] or "",
    )


def _noted(row: tuple[Json, ...]) -> NotedActivity:
    return NotedActivity(
        id=row[0],
        agent_id=row[1],
        agent_name=row[2],
        event_type=row[3],
        details=from_json(row[4]),
        timestamp=row[5],
    )
