"""Events of the calendar as values: their times, their occurrences, and when people are reminded of these. Pure.

An event repeats by the rules of `timing.py`, without those of EXDATE and with those of RDATE; its own beginning always
counts (RFC 5545, 3.8.5). An occurrence is known by its nominal time, wherever it was moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from heapq import merge
from typing import Any, NamedTuple

from pattern_core.errors import InvalidInput
from pattern_core.messages import check_text
from pattern_core.timing import DAY, Timing, moment, moments, zone_of
from pattern_core.untrusted import check_plain
from pattern_db.columns import iso, unix_ms
from pattern_db.enums import EventOccurrenceStatus
from pattern_db.tables.calendars import REMINDERS_KEPT, CalendarEventRow, EventOccurrenceRow

TITLE_CHARS_MAX = 500
TEXT_CHARS_MAX = 20_000  # of a description, a location, notes
DATES_MAX = 1_000  # of EXDATE, of RDATE
CHANGED_MAX = 1_000  # occurrences of an event that differ from its rule
REPEATED_DAYS_MAX = 366  # how long an event may be that repeats: so many occurrences may overlap
REMINDER_MINUTES_MAX = 366 * 24 * 60
MINUTE_MS = 60_000
YEARS = (1000, 9000)
SERIES = ("starts_at", "zone", "all_day", "rrule")  # with another of these, changed occurrences lose their meaning
_OVER = (EventOccurrenceStatus.COMPLETED, EventOccurrenceStatus.SKIPPED, EventOccurrenceStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class CalendarOccurrence:
    """An occurrence of an event: when it takes place, `local` in the event's zone, and when its rule named it."""

    event_id: str
    title: str
    nominal_at: str
    starts_at: str
    ends_at: str | None
    local: str
    zone: str
    all_day: bool
    location: str | None
    agent_id: str | None
    status: EventOccurrenceStatus
    notes: str | None


class DueReminders(NamedTuple):
    """Reminders that are due, each with its time, ascending; how many there were before, and the time of the next."""

    older: int
    due: Sequence[tuple[int, CalendarOccurrence]]
    next_ms: int | None


def event_of(row: CalendarEventRow, changes: Mapping[str, Any]) -> CalendarEventRow:
    """Return an event with changed fields, its times as moments. Times without an offset are local ones of its zone; an
    event that begins at another time keeps its length.

    Raises:
        InvalidInput: a field is invalid.
    """
    made = replace(row, **changes)
    if made.zone != row.zone and "starts_at" not in changes:
        raise InvalidInput("an event keeps its local time in another zone only if you give it; add `starts_at`")
    if max(len(made.exdates), len(made.rdates)) > DATES_MAX:
        raise InvalidInput(f"`exdates` and `rdates` have at most {DATES_MAX} times each; give a rule instead")
    zone = zone_of(made.zone)

    def at(text: str, name: str) -> str:
        found = moment(text, zone, name)
        if not YEARS[0] <= found.year < YEARS[1]:
            raise InvalidInput(f"`{name}` is not between the years {YEARS[0]} and {YEARS[1]}; give another time")
        local = found.astimezone(zone).replace(tzinfo=None, microsecond=0)
        return iso(_ms(local.replace(hour=0, minute=0, second=0) if made.all_day else local, zone))

    starts_at = at(made.starts_at, "starts_at")
    ends_at = made.ends_at
    if "ends_at" not in changes and row.ends_at is not None:
        ends_at = _end(row, unix_ms(starts_at))
    if ends_at is not None:
        ends_at = at(ends_at, "ends_at")
    if made.all_day and (ends_at is None or ends_at == starts_at):
        ends_at = at((_local(unix_ms(starts_at), zone).date() + DAY).isoformat(), "ends_at")
    made = replace(
        made,
        title=made.title.strip(),
        starts_at=starts_at,
        ends_at=ends_at,
        rrule=(made.rrule or "").strip().upper().removeprefix("RRULE:") or None,
        exdates=sorted({at(one, "exdates") for one in made.exdates}),
        rdates=sorted({at(one, "rdates") for one in made.rdates}),
    )
    _check(made)
    return made


def _check(row: CalendarEventRow) -> None:
    length = timedelta(milliseconds=unix_ms(row.ends_at or row.starts_at) - unix_ms(row.starts_at))
    minutes = 0 if row.reminder_minutes is None else row.reminder_minutes
    if not 0 < len(check_plain(check_text(row.title), "an event's title")) <= TITLE_CHARS_MAX:
        raise InvalidInput(f"an event's title has 1 to {TITLE_CHARS_MAX} characters")
    for name, text in (("description", row.description), ("location", row.location)):
        if len(check_text(text or "")) > TEXT_CHARS_MAX:
            raise InvalidInput(f"`{name}` has more than {TEXT_CHARS_MAX} characters; shorten it")
    if length < timedelta():
        raise InvalidInput("the event ends before it begins; give a later `ends_at`")
    if (row.rrule or row.rdates) and length > REPEATED_DAYS_MAX * DAY:
        raise InvalidInput(f"an event that repeats is at most {REPEATED_DAYS_MAX} days long; give an earlier `ends_at`")
    if not 0 <= minutes <= REMINDER_MINUTES_MAX:
        raise InvalidInput(f"`reminder_minutes` is a whole number from 0 to {REMINDER_MINUTES_MAX}")
    if row.rrule is not None:
        next(moments(_timing(row), unix_ms(row.starts_at)), None)  # raises what is wrong with it


def _timing(row: CalendarEventRow) -> Timing:
    return Timing(rrule=row.rrule, zone=row.zone, starts_at=row.starts_at)


def nominal_times(row: CalendarEventRow, after_ms: int) -> Iterator[int]:
    """Yield the nominal times of an event later than `after_ms` (unix milliseconds), ascending.

    Where its rule never matches again this may take a second, so not on the event loop.
    """
    fixed = sorted(unix_ms(one) for one in {row.starts_at, *row.rdates})
    left_out, last = {unix_ms(one) for one in row.exdates}, after_ms
    for each in merge(fixed, moments(_timing(row), after_ms) if row.rrule is not None else ()):
        if each > last and each not in left_out:
            yield each
        last = max(last, each)


def occurrences(
    row: CalendarEventRow, changed: Sequence[EventOccurrenceRow], after_ms: int
) -> Iterator[CalendarOccurrence]:
    """Yield the occurrences that begin later than `after_ms` (unix milliseconds), ascending, and before them those that
    were moved. `changed` are those with a state of their own, from then on at least. Cancelled ones are left out.
    """
    known = {one.nominal_at: one for one in changed}
    moved = [occurrence_of(row, one) for one in known.values() if one.starts_at != one.nominal_at]
    moved.sort(key=lambda one: one.starts_at)
    regular = (
        occurrence_of(row, known.get(nominal) or EventOccurrenceRow("", row.id, nominal, nominal, ""))
        for nominal in map(iso, nominal_times(row, after_ms))
        if nominal not in known or known[nominal].starts_at == nominal
    )
    for one in merge(moved, regular, key=lambda one: one.starts_at):
        if one.status is not EventOccurrenceStatus.CANCELLED:
            yield one


def occurrence_of(row: CalendarEventRow, state: EventOccurrenceRow) -> CalendarOccurrence:
    """Return an occurrence as its own state leaves it."""
    start = _local(unix_ms(state.starts_at), zone_of(row.zone))
    return CalendarOccurrence(
        event_id=row.id,
        title=state.title or row.title,
        nominal_at=state.nominal_at,
        starts_at=state.starts_at,
        ends_at=state.ends_at or _end(row, unix_ms(state.starts_at)),
        local=start.date().isoformat() if row.all_day else start.isoformat(timespec="minutes"),
        zone=row.zone,
        all_day=row.all_day,
        location=row.location,
        agent_id=row.agent_id,
        status=state.status,
        notes=state.notes,
    )


def _end(row: CalendarEventRow, start_ms: int) -> str | None:
    """Return when an occurrence ends: after the same time, all-day ones after the same number of days."""
    if row.ends_at is None:
        return None
    first, end, zone = unix_ms(row.starts_at), unix_ms(row.ends_at), zone_of(row.zone)
    if not row.all_day:
        return iso(start_ms + end - first)
    days = _local(end, zone).date() - _local(first, zone).date()
    # From midnight, though a day may begin at one o'clock where the clocks change.
    return iso(_ms(datetime.combine(_local(start_ms, zone) + days, time()), zone))


def reminders(row: CalendarEventRow, changed: Sequence[EventOccurrenceRow], after_ms: int, now_ms: int) -> DueReminders:
    """Return the reminders of an event that are due at `now_ms`, of those later than `after_ms`, and the next one.

    What is over or cancelled, or was decided already, has none.
    """
    decided = {one.nominal_at for one in changed if one.reminder is not None}
    lead_ms = (row.reminder_minutes or 0) * MINUTE_MS
    due, count = deque[tuple[int, CalendarOccurrence]](maxlen=REMINDERS_KEPT), 0
    for one in occurrences(row, changed, after_ms + lead_ms):
        at_ms = unix_ms(one.starts_at) - lead_ms
        if at_ms <= after_ms or one.nominal_at in decided or one.status in _OVER:
            continue
        if at_ms > now_ms:
            return DueReminders(count - len(due), due, at_ms)
        due.append((at_ms, one))
        count += 1
    return DueReminders(count - len(due), due, None)


def _local(unix_ms: int, zone: tzinfo) -> datetime:
    """Return the local time, without its zone: differences of such times are of the calendar, not of the clock."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unix_ms)).astimezone(zone).replace(tzinfo=None)


def _ms(local: datetime, zone: tzinfo) -> int:
    return (local.replace(tzinfo=zone).astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
