"""Reminders of calendar events, each exactly once or visibly not at all.

A reminder that fires is its note on the occurrence, an event for people, the turn of the agent that the event names as
accepted, and the timer of the event's next reminder, in one transaction. What was missed while the server was down is
decided by the event's policy, as for schedules.
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
from pattern_core.schedule.schedules import Accepting, send
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import marked
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import OccurrenceStatus
from pattern_db.errors import RowNotFound
from pattern_db.tables import calendars
from pattern_db.tables.calendars import CalendarEventRow, EventOccurrenceRow
from pattern_db.tables.timers import TimerRow

REMINDER = "calendar.reminder"
SOURCE = "calendar"
SENDER = "system:reminder"  # the least trust: agents write events, too, and others send calendars


@dataclass(frozen=True, slots=True)
class Reminders:
    """Reminds people and agents of what is in the calendar."""

    _storage: Storage
    _roster: Roster
    _calendar: Calendar
    _accepting: Accepting

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
            fired = self._decided(one, OccurrenceStatus.FIRED, turn_id=turn_id)
            calendars.note_reminder(connection, fired if error is None else self._refused(one, error))
            return []

        try:
            agent, content = await self._roster.get(row.agent_id), message_of(row, one)
            send(self._accepting, agent, work, content=content, sender=SENDER, source=SOURCE, about=about, note=note)
        except PatternError as error:  # such as an archived agent
            work.store(calendars.note_reminder, self._refused(one, error))

    def _refused(self, one: CalendarOccurrence, error: PatternError) -> EventOccurrenceRow:
        return self._decided(one, OccurrenceStatus.SKIPPED, reason=error.message)

    def _decided(self, one: CalendarOccurrence, reminder: OccurrenceStatus, **more: Any) -> EventOccurrenceRow:
        now, own_id, at = self._storage.now(), self._storage.ids.new("occ"), one.nominal_at
        return EventOccurrenceRow(own_id, one.event_id, at, at, now, reminder=reminder, reminded_at=now, **more)


def message_of(row: CalendarEventRow, one: CalendarOccurrence) -> str:
    """Return what an agent reads; what was imported is marked as data."""
    details = "\n".join(filter(None, (one.title, one.location, row.description, one.notes)))
    content = details if row.external_source is None else marked(details, "the calendar")
    return f"Reminder of an event in the calendar, {one.local} ({one.zone}):\n\n{content}"
