"""Recent activity of a constellation's agents: turns, and events for all agents."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json, iso, unix_ms
from pattern_db.connection import Connection, Table

TURNS_REACH = 500  # newest turns that are read, so that a file with years of them is as fast
WORDS_CHARS = 300  # read of a turn's first message
NOTED_KEPT = 10_000  # newest noted events …
NOTED_DAYS = 90  # … and how old they may be
TRIM_EVERY = 100  # events: so many more may be kept for a time
# What a group answered is not news to its members: each is shown what it missed with its next question.
IS_NEWS = (
    "NOT EXISTS (SELECT 1 FROM group_members AS m WHERE m.group_id = e.details ->> '$.group_id' AND m.agent_id = ?1)"
)
LOW, MEDIUM, HIGH = 0, 1, 2  # importance: where there are too many to show, the least important ones are left out


@dataclass(slots=True)
class TurnActivity:
    """A started turn. `words` is the beginning of its message; `sender` as in the turn.

    `status` and `agent_name` are updated while it is in memory.
    """

    id: str
    agent_id: str
    agent_name: str
    sender: str
    status: str
    started_at: str
    words: str


@dataclass(frozen=True, slots=True)
class NotedActivity:
    """An event for all agents; `agent_id` and `agent_name` are None for the system's. `details` is JSON."""

    id: str
    agent_id: str | None
    agent_name: str | None
    event_type: str
    details: Json
    timestamp: str


@dataclass(frozen=True, slots=True)
class ActivityEvent:
    """An event for all agents as it is stored; `agent_id` None is the system's or a person's."""

    id: str
    timestamp: str
    agent_id: str | None
    event_type: str
    details: Json
    importance: int = MEDIUM


_TURNS = Table(
    "turn",
    TurnActivity,
    source="turn AS t JOIN agents AS a ON a.id = t.agent_id",
    columns={
        "id": "t.id",
        "agent_name": "a.name",
        "status": "t.status",
        "words": f"coalesce((SELECT substr(content, 1, {WORDS_CHARS}) FROM messages WHERE agent_id = t.agent_id"
        " AND position = t.batch_id AND is_deleted = 0), '')",
    },
)
_NOTED = Table(
    "activity_events",
    NotedActivity,
    source="activity_events AS e LEFT JOIN agents AS a ON a.id = e.agent_id",
    columns={"id": "e.id", "agent_name": "a.name"},
    json=("details",),
)
_EVENTS = Table("activity_events", ActivityEvent, json=("details",))


def newest_turns(connection: Connection, limit: int) -> list[TurnActivity]:
    """Return the newest started turns of all agents, oldest first; not those of sessions."""
    found = _TURNS.select(
        connection,
        "WHERE t.key > (SELECT coalesce(max(key), 0) FROM turn) - ? AND t.started_at IS NOT NULL"
        " AND t.session_id IS NULL ORDER BY t.key DESC LIMIT ?",
        (TURNS_REACH, limit),
    )
    return found[::-1]


def turn(connection: Connection, turn_id: str) -> TurnActivity | None:
    """Return the activity of one turn; None if it does not exist or was never started."""
    return _TURNS.first(connection, "WHERE t.id = ? AND t.started_at IS NOT NULL", (turn_id,))


def note(connection: Connection, event: ActivityEvent) -> None:
    """Store an event for all agents, and delete those that are too old or too many."""
    _EVENTS.insert(connection, [event])
    too_old = iso(unix_ms(event.timestamp) - NOTED_DAYS * 86_400_000)
    connection.execute("DELETE FROM activity_events WHERE timestamp < ?", (too_old,))
    if connection.last_insert_rowid() % TRIM_EVERY == 0:  # to find the last one to keep, all are counted
        connection.execute(
            "DELETE FROM activity_events WHERE timestamp < (SELECT timestamp FROM activity_events"
            " ORDER BY timestamp DESC LIMIT 1 OFFSET ?)",
            (NOTED_KEPT - 1,),
        )


def noted_since(connection: Connection, agent_id: str, since: str, *, limit: int) -> list[NotedActivity]:
    """Return the most important noted events from `since` on that are news to an agent, of equal ones the newest;
    newest first.
    """
    found = _NOTED.select(
        connection,
        f"WHERE timestamp >= ?2 AND {IS_NEWS} ORDER BY importance DESC, timestamp DESC, e.id DESC LIMIT ?3",
        (agent_id, since, limit),
    )
    return sorted(found, key=lambda one: (one.timestamp, one.id), reverse=True)


def noted(connection: Connection, event_id: str) -> NotedActivity | None:
    """Return one noted event; None if there is none of that id."""
    return _NOTED.first(connection, "WHERE e.id = ?", (event_id,))
