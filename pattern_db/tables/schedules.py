"""Schedules, what happened at each of their nominal times, and what changed since one fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pattern_db.columns import Json, iso, to_json
from pattern_db.connection import Connection, Table, Values, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, OccurrenceStatus, ScheduleStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import timers

TIMER = "schedule"  # the kind of timer of the next occurrence
WOKEN = "woken"  # in place of the nominal time of a timer: what the schedule watches has changed
DEBOUNCE_S = 5.0  # between a change and the work of the group that watches it
OCCURRENCES_KEPT = 1_000  # of each schedule, the newest


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A message that an agent or a group gets by itself. `plan` says when, conditions compare with `seen`."""

    id: str
    name: str
    message: str
    created_at: str
    updated_at: str
    agent_id: str | None = None
    group_id: str | None = None
    status: ScheduleStatus = ScheduleStatus.ACTIVE
    plan: Mapping[str, Json] = field(default_factory=dict)
    seen: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OccurrenceRow:
    """What happened at a nominal time; `turn_id` is the turn of one that fired, `reason` why another did not.

    A row stands for `count` occurrences, of which it is the newest.
    """

    schedule_id: str
    nominal_at: str
    status: OccurrenceStatus
    at: str
    reason: str | None = None
    turn_id: str | None = None
    count: int = 1


class Changes(NamedTuple):
    """What happened since a turn with some key: the newest key, how many messages there were, how many of them to the
    target of a schedule, tokens, failed turns, the newest change of each named block by another than its target, what
    the files of each named folder are now, and how many open tasks became due since it fired, or another changed.
    """

    turn: int
    messages: int
    inbox: int
    tokens: int
    failed: int
    blocks: Mapping[str, int]
    folders: Mapping[str, str]
    tasks: int


_SCHEDULES = Table("schedule", ScheduleRow, "schedule {}", json=("plan", "seen"), types={"status": ScheduleStatus})
create, update, count = _SCHEDULES.create, _SCHEDULES.update, _SCHEDULES.count
_OCCURRENCES = Table("schedule_occurrence", OccurrenceRow, types={"status": OccurrenceStatus})


def find(connection: Connection, id_or_name: str) -> tuple[ScheduleRow, str | None]:
    """Return the schedule with this id or, if there is none, this name, and when it is due next.

    Raises:
        RowNotFound: there is none.
    """
    found = _with_due(connection, "WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1", (id_or_name,))
    if not found:
        raise RowNotFound(f"there is no schedule {id_or_name}")
    return found[0]


def list_all(connection: Connection) -> list[tuple[ScheduleRow, str | None]]:
    """Return all schedules by name, each with the time at which it is due next."""
    return _with_due(connection, "ORDER BY name")


def _with_due(connection: Connection, rest: str, values: Values = ()) -> list[tuple[ScheduleRow, str | None]]:
    due_at = f"(SELECT due_at FROM timer WHERE kind = '{TIMER}' AND ref = schedule.id)"
    found = fetch_all(connection, f"SELECT {_SCHEDULES.columns}, {due_at} FROM schedule {rest}", values)
    return [(_SCHEDULES.make(row), row[-1]) for row in found]


def pause_all(connection: Connection) -> None:
    """Pause every schedule."""
    connection.execute("UPDATE schedule SET status = 'paused' WHERE status = 'active'")
    connection.execute("DELETE FROM timer WHERE kind = ?", (TIMER,))


def wake(connection: Connection, label: str, owner: str, now: str) -> bool:
    """Make the schedules of groups that watch a block (`blackboard`) due soon; return whether there are any. Several
    changes make them due once.
    """
    connection.execute(
        "WITH soon(id, at) AS MATERIALIZED (SELECT s.id, strftime('%Y-%m-%dT%H:%M:%fZ', ?3, '+' ||"
        " coalesce(g.pattern_config ->> '$.debounce_s', ?4) || ' seconds') FROM agent_groups AS g JOIN schedule AS s"
        " ON s.group_id = g.id WHERE g.pattern_type = 'blackboard' AND g.pattern_config ->> '$.label' = ?1"
        " AND ?2 IN (g.id, ?5))"
        " UPDATE timer SET due_at = soon.at, payload = ?6 FROM soon WHERE kind = ?7 AND ref = soon.id"
        " AND due_at > soon.at",
        (label, owner, now, DEBOUNCE_S, CONSTELLATION_OWNER, WOKEN, TIMER),
    )
    return connection.changes() > 0


def set_seen(connection: Connection, schedule_id: str, seen: Mapping[str, Json]) -> None:
    """Store what the conditions compare with."""
    connection.execute("UPDATE schedule SET seen = ? WHERE id = ?", (to_json(dict(seen)), schedule_id))


def set_status(connection: Connection, schedule_id: str, status: ScheduleStatus) -> None:
    """Note whether it is due again."""
    connection.execute("UPDATE schedule SET status = ? WHERE id = ?", (status, schedule_id))


def delete(connection: Connection, schedule_id: str) -> None:
    """Delete a schedule with its occurrences; the turns that it started stay.

    Raises:
        RowNotFound: there is no such schedule.
    """
    _SCHEDULES.delete(connection, schedule_id)
    timers.delete(connection, TIMER, schedule_id)


def note_occurrence(connection: Connection, row: OccurrenceRow) -> None:
    """Store what happened at a nominal time, once; what a person was asked about may still become something else.

    Raises:
        RowConflict: it is stored already.
    """
    answered = (
        "ON CONFLICT DO UPDATE SET status = excluded.status, at = excluded.at, reason = excluded.reason,"
        " turn_id = excluded.turn_id WHERE schedule_occurrence.status = 'asked'"
    )
    _OCCURRENCES.insert(connection, [row], answered)
    if connection.changes() != 1:
        raise RowConflict(f"the schedule {row.schedule_id} was decided for {row.nominal_at} already")
    connection.execute(
        "DELETE FROM schedule_occurrence WHERE schedule_id = ?1 AND nominal_at < (SELECT nominal_at FROM"
        " schedule_occurrence WHERE schedule_id = ?1 ORDER BY nominal_at DESC LIMIT 1 OFFSET ?2)",
        (row.schedule_id, OCCURRENCES_KEPT - 1),
    )


def occurrences(
    connection: Connection, schedule_id: str, limit: int, *, before: str | None = None
) -> list[OccurrenceRow]:
    """Return what happened at the newest nominal times, newest first; only before one, if given."""
    return _OCCURRENCES.select(
        connection,
        "WHERE schedule_id = ?1 AND (?2 IS NULL OR nominal_at < ?2) ORDER BY nominal_at DESC LIMIT ?3",
        (schedule_id, before, limit),
    )


def changes(
    connection: Connection, row: ScheduleRow, since: int, labels: Sequence[str], names: Sequence[str], now: str
) -> Changes:
    """Return what happened since the turn with the key `since`, for the conditions of a schedule on blocks with these
    `labels` and folders with these `names` (or ids).

    What the system asked for does not count, nor do changes of a block by the schedule's own agent, or in turns for
    its own group.
    """
    owner = row.agent_id or row.group_id or ""
    counts: tuple[int, int, int, int, int] = connection.execute(
        "SELECT coalesce(max(key), ?1), count(*) FILTER (WHERE sender NOT LIKE 'system%'), count(*) FILTER"
        " (WHERE sender NOT LIKE 'system%' AND (agent_id = ?2 OR group_id = ?2 OR agent_id IN"
        " (SELECT agent_id FROM group_members WHERE group_id = ?2))), (SELECT"
        " coalesce(sum(input_tokens + output_tokens), 0) FROM usage WHERE turn > ?1),"
        " count(*) FILTER (WHERE status = 'failed') FROM turn WHERE key > ?1",
        (since, owner),
    ).get
    blocks: dict[str, int] = {}
    for label in labels:
        blocks[label] = connection.execute(
            "SELECT coalesce(max(h.id), 0) FROM memory_blocks AS b JOIN memory_block_history AS h ON h.block_id = b.id"
            " WHERE b.label = ?1 AND b.is_active = 1 AND h.changed_by <> 'agent:' || ?2"
            " AND NOT EXISTS (SELECT 1 FROM turn AS m JOIN turn AS g ON g.key = m.parent_turn"
            " WHERE m.id = h.cause ->> '$.turn' AND g.group_id = ?2) AND (b.agent_id IN (?2, ?3)"
            " OR b.id IN (SELECT block_id FROM shared_block_agents WHERE agent_id = ?2))",
            (label, owner, CONSTELLATION_OWNER),
        ).get
    folders: dict[str, str] = {}
    for name in names:
        folders[name] = connection.execute(  # a file that cannot be read is tried again and again
            "SELECT count(*) || ' ' || coalesce(sum(CAST(1000 * unixepoch(f.indexed_at, 'subsec') AS INTEGER)), 0)"
            " FROM folders AS o JOIN folder_files AS f ON f.folder_id = o.id JOIN file_index AS i ON i.file_id = f.id"
            " WHERE ?1 IN (o.id, o.name) AND i.status = 'indexed'",
            (name,),
        ).get
    tasks: int = connection.execute(
        "WITH own (id) AS (SELECT ?1 UNION SELECT agent_id FROM group_members WHERE group_id = ?1)"
        " SELECT count(*) FROM tasks WHERE status NOT IN ('completed', 'cancelled')"
        " AND (agent_id IS NULL OR agent_id IN (SELECT id FROM own)) AND ((due_at > ?2 AND due_at <= ?3)"
        " OR (updated_at > ?2 AND changed_by NOT IN (SELECT 'agent:' || id FROM own UNION SELECT 'system')))",
        (owner, iso(row.seen.get("at", 0)), now),
    ).get
    return Changes(*counts, blocks, folders, tasks)


def said_since(connection: Connection, position: str, newest: int) -> list[str]:
    """Return what people and agents said to agents from a position on, of the `newest` messages, newest first."""
    found = fetch_all(
        connection,
        "SELECT content FROM messages WHERE row > (SELECT coalesce(max(row), 0) FROM messages) - ?1 AND position >= ?2"
        " AND role = 'user' AND batch_type <> 'system_trigger' AND content IS NOT NULL AND is_deleted = 0"
        " ORDER BY row DESC",
        (newest, position),
    )
    return [str(content) for (content,) in found]
