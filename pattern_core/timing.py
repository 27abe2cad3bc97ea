"""When a schedule is due: cron, intervals, single moments and the recurrence rules of iCalendar, in a time zone.

Rules name local times. One that a change of the clocks leaves out counts with the offset before the change, so 02:30
becomes 03:30; one that comes twice counts the first time (RFC 5545, 3.3.5). Intervals count elapsed time.

Sources: RFC 5545, 3.3.10; crontab(5), of which day of month and day of week are alternatives where both are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import heappop, heappush
from typing import Annotated
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from dateutil.rrule import rrule, rrulestr
from pydantic import Field

from pattern_core.errors import InvalidInput

EVERY_MIN_S = 60
TEXT_CHARS_MAX = 500
COUNT_MAX = 10_000
CRON_FIELDS = 5
DAY = timedelta(days=1)
DAY_MS = 24 * 3600 * 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"HOURLY": timedelta(hours=1), "DAILY": DAY, "WEEKLY": timedelta(weeks=1)}
_FREQUENCIES = ("YEARLY", "MONTHLY", *_UNITS)
_PARTS = (
    *("FREQ", "UNTIL", "COUNT", "INTERVAL", "BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY", "BYMONTHDAY", "BYYEARDAY"),
    *("BYWEEKNO", "BYMONTH", "BYSETPOS", "WKST"),
)
_SHORT = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
_SHORT["@yearly"] = "0 0 1 1 *"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule is due: by one of `cron`, `every` (seconds), `at` (a moment) and `rrule` (a recurrence rule
    without its name), in the time zone `zone`, from `starts_at` on.

    `at` and `starts_at` are RFC 3339 times; without an offset they are local ones.
    """

    cron: str | None = None
    every: Annotated[float, Field(ge=EVERY_MIN_S, le=10 * 366 * 24 * 3600)] | None = None
    at: str | None = None
    rrule: str | None = None
    zone: str = "UTC"
    starts_at: str | None = None


def moments(timing: Timing, after_ms: int) -> Iterator[int]:
    """Yield when it is due, as unix milliseconds later than `after_ms`, ascending.

    Where a rule never matches again this may take a second, so not on the event loop.

    Raises:
        InvalidInput: the timing cannot be read.
    """
    given = [name for name in ("cron", "every", "at", "rrule") if getattr(timing, name) is not None]
    if len(given) != 1:
        raise InvalidInput("a schedule has exactly one of `cron`, `every`, `at` and `rrule`; give one of them")
    zone = zone_of(timing.zone)
    start = _EPOCH if timing.starts_at is None else moment(timing.starts_at, zone, "starts_at")
    after = max(_EPOCH + timedelta(milliseconds=after_ms), start - timedelta(milliseconds=1))
    if timing.at is not None:
        found: Iterable[datetime] = [moment(timing.at, zone, "at")]
    elif timing.every is not None:
        found = _intervals(start, timedelta(seconds=timing.every), after)
    else:
        local = after.astimezone(zone).replace(tzinfo=None) - DAY
        first = start.astimezone(zone).replace(tzinfo=None)
        rule = (
            _cron(timing.cron, local) if timing.cron is not None else _recurring(timing.rrule or "", first, local, zone)
        )
        found = _ordered(rule, zone)
    return ((each - _EPOCH) // timedelta(milliseconds=1) for each in found if each > after)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database.

    Raises:
        InvalidInput: there is none.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a name that is a path, a folder, or unknown
        raise InvalidInput(f"there is no time zone {name!r}; use a name such as Europe/Berlin or UTC") from None


def moment(text: str, zone: tzinfo, name: str) -> datetime:
    """Return a moment in UTC; without an offset the text is a local time of the zone. `name` is what messages call it.

    Raises:
        InvalidInput: it is not a time.
    """
    try:
        found = datetime.fromisoformat(text)
        return (found.replace(tzinfo=zone) if found.tzinfo is None else found).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"`{name}` cannot be read; write a time such as 2026-11-21T22:24:40Z") from None


def _intervals(start: datetime, step: timedelta, after: datetime) -> Iterator[datetime]:
    found = start + max((after - start) // step + 1, 0) * step
    while True:
        yield found
        found += step


def _ordered(local: Iterable[datetime], zone: tzinfo) -> Iterator[datetime]:
    """Yield the moments of ascending local times, ascending and once each: a gap moves some behind later ones."""
    waiting: list[datetime] = []
    last = datetime.min.replace(tzinfo=UTC)
    for each in local:
        found = each.replace(tzinfo=zone).astimezone(UTC)
        while waiting and waiting[0] <= found - DAY:
            if (ready := heappop(waiting)) > last:
                yield (last := ready)
        heappush(waiting, found)
    while waiting:
        if (ready := heappop(waiting)) > last:
            yield (last := ready)


def _cron(text: str, after: datetime) -> Iterator[datetime]:
    """Return the local times later than `after` that match a cron expression."""
    text = _SHORT.get(text.strip().lower(), text)
    try:
        if len(text.split()) != CRON_FIELDS:  # the library knows one with seconds, too
            raise CronSimError(f"it has {len(text.split())} fields instead of {CRON_FIELDS}")
        return CronSim(text, after)
    except CronSimError as error:
        raise InvalidInput(f"`cron` cannot be read: {error}; write for example `30 7 * * MON-FRI`") from None


def _recurring(text: str, first: datetime, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Yield the local times of a recurrence rule that begins at `first`, those before `after` as far as they are
    cheap to skip.
    """
    parts = _parts_of(text)
    first = first.replace(microsecond=0)
    if "UNTIL" in parts:
        end = re.fullmatch(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?", parts["UNTIL"])
        try:
            year, month, day, *time = [int(each or 0) for each in end.groups()[:6]] if end else [0, 0, 0]
            until = datetime(year, month, day, *(time if end and end[4] else (23, 59, 59)))
        except ValueError:
            raise InvalidInput("`rrule`: UNTIL is not a time; write for example UNTIL=20271231T235959Z") from None
        if end and end[7]:
            until = until.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)
    else:
        until = datetime.max
    unit = _UNITS.get(parts["FREQ"])
    if unit is not None and "COUNT" not in parts:  # begin near the time of interest
        step = unit * int(parts.get("INTERVAL", 1))
        first += max((after - first) // step, 0) * step
    elif "COUNT" not in parts:
        if not parts.keys() & {"BYWEEKNO", "BYYEARDAY", "BYMONTHDAY", "BYDAY"}:  # what the beginning says, as RFC 5545
            parts |= {"BYMONTHDAY": str(first.day)}
            parts |= {"BYMONTH": str(first.month)} if parts["FREQ"] == "YEARLY" and "BYMONTH" not in parts else {}
        months = int(parts.get("INTERVAL", 1)) * (12 if parts["FREQ"] == "YEARLY" else 1)
        passed = 12 * (after.year - first.year) + after.month - first.month
        if (skipped := passed // months * months) > 0:
            year, month = divmod(12 * first.year + first.month - 1 + skipped, 12)
            first = first.replace(year=year, month=month + 1, day=1)
    # The calendar repeats after 400 years. dateutil ends with the year 9999: near that a rule that never matches ends
    # after some centuries instead of thousands of years; but not before the time of interest.
    shift = (9979 - max(first, after).year) // 400 * 400
    body = ";".join(f"{name}={value}" for name, value in parts.items() if name != "UNTIL")
    try:
        rule = rrulestr(body, dtstart=first.replace(year=first.year + shift))
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise InvalidInput(f"`rrule` cannot be read: {error}; write for example FREQ=WEEKLY;BYDAY=MO") from None
    assert isinstance(rule, rrule)
    return _until(rule, shift, until)


def _until(rule: rrule, shift: int, until: datetime) -> Iterator[datetime]:
    try:
        for each in rule:
            found = each.replace(year=each.year - shift)
            if found > until:
                return
            yield found
    except (TypeError, IndexError, ValueError):  # of dateutil, where nothing can ever match
        return


def _parts_of(text: str) -> dict[str, str]:
    """Return the parts of a recurrence rule by name.

    Raises:
        InvalidInput: it is none, or could be due more than once a minute.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidInput(f"`rrule` has {len(text)} characters; at most {TEXT_CHARS_MAX} are read")
    named = [part.partition("=") for part in text.upper().removeprefix("RRULE:").rstrip(";").split(";")]
    parts = {name: value for name, _, value in named}
    unknown = [name for name in parts if name not in _PARTS or not parts[name]]
    problem = None
    if unknown or len(parts) < len(named):
        problem = f"{(unknown or ['a part'])[0]!r} is unknown, empty or given twice; the parts are {', '.join(_PARTS)}"
    elif parts.get("FREQ") not in _FREQUENCIES:
        problem = f"FREQ is one of {', '.join(_FREQUENCIES)}; use `every` for shorter intervals"
    elif "," in parts.get("BYSECOND", ""):
        problem = "BYSECOND has more than one value; at most one occurrence a minute is possible"
    elif (
        not 0 < _whole(parts.get("INTERVAL", "1")) <= COUNT_MAX or not 0 < _whole(parts.get("COUNT", "1")) <= COUNT_MAX
    ):
        problem = f"INTERVAL and COUNT are whole numbers from 1 to {COUNT_MAX}"
    elif "COUNT" in parts and "UNTIL" in parts:
        problem = "COUNT and UNTIL exclude each other; leave one out"
    if problem is not None:
        raise InvalidInput(f"`rrule`: {problem}")
    if "BYDAY" in parts:
        parts["BYDAY"] = _days(parts)
    return parts


def _days(parts: dict[str, str]) -> str:
    """Return BYDAY as dateutil reads it right: it demands both where some days have a number and some have none."""
    most = {"YEARLY": 5 if "BYMONTH" in parts else 53, "MONTHLY": 5}.get(parts["FREQ"], 0)
    found = [re.fullmatch(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", day) for day in parts["BYDAY"].split(",")]
    days = [
        (day[1], day[2]) for day in found if day is not None and 0 < abs(int(day[1] or 1)) <= (most if day[1] else 1)
    ]
    if len(days) < len(found):
        numbers = f"with numbers from 1 to {most} or none" if most else "without numbers"
        raise InvalidInput(f"`rrule`: BYDAY has days such as MO, here {numbers} before them")
    if len({number is None for number, _ in days}) == 1:
        return parts["BYDAY"]
    return ",".join(f"{n}{day}" for number, day in days for n in ([number] if number else range(1, most + 1)))


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0
