"""Agents that are started when something is due: reminders of calendar events, and tasks.

The removed timer, the accepted message and what is stored of it are one transaction, so each start is made exactly
once, or visibly not at all. Reminders that were missed while the server was down are decided by the event's policy, as
for schedules. If a task's agent cannot be sent the message, the task is blocked until someone sets it to pending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio

from pattern_core.agents import Roster
from pattern_core.calendars import Calendar
from pattern_core.errors import InvalidInput, PatternError
from pattern_core.events import Event
from pattern_core.occurrences import CalendarOccurrence, reminders
from pattern_core.schedule.plan import SchedulePlan, chosen
from pattern_core.schedule.schedules import Accepting, Note, send
from pattern_core.tasks import CHANGED, Task, event_data
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import marked
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import OccurrenceStatus, TaskStatus
from pattern_db.errors import RowNotFound
from pattern_db.tables import calendars, tasks
from pattern_db.tables.calendars import CalendarEventRow, EventOccurrenceRow
from pattern_db.tables.timers import TimerRow

REMINDER = "calendar.reminder"


@dataclass(frozen=True, slots=True)
class _Starter:
    _storage: Storage
    _roster: Roster
    _accepting: Accepting

    async def _start(self, agent_id: str, work: UnitOfWork, note: Note, **message: Any) -> None:
        """Have the agent sent a message, as `send`; `note` is given the error also where the agent cannot have one."""
        try:
            send(self._accepting, await self._roster.get(agent_id), work, note=note, **message)
        except PatternError as error:  # such as an archived agent
            refusal = error
            work.store_and_tell(lambda connection: note(connection, "", refusal))


@dataclass(frozen=True, slots=True)
class Reminders(_Starter):
    """Reminds people and agents of what is in the calendar."""

    _calendar: Calendar

    async def fire(self, timer: TimerRow, work: UnitOfWork) -> None:
        """Add the reminders of an event that are due to the transaction that removes its timer."""
        database, now_ms = self._storage.database, self._storage.clock.now_ms()
        try:
            row, _ = await database.read(calendars.find, timer.ref)
        except RowNotFound:
            return
        passed_ms = unix_ms(timer.payload or timer.due_at)
        changed = await database.read(calendars.changed, row.id, iso(0))
        try:
            found = await trio.to_thread.run_sync(reminders, row, changed, passed_ms, now_ms)
        except InvalidInput as error:  # the machine does not know its time zone any more
            work.event(REMINDER, {"event_id": row.id, "title": row.title, "reason": error.message})
            return
        policy = SchedulePlan(missed=row.missed)  # type: ignore[arg-type]  # one of the table's
        fires, _ = chosen(policy, row.id, [at for at, _ in found.due], now_ms)
        for place, (at_ms, one) in enumerate(found.due):
            if at_ms in fires:
                await self._remind(row, one, work)
            else:
                more = f"; so were {found.older} before" if place == 0 and found.older else ""
                reason = f"the server was not running, or the clock was set forward{more}"
                work.store(calendars.note_reminder, self._decided(one, OccurrenceStatus.MISSED, reason=reason))
        self._calendar.set_timer(row, found.next_ms, max(now_ms, passed_ms), work)

    async def _remind(self, row: CalendarEventRow, one: CalendarOccurrence, work: UnitOfWork) -> None:
        about = {"event_id": row.id, "title": one.title, "nominal_at": one.nominal_at, "starts_at": one.starts_at}
        work.event(REMINDER, about)
        if row.agent_id is None:
            work.store(calendars.note_reminder, self._decided(one, OccurrenceStatus.FIRED))
            return

        def note(connection: Connection, turn_id: str, error: PatternError | None) -> list[Event]:
            if error is None:
                decided = self._decided(one, OccurrenceStatus.FIRED, turn_id=turn_id)
            else:
                decided = self._decided(one, OccurrenceStatus.SKIPPED, reason=error.message)
            calendars.note_reminder(connection, decided)
            return []

        # The sender has the least trust: agents write events, too, and others send calendars.
        message = {"content": event_message(row, one), "sender": "system:reminder", "source": "calendar"}
        await self._start(row.agent_id, work, note, **message, about=about)

    def _decided(self, one: CalendarOccurrence, reminder: OccurrenceStatus, **more: Any) -> EventOccurrenceRow:
        now, own_id, at = self._storage.now(), self._storage.ids.new("occ"), one.nominal_at
        return EventOccurrenceRow(own_id, one.event_id, at, at, now, reminder=reminder, reminded_at=now, **more)


def event_message(row: CalendarEventRow, one: CalendarOccurrence) -> str:
    """Return what an agent reads when it is reminded; what was imported is marked as data."""
    details = "\n".join(filter(None, (one.title, one.location, row.description, one.notes)))
    content = details if row.external_source is None else marked(details, "the calendar")
    return f"Reminder of an event in the calendar, {one.local} ({one.zone}):\n\n{content}"


@dataclass(frozen=True, slots=True)
class TaskStarts(_Starter):
    """Starts agents with the tasks that are due to start; these are in progress then."""

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
            now = self._storage.now()
            changes: dict[str, object] = {"status": TaskStatus.IN_PROGRESS, "started_at": now}
            if error is not None:
                reason = f"its agent could not be started: {error.message}"
                changes = {"status": TaskStatus.BLOCKED, "blocked_reason": reason}
            tasks.update(connection, task.id, {**changes, "updated_at": now, "changed_by": "system"})
            return []

        about = {"task_id": task.id, "title": task.title, "scheduled_at": task.scheduled_at}
        # The sender has the least trust: agents write tasks, too, when anyone asks them.
        message = {"content": task_message(task), "sender": "system:task", "source": "task"}
        await self._start(task.agent_id, work, note, **message, about=about)


def task_message(task: Task) -> str:
    """Return what the agent reads when its task is due to start."""
    due = "" if task.due_at is None else f", due {task.due_at}"
    parts = [f"It is time for your task: {task.title}\n({task.priority} priority{due}; its id is {task.id})"]
    return "\n\n".join([*parts, *(text for text in (task.description, task.notes) if text)])
