"""The calendar as iCalendar: read so that nothing is lost, and written back.

What is understood becomes fields of an event and of its changed occurrences. Each component is kept as text,
too; an export changes in it what differs and leaves the rest, such as attendees and alarms.

Source: RFC 5545; 3.8.4.4 for changed occurrences.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, TypeAlias

from pattern_core.errors import InvalidInput
from pattern_core.occurrences import CHANGED_MAX, event_of, occurrence_of
from pattern_core.timing import zone_of
from pattern_db.enums import EventOccurrenceStatus
from pattern_db.tables.calendars import CalendarEventRow, EventOccurrenceRow

Component: TypeAlias = Any  # the library's, with values of thirty types

SOURCE = "icalendar"
COMPONENT_CHARS_MAX = 20_000
SKIPPED_MAX = 100  # that are named
UNTITLED = "(no title)"
TEXTS = {"SUMMARY": "title", "DESCRIPTION": "description", "LOCATION": "location"}
_TIMES = ("starts_at", "ends_at", "zone", "all_day", "rrule", "exdates", "rdates")
UNDERSTOOD = (*TEXTS.values(), *_TIMES)
ZONES_FROM = "1970-01-01"  # from when an export defines time zones, if no event begins later
_NOTHING = CalendarEventRow("", "", "", "", "")


@dataclass(frozen=True, slots=True)
class ReadOccurrence:
    """A changed occurrence: its nominal time, what differs, and its component as text."""

    nominal_at: str
    fields: Mapping[str, Any]
    content: str


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An event of a file: its UID, its fields that are `UNDERSTOOD`, and its component as text."""

    uid: str
    row: CalendarEventRow
    content: str
    changed: list[ReadOccurrence] = field(default_factory=list)


def read(text: str, zone: str | None) -> tuple[list[ReadEvent], list[str]]:
    """Return the events of a file, and what was skipped, with the reason. Times without a zone are those of `zone`, by
    default the file's.

    Raises:
        InvalidInput: it is not iCalendar, or there is no such zone.
    """
    from icalendar import Calendar

    try:
        with _no_memory():
            parsed = Calendar.from_ical(_without_zones(text))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"this is not an iCalendar file: {str(error)[:200]}; export one from a calendar") from None
    zone = zone or str(parsed.get("X-WR-TIMEZONE") or "UTC")
    zone_of(zone)
    found: dict[str, ReadEvent] = {}
    skipped: list[str] = []
    parts = [part for part in parsed.subcomponents if part.name != "VTIMEZONE"]
    for part in sorted(parts, key=lambda part: "RECURRENCE-ID" in part):  # an event before its occurrences
        uid = str(part.get("UID") or "")
        try:
            _read(part, uid, zone, found)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError, InvalidInput) as error:
            skipped.append(f"{part.name} {uid}: {getattr(error, 'message', error)}"[:500])
    more = len(skipped) - SKIPPED_MAX
    return list(found.values()), skipped[:SKIPPED_MAX] + ([f"and {more} more"] if more > 0 else [])


def _without_zones(text: str) -> str:
    """Return a file without its definitions of time zones: those of the database count."""
    first, *rest = text.replace("\r\n", "\n").split("\nBEGIN:VTIMEZONE")
    return first + "".join(part.partition("\nEND:VTIMEZONE")[2] for part in rest)


def _read(part: Component, uid: str, zone: str, found: dict[str, ReadEvent]) -> None:
    content = _text(part)
    if part.name != "VEVENT":
        raise InvalidInput("only events are imported")
    if not uid or len(content) > COMPONENT_CHARS_MAX:
        raise InvalidInput(f"it has no UID, or more than {COMPONENT_CHARS_MAX} characters")
    if "RECURRENCE-ID" not in part:
        if uid in found:
            raise InvalidInput("the file has another event with this UID")
        found[uid] = ReadEvent(uid, event_of(_NOTHING, _fields(part, zone)), content)
        return
    if uid not in found:
        raise InvalidInput("it changes an occurrence of an event that is not in the file")
    if "RANGE" in part["RECURRENCE-ID"].params:
        raise InvalidInput("it changes all later occurrences, which is not supported")
    if len(found[uid].changed) >= CHANGED_MAX:
        raise InvalidInput(f"at most {CHANGED_MAX} occurrences of an event may differ")
    row = found[uid].row
    nominal_at = event_of(replace(row, rrule=None), {"starts_at": _time(part, "RECURRENCE-ID")}).starts_at
    found[uid].changed.append(ReadOccurrence(nominal_at, _difference(part, row, nominal_at), content))


def _difference(part: Component, row: CalendarEventRow, nominal_at: str) -> dict[str, Any]:
    """Return in what an occurrence's component differs from its event, as fields of the occurrence."""
    one = event_of(_NOTHING, {**_fields(part, row.zone), "all_day": row.all_day})
    usual = occurrence_of(row, EventOccurrenceRow("", "", nominal_at, one.starts_at, ""))
    is_cancelled = str(part.get("STATUS", "")).upper() == "CANCELLED"
    return {
        "starts_at": one.starts_at,
        "ends_at": None if one.ends_at == usual.ends_at else one.ends_at,
        "status": EventOccurrenceStatus.CANCELLED if is_cancelled else EventOccurrenceStatus.SCHEDULED,
        "title": None if one.title in (row.title, UNTITLED) else one.title,
    }


def _fields(part: Component, default_zone: str) -> dict[str, Any]:
    """Return what is understood of a component, as fields of an event.

    Raises:
        Exception: it cannot be read; of the library, several kinds.
    """
    start, named = part["DTSTART"].dt, part["DTSTART"].params.get("TZID")
    tzinfo = getattr(start, "tzinfo", None)
    if named is not None and not hasattr(tzinfo, "key"):
        raise InvalidInput(f"its time zone {named} is unknown")
    if "EXRULE" in part or isinstance(part.get("RRULE"), list):
        raise InvalidInput("it has more than one rule, which is not supported")
    end = _time(part, "DTEND") if "DTEND" in part else None
    if "DURATION" in part:
        end = (start + part["DURATION"].dt).isoformat()
    return {
        **{name: str(part[key]) if key in part else None for key, name in TEXTS.items()},
        "title": " ".join(str(part.get("SUMMARY", "")).split()) or UNTITLED,
        "starts_at": _time(part, "DTSTART"),
        "ends_at": end,
        "zone": getattr(tzinfo, "key", default_zone),
        "all_day": not isinstance(start, datetime),
        "rrule": part["RRULE"].to_ical().decode() if "RRULE" in part else None,
        "exdates": list(_dates(part, "EXDATE")),
        "rdates": list(_dates(part, "RDATE")),
    }


def _time(part: Component, name: str) -> str:
    text: str = part[name].dt.isoformat()
    return text


def _dates(part: Component, name: str) -> Iterator[str]:
    lists = part.get(name, [])
    for one in lists if isinstance(lists, list) else [lists]:
        for each in one.dts:
            at = each.dt[0] if isinstance(each.dt, tuple) else each.dt  # a period counts as its beginning
            yield at.isoformat()


def _text(part: Component) -> str:
    text: str = part.to_ical(sorted=False).decode()
    return text


def write(
    rows: Sequence[CalendarEventRow],
    changed: Sequence[EventOccurrenceRow],
    sources: Mapping[tuple[str, str], str],
) -> str:
    """Return events as a file; `sources` are the components that were imported, by event and nominal time."""
    from icalendar import Calendar

    calendar = Calendar()
    calendar.add("VERSION", "2.0")
    calendar.add("PRODID", "-//Pattern//Calendar//EN")
    states: dict[str, dict[str, EventOccurrenceRow]] = {row.id: {} for row in rows}
    for event_id, at in sources:
        states[event_id][at] = EventOccurrenceRow("", event_id, at, at, "")
    for state in changed:
        if state.is_changed or state.nominal_at in states[state.event_id]:
            states[state.event_id][state.nominal_at] = state
    with _no_memory():
        for row in rows:
            part, before = _part(row, sources.get((row.id, "")))
            _put(part, before, row)
            calendar.add_component(part)
            for at in sorted(states[row.id].keys() - {""}):
                calendar.add_component(_occurrence(row, states[row.id][at], sources.get((row.id, at))))
        first = min((row.starts_at for row in rows), default=ZONES_FROM)
        calendar.add_missing_timezones(first_date=date.fromisoformat(max(first, ZONES_FROM)[:10]))
    return _text(calendar)


@contextmanager
def _no_memory() -> Iterator[None]:
    """Let the library forget the names of time zones that it met: it has one memory for all constellations."""
    from icalendar.error import GloballyUniqueTZIDGuessed
    from icalendar.timezone import tzp

    warnings.simplefilter("ignore", GloballyUniqueTZIDGuessed)  # that /vendor/Europe/Berlin is Europe/Berlin
    try:
        yield
    finally:
        tzp.use_default()


def _occurrence(event: CalendarEventRow, state: EventOccurrenceRow, content: str | None) -> Component:
    part, before = _part(event, content)
    shown = occurrence_of(event, state)
    row = replace(event if content is None else before, starts_at=shown.starts_at, ends_at=shown.ends_at)
    known = {} if content is None else _difference(part, event, state.nominal_at)
    if known.get("title") != state.title or content is None:
        row = replace(row, title=shown.title)
    if content is None:
        part.add("RECURRENCE-ID", _at(event, state.nominal_at))
    is_cancelled = state.status is EventOccurrenceStatus.CANCELLED
    if is_cancelled != (known.get("status") is EventOccurrenceStatus.CANCELLED):
        part.pop("STATUS", None)
        if is_cancelled:
            part.add("STATUS", "CANCELLED")
    _put(part, before, replace(row, rrule=None, exdates=[], rdates=[]))
    return part


def _part(row: CalendarEventRow, content: str | None) -> tuple[Component, CalendarEventRow]:
    """Return the component that an event or occurrence was imported from, and what it says; without one, a new one."""
    from icalendar import Event

    part: Component = Event()
    before = _NOTHING
    if content is None:
        part.add("UID", row.external_id or row.id)
        part.add("DTSTAMP", datetime.fromisoformat(row.updated_at))
    else:
        part = Event.from_ical(content)
        before = event_of(_NOTHING, _fields(part, row.zone))
    return part, before


def _put(part: Component, before: CalendarEventRow, row: CalendarEventRow) -> None:
    """Change in a component what differs from what it says."""
    from icalendar import vRecur

    for key, name in TEXTS.items():
        if getattr(row, name) != getattr(before, name):
            part.pop(key, None)
            if getattr(row, name):
                part.add(key, getattr(row, name))
    if any(getattr(row, name) != getattr(before, name) for name in _TIMES):
        for key in ("DTSTART", "DTEND", "DURATION", "RRULE", "EXDATE", "RDATE"):
            part.pop(key, None)
        part.add("DTSTART", _at(row, row.starts_at))
        if row.ends_at is not None:
            part.add("DTEND", _at(row, row.ends_at))
        if row.rrule is not None:
            part.add("RRULE", vRecur.from_ical(row.rrule))
        for key, times in (("EXDATE", row.exdates), ("RDATE", row.rdates)):
            if times:
                part.add(key, [_at(row, one) for one in times])


def _at(row: CalendarEventRow, moment: str) -> date | datetime:
    local = datetime.fromisoformat(moment).astimezone(zone_of(row.zone))
    return local.date() if row.all_day else local
