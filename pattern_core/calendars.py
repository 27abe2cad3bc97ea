"""The calendar of a constellation: events, their occurrences, and the timers of their reminders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice, takewhile
from typing import Any, TypeAlias

import trio

from pattern_core import ical
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.occurrences import (
    CHANGED_MAX,
    MINUTE_MS,
    SERIES,
    TEXT_CHARS_MAX,
    CalendarOccurrence,
    event_of,
    nominal_times,
    occurrence_of,
    occurrences,
    reminders,
)
from pattern_core.timers import Timers
from pattern_core.timing import DAY_MS
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.validation import column_time
from pattern_db.columns import TIME_CHARS, iso, unix_ms
from pattern_db.enums import EventOccurrenceStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import calendars, timers
from pattern_db.tables.calendars import CalendarEventRow, EventOccurrenceRow
from pattern_db.tables.timers import TimerRow

EVENTS_MAX = 10_000  # of one constellation
SHOWN_MS = 30 * DAY_MS  # from the beginning of a list without an end

CalendarEvent = CalendarEventRow
EventOccurrence = EventOccurrenceRow
Reminded: TypeAlias = tuple[CalendarEventRow, str | None]
"""An event, and when its next reminder is due; None without one."""


@dataclass(frozen=True, slots=True)
class CalendarImport:
    """What an import did: how many events it created and updated, and what it skipped, with the reason."""

    created: int
    updated: int
    skipped: Sequence[str]


@dataclass(eq=False)
class Calendar:
    """The calendar of one constellation."""

    _storage: Storage
    _timers: Timers

    async def get(self, id_or_title: str) -> Reminded:
        """Return the event with this id or title, and when its next reminder is due.

        Raises:
            NotFound: there is none.
            Conflict: several have the title.
        """
        try:
            return await self._storage.database.read(calendars.find, id_or_title)
        except RowNotFound:
            raise NotFound(f"there is no event {id_or_title!r} in the calendar") from None
        except RowConflict as error:
            raise Conflict(f"{error.message}; name one by its id") from None

    async def all(self) -> list[Reminded]:
        """Return all events in the order of their beginning, each with the time at which its next reminder is due."""
        return await self._storage.database.read(calendars.list_all)

    async def states(self, event_id: str, limit: int, *, before: str | None = None) -> list[EventOccurrenceRow]:
        """Return the newest occurrences that were changed or had a reminder, newest first; only before a nominal time,
        if given.
        """
        return await self._storage.database.read(calendars.occurrences, event_id, limit, before=before)

    async def between(
        self, since: str | None, until: str | None, limit: int, *, after: str | None = None
    ) -> list[CalendarOccurrence]:
        """Return the first occurrences in a time, by default the next 30 days; only those behind `after`, a `place_of`.

        Raises:
            InvalidInput: a time cannot be read.
        """
        first = column_time(since, "since") or self._storage.now()
        last = column_time(until, "until") or iso(unix_ms(first) + SHOWN_MS)
        rows = await self._storage.database.read(calendars.between, first, last)
        changed = await self._storage.database.read(calendars.changed, None, last)
        return await trio.to_thread.run_sync(_between, rows, changed, first, last, limit, after or "")

    async def create(self, fields: Mapping[str, Any], *, work: UnitOfWork | None = None) -> Reminded:
        """Create an event from the fields of its row.

        Raises:
            InvalidInput: a field is invalid, or there are too many events.
        """
        if await self._storage.database.read(calendars.count) >= EVENTS_MAX:
            raise InvalidInput(f"a calendar has at most {EVENTS_MAX} events; delete one")
        row = await trio.to_thread.run_sync(event_of, self._blank(), fields)  # a rule may be slow
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(calendars.create, row)
            unit.event("calendar.created", {"event_id": row.id, "title": row.title})
            return row, await self._await_next(row, (), unit)

    async def update(self, id_or_title: str, changes: Mapping[str, Any], *, work: UnitOfWork | None = None) -> Reminded:
        """Change the given fields of an event. If it begins or repeats differently, no occurrence differs any longer.

        Raises:
            NotFound: there is no such event.
            InvalidInput: a field is invalid.
        """
        before, _ = await self.get(id_or_title)
        row = await trio.to_thread.run_sync(event_of, before, {**changes, "updated_at": self._storage.now()})
        changed = await self._changed(row.id)
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(calendars.update, before, row)
            if any(getattr(row, name) != getattr(before, name) for name in SERIES):
                unit.store(calendars.reset, row.id)
                changed = _reset(changed)
            unit.event("calendar.changed", {"event_id": row.id, "title": row.title})
            return row, await self._await_next(row, changed, unit)

    async def delete(self, id_or_title: str, *, work: UnitOfWork | None = None) -> None:
        """Delete an event with its occurrences.

        Raises:
            NotFound: there is no such event.
        """
        row, _ = await self.get(id_or_title)
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(calendars.delete, row.id)
            unit.event("calendar.deleted", {"event_id": row.id, "title": row.title})

    async def change(
        self, id_or_title: str, nominal_at: str, changes: Mapping[str, Any], *, work: UnitOfWork | None = None
    ) -> CalendarOccurrence:
        """Move an occurrence of an event, or change its `status` or `notes`; one that moves has a new reminder.

        Raises:
            NotFound: there is no such event, or it has no such occurrence.
            InvalidInput: a time is invalid, or too many occurrences differ from the rule.
        """
        row, _ = await self.get(id_or_title)
        single = event_of(row, {"rrule": None, "starts_at": nominal_at, "ends_at": None})
        nominal, known = single.starts_at, {one.nominal_at: one for one in await self._changed(row.id)}
        if nominal not in known:
            first = await trio.to_thread.run_sync(next, nominal_times(row, unix_ms(nominal) - 1), None)
            if first != unix_ms(nominal):
                raise NotFound(f"{row.title!r} has no occurrence at {nominal}; name one by its `nominal_at`")
            if sum(one.is_changed for one in known.values()) >= CHANGED_MAX:
                raise InvalidInput(f"{CHANGED_MAX} occurrences differ from the rule; change the rule instead")
        if len(changes.get("notes") or "") > TEXT_CHARS_MAX:
            raise InvalidInput(f"`notes` has more than {TEXT_CHARS_MAX} characters; shorten it")
        state = known.get(nominal) or self._state(row, nominal)
        times = {name: changes[name] for name in ("starts_at", "ends_at") if changes.get(name) is not None}
        if times:
            moved = event_of(single, {"starts_at": state.starts_at, **times})
            if moved.starts_at != state.starts_at:
                state = replace(state, reminder=None, reminded_at=None, reason=None, turn_id=None)
            state = replace(state, starts_at=moved.starts_at, ends_at=moved.ends_at if "ends_at" in times else None)
        state = replace(state, **{name: changes[name] for name in ("status", "notes") if name in changes})
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(calendars.put_occurrence, state)
            unit.event("calendar.changed", {"event_id": row.id, "title": row.title, "nominal_at": nominal})
            await self._await_next(row, [*({**known, nominal: state}.values())], unit)
        return occurrence_of(row, state)

    async def export(self) -> str:
        """Return the calendar as iCalendar (RFC 5545), with all that was imported."""
        rows = [row for row, _ in await self.all()]
        changed = await self._storage.database.read(calendars.changed, None, iso(0))
        sources = await self._storage.database.read(calendars.sources)
        return await trio.to_thread.run_sync(ical.write, rows, changed, sources)

    async def import_text(self, text: str, zone: str | None = None) -> CalendarImport:
        """Create or update the events of an iCalendar file, known by their UID. Local times without a zone are those of
        `zone`, by default the file's. What cannot be read is skipped; the rest is stored in one transaction.

        Raises:
            InvalidInput: it is not an iCalendar file, there is no such zone, or there are too many events.
        """
        found, skipped = await trio.to_thread.run_sync(ical.read, text, zone)
        known = {row.external_id or row.id: row for row, _ in await self.all()}
        new = sum(one.uid not in known for one in found)
        if len(known) + new > EVENTS_MAX:
            raise InvalidInput(f"a calendar has at most {EVENTS_MAX} events; with these it had {len(known) + new}")
        work = UnitOfWork()
        for one in found:
            await self._take(one, known.get(one.uid), work)
        work.event("calendar.imported", {"created": new, "updated": len(found) - new, "skipped": len(skipped)})
        await self._storage.commit(work)
        return CalendarImport(new, len(found) - new, skipped)

    async def _take(self, one: ical.ReadEvent, known: CalendarEventRow | None, work: UnitOfWork) -> None:
        """Add an imported event to the transaction; reminders of it that were decided stay so."""
        row = known or replace(self._blank(), external_id=one.uid)
        row = replace(row, **{name: getattr(one.row, name) for name in ical.UNDERSTOOD}, external_source=ical.SOURCE)
        row = replace(row, updated_at=self._storage.now())
        states = {} if known is None else {state.nominal_at: state for state in _reset(await self._changed(known.id))}
        if known is None:
            work.store(calendars.create, row)
        else:
            work.store(calendars.update, known, row)
        work.store(calendars.reset, row.id)
        work.store(calendars.put_source, row.id, "", one.content)
        for change in one.changed:
            at = change.nominal_at
            states[at] = replace(states.get(at) or self._state(row, at), **change.fields)
            work.store(calendars.put_occurrence, states[at])
            work.store(calendars.put_source, row.id, at, change.content)
        await self._await_next(row, list(states.values()), work)

    def _blank(self) -> CalendarEventRow:
        now = self._storage.now()
        return CalendarEventRow(self._storage.ids.new("evt"), "", now, now, now)

    def _state(self, row: CalendarEventRow, nominal_at: str) -> EventOccurrenceRow:
        return EventOccurrenceRow(self._storage.ids.new("occ"), row.id, nominal_at, nominal_at, self._storage.now())

    async def _changed(self, event_id: str) -> list[EventOccurrenceRow]:
        return await self._storage.database.read(calendars.changed, event_id, iso(0))

    async def _await_next(
        self, row: CalendarEventRow, changed: Sequence[EventOccurrenceRow], work: UnitOfWork
    ) -> str | None:
        """Set the timer of an event's next reminder, and return when that is due: in the past, if the occurrence itself
        is still to come.
        """
        passed_ms = self._storage.clock.now_ms() - (row.reminder_minutes or 0) * MINUTE_MS
        is_due = row.reminder_minutes is not None
        found = await trio.to_thread.run_sync(reminders, row, changed, passed_ms, passed_ms) if is_due else None
        return self.set_timer(row, None if found is None else found.next_ms, passed_ms, work)

    def set_timer(self, row: CalendarEventRow, next_ms: int | None, passed_ms: int, work: UnitOfWork) -> str | None:
        """Have the event's next reminder be due at `next_ms`, of those later than `passed_ms`; return it as text."""
        if next_ms is None:
            work.store(timers.delete, calendars.TIMER, row.id)
            return None
        work.store(timers.put, TimerRow(calendars.TIMER, row.id, iso(next_ms), iso(passed_ms)))
        work.when_settled(lambda _committed: self._timers.changed())
        return iso(next_ms)


def place_of(one: CalendarOccurrence) -> str:
    """Return an occurrence's place in lists: by time, each once."""
    return f"{one.starts_at} {one.event_id} {one.nominal_at}"


def _reset(changed: Sequence[EventOccurrenceRow]) -> list[EventOccurrenceRow]:
    """Return what remains of changed occurrences when they are reset: the decided reminders."""
    usual = EventOccurrenceStatus.SCHEDULED
    return [
        replace(one, starts_at=one.nominal_at, ends_at=None, status=usual, title=None, notes=None)
        for one in changed
        if one.reminder is not None
    ]


def _between(
    rows: Sequence[CalendarEventRow],
    changed: Sequence[EventOccurrenceRow],
    since: str,
    until: str,
    limit: int,
    after: str,
) -> list[CalendarOccurrence]:
    states: dict[str, list[EventOccurrenceRow]] = {}
    for state in changed:
        states.setdefault(state.event_id, []).append(state)
    found = []
    for row in rows:
        length_ms = unix_ms(row.ends_at or row.starts_at) - unix_ms(row.starts_at)
        # What began before may still take place; a change of the clocks makes a day longer.
        first_ms = unix_ms(since) - length_ms - 60 * MINUTE_MS
        first_ms = max(first_ms, unix_ms(after[:TIME_CHARS])) if after else first_ms
        found.append(occurrences(row, states.get(row.id, ()), first_ms - 1))
    ordered = takewhile(lambda one: one.starts_at < until, merge(*found, key=place_of))
    wanted = (one for one in ordered if place_of(one) > after and (one.ends_at or one.starts_at) >= since)
    return list(islice(wanted, limit))
