"""Tasks of agents and of the whole constellation."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTask:
    """A task that is not done. `agent_id` None is the whole constellation's; `priority` 0 (low) to 3 (urgent)."""

    id: str
    agent_id: str | None
    title: str
    status: str
    priority: int
    due_at: str | None


def open_of(connection: Connection, agent_id: str, limit: int) -> list[OpenTask]:
    """The agent's open tasks and the constellation's: the most urgent first, then by when they are due and made."""
    rows = connection.execute(
        "SELECT id, agent_id, title, status, priority, due_at FROM tasks"
        " WHERE status IN ('pending', 'in_progress') AND (agent_id = ?1 OR agent_id IS NULL)"
        " ORDER BY priority DESC, due_at IS NULL, due_at, created_at, id LIMIT ?2",
        (agent_id, limit),
    )
    return [
        OpenTask(id=row[0], agent_id=row[1], title=row[2], status=row[3], priority=row[4], due_at=row[5])
        for row in rows
    ]


def title_of(connection: Connection, task_id: str) -> str | None:
    """The task's title; None if there is no such task any more."""
    row = connection.execute("SELECT title FROM tasks WHERE id = ?", (task_id,)).fetchone()
    return None if row is None else str(row[0])
