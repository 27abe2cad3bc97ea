"""Tasks of agents and of the whole constellation: a forest, in which no task is below itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table, Value, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, Priority, SearchKind, TaskStatus
from pattern_db.errors import RowConflict
from pattern_db.tables import embeddings, timers
from pattern_db.tables.timers import TimerRow

TIMER = "task"  # the kind of timer that starts the agent of a task
TASKS_MAX = 10_000  # of one constellation
DEPTH_MAX = 20  # tasks within one another
PACE_OF = 50  # finished tasks with estimates that are compared

ENDED = (TaskStatus.COMPLETED, TaskStatus.CANCELLED)
STARTABLE = tuple(status for status in TaskStatus if status not in (*ENDED, TaskStatus.BLOCKED))
_PRIORITIES = tuple(Priority)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Something to do. `agent_id` None is the whole constellation's.

    At `scheduled_at` its agent is started with it, `started_at` says when that happened. `changed_by` is the author of
    the newest change. `session_id` is that of a program, if the task is only for that.
    """

    id: str
    title: str
    created_at: str
    updated_at: str
    changed_by: str = ""
    agent_id: str | None = None
    parent_task_id: str | None = None
    description: str | None = None
    status: TaskStatus = TaskStatus.PENDING
    blocked_reason: str | None = None
    priority: Priority = Priority.MEDIUM
    due_at: str | None = None
    scheduled_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    tags: Sequence[str] | None = None
    estimated_minutes: int | None = None
    actual_minutes: int | None = None
    notes: str | None = None
    workspace: str | None = None
    session_id: str | None = None


_TASKS = Table(
    "tasks",
    TaskRow,
    "task {}",
    json=("tags",),
    types={"status": TaskStatus, "priority": lambda rank: _PRIORITIES[rank]},
)
get = _TASKS.get
_OWNER = f"coalesce(agent_id, '{CONSTELLATION_OWNER}')"
_RANK = "-priority, coalesce(due_at, '~'), row"  # '~' is greater than all digits


def create(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Add tasks.

    Raises:
        RowNotFound: the task that one is to be below does not exist.
        RowConflict: there are too many, or they would be nested too deeply.
    """
    for row in rows:
        values = _stored({field.name: getattr(row, field.name) for field in fields(row)})
        marks = ", ".join("?" * len(values))
        _check_place(connection, row.id, row.parent_task_id)
        connection.execute(f"INSERT INTO tasks ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
        _set_timer(connection, row.id)
    if _TASKS.count(connection) > TASKS_MAX:
        raise RowConflict(f"a constellation has at most {TASKS_MAX} tasks; delete some that are done")


def update(connection: Connection, task_id: str, changes: Mapping[str, Any]) -> None:
    """Store values, by field, and set or remove the timer that starts its agent.

    Raises:
        RowNotFound: it, or the task that it is to be below, does not exist.
        RowConflict: it would be below itself, or nested too deeply.
    """
    if "parent_task_id" in changes:
        _check_place(connection, task_id, changes["parent_task_id"])
    _TASKS.change(connection, task_id, _stored(changes))
    _set_timer(connection, task_id)


def _stored(values: Mapping[str, Any]) -> dict[str, Value]:
    stored = dict(values)
    if "priority" in stored:
        stored["priority"] = _PRIORITIES.index(stored["priority"])
    if stored.get("tags") is not None:
        stored["tags"] = to_json(list(stored["tags"]))
    return stored


def _check_place(connection: Connection, task_id: str, parent_id: str | None) -> None:
    if parent_id is None:
        return
    get(connection, parent_id)
    above = fetch_all(
        connection,
        "WITH RECURSIVE above (id) AS (VALUES (?) UNION ALL SELECT t.parent_task_id FROM above JOIN tasks AS t"
        " ON t.id = above.id WHERE t.parent_task_id IS NOT NULL) SELECT id FROM above",
        (parent_id,),
    )
    if (task_id,) in above:
        raise RowConflict(f"the task {task_id} would be below itself; choose another parent")
    height = max(depth for _, depth in _below(connection, task_id))
    if len(above) + height > DEPTH_MAX:
        raise RowConflict(f"tasks are nested at most {DEPTH_MAX} deep; choose a parent further up")


def _below(connection: Connection, task_id: str) -> list[tuple[str, int]]:
    """Return the ids of the task and of all below it, each with its depth, from 1."""
    return fetch_all(
        connection,
        "WITH RECURSIVE below (id, depth) AS (VALUES (?, 1) UNION ALL SELECT t.id, depth + 1 FROM below"
        " JOIN tasks AS t ON t.parent_task_id = below.id) SELECT id, depth FROM below",
        (task_id,),
    )


def _set_timer(connection: Connection, task_id: str) -> None:
    """Set the timer that starts the task's agent, or remove it where there is nothing to start."""
    row = get(connection, task_id)
    if row.agent_id and row.scheduled_at and row.started_at is None and row.status in STARTABLE:
        timers.put(connection, TimerRow(TIMER, task_id, row.scheduled_at))
    else:
        timers.delete(connection, TIMER, task_id)


def block_starts(connection: Connection, reason: str) -> None:
    """Block every task that would start its agent."""
    connection.execute(
        "UPDATE tasks SET status = 'blocked', blocked_reason = ? WHERE id IN (SELECT ref FROM timer WHERE kind = ?)",
        (reason, TIMER),
    )
    connection.execute("DELETE FROM timer WHERE kind = ?", (TIMER,))


def delete(connection: Connection, task_id: str) -> None:
    """Delete a task with those below it.

    Raises:
        RowNotFound: there is no such task.
    """
    gone = _below(connection, task_id)
    _TASKS.delete(connection, task_id)
    for ref, _depth in gone:
        timers.delete(connection, TIMER, ref)
        embeddings.delete(connection, SearchKind.TASK, ref)


def title_of(connection: Connection, task_id: str) -> str | None:
    """Return the task's title; None if the task no longer exists."""
    found = _TASKS.first(connection, "WHERE id = ?", (task_id,))
    return None if found is None else found.title


def page(
    connection: Connection,
    limit: int,
    *,
    owners: Sequence[str] | None = None,
    statuses: Sequence[TaskStatus] | None = None,
    parent_id: str | None = None,
    due_before: str | None = None,
    workspace: str | None = None,
    after: str | None = None,
) -> list[TaskRow]:
    """Return the first tasks: the most urgent first, then by due time, then in the order in which they were created.

    Only those of the owners (agents, or `_constellation_`), with these statuses, directly below a task, due before a
    time, of a workspace, and behind the task `after`.

    Raises:
        RowNotFound: there is no task `after`.
    """
    if after is not None:
        get(connection, after)
    return _TASKS.select(
        connection,
        f"WHERE (?1 IS NULL OR {_OWNER} IN (SELECT value FROM json_each(?1)))"
        " AND (?2 IS NULL OR status IN (SELECT value FROM json_each(?2)))"
        " AND (?3 IS NULL OR parent_task_id = ?3) AND (?4 IS NULL OR due_at < ?4)"
        f" AND (?5 IS NULL OR ({_RANK}) > (SELECT {_RANK} FROM tasks WHERE id = ?5))"
        f" AND (?7 IS NULL OR workspace = ?7) ORDER BY {_RANK} LIMIT ?6",
        (_array(owners), _array(statuses), parent_id, due_before, after, limit, workspace),
    )


def _array(values: Sequence[str] | None) -> str | None:
    return None if values is None else to_json(list(values))


def pressing(connection: Connection, agent_id: str, limit: int) -> list[TaskRow]:
    """Return what the agent and the constellation have to do now, in the order of `page`, without what is put off."""
    return _TASKS.select(
        connection,
        "WHERE status IN ('pending', 'in_progress', 'blocked') AND (agent_id = ?1 OR agent_id IS NULL)"
        f" ORDER BY {_RANK} LIMIT ?2",
        (agent_id, limit),
    )


def pace(connection: Connection, agent_id: str) -> float | None:
    """Return how many times as long as estimated the agent's newest finished tasks lasted; None if no
    task has both numbers.
    """
    found: float | None = connection.execute(
        "SELECT sum(actual_minutes) * 1.0 / sum(estimated_minutes) FROM (SELECT actual_minutes, estimated_minutes"
        " FROM tasks WHERE agent_id = ? AND status = 'completed' AND actual_minutes IS NOT NULL"
        " AND estimated_minutes > 0 ORDER BY completed_at DESC LIMIT ?)",
        (agent_id, PACE_OF),
    ).get
    return found
