"""Assignments (table `coordination_tasks`): work that agents share out, each done by the one that claims it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from pattern_db.connection import Connection, Table
from pattern_db.enums import AssignmentStatus, Priority
from pattern_db.errors import RowConflict

OPEN_MAX, ENDED_KEPT = 1_000, 1_000  # of one constellation; of those that ended the newest
_PRIORITIES = tuple(Priority)


@dataclass(frozen=True, slots=True)
class AssignmentRow:
    """An assignment. `assigned_to` None: for the first agent that claims it, also if that was deleted."""

    id: str
    description: str
    assigned_to: str | None
    status: AssignmentStatus
    priority: Priority
    created_at: str
    updated_at: str


_ASSIGNMENTS = Table(
    "coordination_tasks",
    AssignmentRow,
    "assignment {}",
    types={"status": AssignmentStatus, "priority": lambda rank: _PRIORITIES[rank]},
)
get = _ASSIGNMENTS.get


def page(connection: Connection, limit: int, before: str | None = None) -> list[AssignmentRow]:
    """Return assignments, newest first; only those before an id, if given."""
    return _ASSIGNMENTS.select(connection, "WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2", (before, limit))


def next_for(connection: Connection, agent_id: str, *, but: str = "") -> AssignmentRow | None:
    """Return what an agent is to do next, except `but`: its own first, then by priority, then the oldest."""
    return _ASSIGNMENTS.first(
        connection,
        "WHERE status IN ('pending', 'in_progress') AND id <> ?2 AND (assigned_to IS NULL OR (assigned_to = ?1"
        " AND status = 'pending')) ORDER BY assigned_to IS NULL, priority DESC, id LIMIT 1",
        (agent_id, but),
    )


def put(connection: Connection, row: AssignmentRow, before: AssignmentRow | None = None) -> None:
    """Store a new assignment, or one that still is as it was `before`; delete the oldest ended ones.

    Raises:
        RowConflict: too many are open, or another change was first.
        apsw.ConstraintError: there is no such agent (a `RowConflict` once translated).
    """
    if before is not None and get(connection, row.id) != before:
        raise RowConflict(f"another agent claimed the assignment {row.id}, or it was changed, just now; try again")
    stored = astuple(replace(row, priority=_PRIORITIES.index(row.priority)))  # type: ignore[arg-type]  # its column
    connection.execute(
        f"INSERT OR REPLACE INTO coordination_tasks ({_ASSIGNMENTS.columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", stored
    )
    if _ASSIGNMENTS.count(connection, "WHERE status IN ('pending', 'in_progress')") > OPEN_MAX:
        raise RowConflict(f"{OPEN_MAX:,} assignments are open, their limit; cancel some")
    ended = "SELECT id FROM coordination_tasks WHERE status IN ('completed', 'cancelled') ORDER BY id DESC"
    connection.execute(f"DELETE FROM coordination_tasks WHERE id IN ({ended} LIMIT -1 OFFSET ?)", (ENDED_KEPT,))
