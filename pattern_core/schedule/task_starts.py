"""Tasks that start their agent: at `scheduled_at` the agent gets a message, and the task is in progress.

The removed timer, the accepted message and the task's new state are one transaction. Where the agent cannot be sent the
message, the task is blocked with the reason; it starts as soon as someone sets it to pending.
"""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.agents import Roster
from pattern_core.errors import PatternError
from pattern_core.events import Event
from pattern_core.schedule.schedules import Accepting, send
from pattern_core.tasks import CHANGED, Task, event_data
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import TaskStatus
from pattern_db.errors import RowNotFound
from pattern_db.tables import tasks
from pattern_db.tables.timers import TimerRow

SOURCE = "task"
SENDER = "system:task"  # the least trust: agents write tasks, too, when anyone asks them


@dataclass(frozen=True, slots=True)
class TaskStarts:
    """Starts agents with the tasks that are due to start."""

    _storage: Storage
    _roster: Roster
    _accepting: Accepting

    async def start(self, timer: TimerRow, work: UnitOfWork) -> None:
        """Add the start of a task to the transaction that removes its timer."""
        try:
            task = await self._storage.database.read(tasks.get, timer.ref)
        except RowNotFound:
            return
        if task.agent_id is None:  # the agent was deleted, and the task is the constellation's
            return
        work.event(CHANGED, event_data(task))

        def note(connection: Connection, _turn_id: str, error: PatternError | None) -> list[Event]:
            if error is None:
                self._change(connection, task, status=TaskStatus.IN_PROGRESS, started_at=self._storage.now())
            else:
                self._block(connection, task, error)
            return []

        about = {"task_id": task.id, "title": task.title, "scheduled_at": task.scheduled_at}
        try:
            agent, content = await self._roster.get(task.agent_id), message_of(task)
            send(self._accepting, agent, work, content=content, sender=SENDER, source=SOURCE, about=about, note=note)
        except PatternError as error:  # such as an archived agent
            work.store(self._block, task, error)

    def _block(self, connection: Connection, task: Task, error: PatternError) -> None:
        reason = f"its agent could not be started: {error.message}"
        self._change(connection, task, status=TaskStatus.BLOCKED, blocked_reason=reason)

    def _change(self, connection: Connection, task: Task, **changes: object) -> None:
        tasks.update(connection, task.id, {**changes, "updated_at": self._storage.now(), "changed_by": "system"})


def message_of(task: Task) -> str:
    """Return what the agent reads when its task is due to start."""
    due = "" if task.due_at is None else f", due {task.due_at}"
    parts = [f"It is time for your task: {task.title}\n({task.priority} priority{due}; its id is {task.id})"]
    return "\n\n".join([*parts, *(text for text in (task.description, task.notes) if text)])
