"""When schedules are due: against a naive reference, and where clocks change."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.timing import Timing, moment, moments, zone_of
from pattern_db.columns import iso, unix_ms

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
DAY = timedelta(days=1)
HORIZON = timedelta(days=800)


def due(after: str, count: int = 3, **timing: Any) -> list[str]:
    """The first moments after a time, without seconds."""
    return [iso(one)[:16] for one in islice(moments(Timing(**timing), unix_ms(after)), count)]


@pytest.mark.parametrize(
    ("zone", "local", "after", "found"),
    [
        # Clocks go forward: 02:30 does not exist. They go back: 02:30 (01:30) comes twice, and counts once.
        ("Europe/Berlin", "30 2", "2026-03-28T12:00:00Z", ["2026-03-29T01:30", "2026-03-30T00:30"]),
        ("Europe/Berlin", "30 2", "2026-10-24T12:00:00Z", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("America/New_York", "30 2", "2026-03-07T12:00:00Z", ["2026-03-08T07:30", "2026-03-09T06:30"]),
        ("America/New_York", "30 1", "2026-10-31T12:00:00Z", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        ("Australia/Lord_Howe", "15 2", "2026-10-03T00:00:00Z", ["2026-10-03T15:45", "2026-10-04T15:15"]),
        ("Australia/Lord_Howe", "45 1", "2026-04-04T00:00:00Z", ["2026-04-04T14:45", "2026-04-05T15:15"]),
        ("Africa/Cairo", "30 0", "2026-04-23T12:00:00Z", ["2026-04-23T22:30", "2026-04-24T21:30"]),
        ("Africa/Cairo", "30 23", "2026-10-29T12:00:00Z", ["2026-10-29T20:30", "2026-10-30T21:30"]),
        ("Asia/Kolkata", "30 2", "2026-03-28T12:00:00Z", ["2026-03-28T21:00", "2026-03-29T21:00"]),
    ],
)
def test_gaps_and_folds(zone: str, local: str, after: str, found: list[str]) -> None:
    minute, hour = local.split()
    assert due(after, 2, cron=f"{local} * * *", zone=zone) == found
    rrule = f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute};BYSECOND=0"
    assert due(after, 2, rrule=rrule, zone=zone, starts_at="2026-01-01T00:00:00") == found


def test_a_gap_moves_a_time_behind_later_ones_and_none_comes_twice() -> None:
    found = due("2026-03-29T00:30:00Z", 5, cron="0,45 * * * *", zone="Europe/Berlin")
    assert found == [f"2026-03-29T{time}" for time in ("00:45", "01:00", "01:45", "02:00", "02:45")]
    half = due("2026-10-03T12:00:00Z", 2, cron="15,30 2 * * *", zone="Australia/Lord_Howe")  # 02:15 becomes 02:45
    assert half == ["2026-10-03T15:30", "2026-10-03T15:45"]
    hourly = due("2026-03-29T00:30:00Z", 3, rrule="FREQ=HOURLY", zone="Europe/Berlin", starts_at="2026-01-01T00:00:00")
    assert hourly == ["2026-03-29T01:00", "2026-03-29T02:00", "2026-03-29T03:00"]


@pytest.mark.parametrize(
    ("timing", "found"),
    [
        ({"every": 5400.0, "starts_at": "2026-01-01T00:00:00Z"}, ["2026-01-01T01:30", "2026-01-01T03:00"]),
        ({"every": 60.0, "starts_at": "2026-02-01T00:00:00Z"}, ["2026-02-01T00:00", "2026-02-01T00:01"]),
        ({"at": "2026-01-01T10:00", "zone": "Asia/Tokyo"}, ["2026-01-01T01:00"]),
        ({"at": "2026-01-01T10:00+02:00", "zone": "Asia/Tokyo"}, ["2026-01-01T08:00"]),
        ({"at": "2025-12-31T00:00:00Z"}, []),
        ({"cron": "@weekly"}, ["2026-01-04T00:00", "2026-01-11T00:00"]),
        ({"cron": "0 0 13 * FRI"}, ["2026-01-02T00:00", "2026-01-09T00:00"]),
        ({"cron": "*/40 22-23 * JAN,MAR 7"}, ["2026-01-04T22:00", "2026-01-04T22:40"]),
        ({"cron": "0 0 29 2 *"}, ["2028-02-29T00:00", "2032-02-29T00:00"]),
        (
            {"rrule": "RRULE:FREQ=DAILY;UNTIL=20260103", "starts_at": "2026-01-02T09:00:00"},
            ["2026-01-02T09:00", "2026-01-03T09:00"],
        ),
        ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, []),
        ({"rrule": "FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30"}, []),
    ],
)
def test_times(timing: dict[str, Any], found: list[str]) -> None:
    assert due("2026-01-01T00:00:00.000Z", 2, **timing) == found


def test_zones_are_found_by_their_names() -> None:
    assert zone_of("UTC") is UTC
    assert zone_of("Europe/Berlin") == ZoneInfo("Europe/Berlin")


def test_a_moment_is_local_unless_it_has_an_offset() -> None:
    found = [moment(text, ZoneInfo("Asia/Tokyo"), "at") for text in ("2026-01-01T10:00", "2026-01-01T01:00Z")]
    assert found == [datetime(2026, 1, 1, 1, tzinfo=UTC)] * 2


def test_the_ends_of_rules() -> None:
    start = {"starts_at": "2026-01-01T09:00:00", "zone": "Europe/Berlin"}
    for end in ("UNTIL=20260103", "UNTIL=20260103T080000Z", "UNTIL=20260103T090000", "COUNT=3"):
        found = due("2025-12-01T00:00:00Z", 9, rrule=f"FREQ=DAILY;{end}", **start)
        assert found == ["2026-01-01T08:00", "2026-01-02T08:00", "2026-01-03T08:00"], end
    assert due("2026-01-02T08:00:00Z", 9, rrule="FREQ=DAILY;COUNT=3", **start) == ["2026-01-03T08:00"]


@pytest.mark.parametrize(
    ("timing", "says"),
    [
        ({"rrule": "FREQ=MINUTELY"}, "use `every`"),
        ({"rrule": "FREQ=SECONDLY"}, "use `every`"),
        ({"rrule": "FREQ=HOURLY;BYSECOND=0,30"}, "BYSECOND"),
        ({"rrule": "FREQ=DAILY;INTERVAL=0"}, "INTERVAL"),
        ({"rrule": "FREQ=DAILY;COUNT=99999999"}, "COUNT"),
        ({"rrule": "FREQ=DAILY;COUNT=3;UNTIL=20260101"}, "exclude"),
        ({"rrule": "FREQ=DAILY;BYEASTER=0"}, "'BYEASTER' is unknown"),
        ({"rrule": "FREQ=DAILY;FREQ=DAILY"}, "given twice"),
        ({"rrule": "FREQ=DAILY;BYDAY=XX"}, "BYDAY"),
        ({"rrule": "FREQ=DAILY;BYDAY=1MO"}, "BYDAY"),
        ({"rrule": "FREQ=MONTHLY;BYDAY=MO,6FR"}, "from 1 to 5"),
        ({"rrule": "FREQ=MONTHLY;BYMONTH=May"}, "cannot be read"),
        ({"rrule": "FREQ=HOURLY;INTERVAL=2;BYHOUR=3", "starts_at": "2026-01-01T00:00:00"}, "empty set"),
        ({"rrule": "FREQ=DAILY;UNTIL=tomorrow"}, "UNTIL is not a time"),
        ({"rrule": "FREQ=DAILY;" + "BYHOUR=1," * 100}, "characters"),
        ({"rrule": "every day"}, "unknown"),
        ({"cron": "* * * *"}, "4 fields"),
        ({"cron": "60 * * * *"}, "Bad minute"),
        ({"cron": "*/0 * * * *"}, "Bad minute"),
        ({"cron": "5-1 * * * *"}, "Bad minute"),
        ({"cron": "0 5 1 * * *"}, "6 fields"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "* * * * MOON"}, "Bad day-of-week"),
        ({"every": 60.0, "zone": "Mars/Olympus"}, "no time zone"),
        ({"every": 60.0, "zone": "../../etc/passwd"}, "no time zone"),
        ({"at": "soon"}, "`at` cannot be read"),
    ],
)
def test_what_cannot_be_read(timing: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        due("2026-01-01T00:00:00Z", **timing)


def naive(rule: dict[str, Any], first: datetime) -> Iterator[datetime]:
    """Expand a rule day by day: does the day belong to a period of the interval, and match every part?"""
    interval, count = rule.get("INTERVAL", 1), rule.get("COUNT", 10**9)
    day = first.replace(hour=0, minute=0, second=0)
    end = first + HORIZON
    while day <= end:
        if _in_period(rule["FREQ"], interval, first, day) and _matches(rule, first, day):
            for hour in sorted(rule.get("BYHOUR", range(24) if rule["FREQ"] == "HOURLY" else [first.hour])):
                at = day.replace(hour=hour, minute=first.minute, second=first.second)
                elapsed = (at.replace(minute=0, second=0) - first.replace(minute=0, second=0)) // timedelta(hours=1)
                if rule["FREQ"] == "HOURLY" and elapsed % interval:
                    continue
                if at >= first and count > 0:
                    count -= 1
                    yield at
        day += DAY


def _in_period(freq: str, interval: int, first: datetime, day: datetime) -> bool:
    begin: date = first.date()
    match freq:
        case "YEARLY":
            return (day.year - begin.year) % interval == 0
        case "MONTHLY":
            return (12 * (day.year - begin.year) + day.month - begin.month) % interval == 0
        case "WEEKLY":
            weeks = (day.date() - timedelta(days=day.weekday()) - (begin - timedelta(days=begin.weekday()))).days // 7
            return weeks % interval == 0
        case "DAILY":
            return (day.date() - begin).days % interval == 0
    return True


def _matches(rule: dict[str, Any], first: datetime, day: datetime) -> bool:
    freq, length = rule["FREQ"], calendar.monthrange(day.year, day.month)[1]
    months, days, weekdays = rule.get("BYMONTH"), rule.get("BYMONTHDAY"), rule.get("BYDAY")
    if days is None and weekdays is None:
        if freq == "YEARLY" and months is None:
            months = [first.month]
        if freq in ("YEARLY", "MONTHLY"):
            days = [first.day]
        if freq == "WEEKLY":
            weekdays = [WEEKDAYS[first.weekday()]]
    if months is not None and day.month not in months:
        return False
    if days is not None and not {day.day, day.day - length - 1} & set(days):
        return False
    return weekdays is None or any(_is_weekday(each, freq, months, day, length) for each in weekdays)


def _is_weekday(text: str, freq: str, months: list[int] | None, day: datetime, length: int) -> bool:
    if WEEKDAYS[day.weekday()] != text[-2:]:
        return False
    if len(text) == 2:
        return True
    if freq == "YEARLY" and months is None:
        place, size = day.timetuple().tm_yday, 366 if calendar.isleap(day.year) else 365
    else:
        place, size = day.day, length
    return int(text[:-2]) in ((place - 1) // 7 + 1, -((size - place) // 7 + 1))


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """A rule, its parts as numbers and texts."""
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY"]))
    rule: dict[str, Any] = {"FREQ": freq}
    if draw(st.booleans()):
        rule["INTERVAL"] = draw(st.integers(1, 5))
    some = st.lists
    if draw(st.integers(0, 2)) == 0:
        rule["BYMONTH"] = draw(some(st.integers(1, 12), min_size=1, max_size=4, unique=True))
    if freq != "WEEKLY" and draw(st.integers(0, 2)) == 0:
        number = st.integers(1, 31) | st.integers(-31, -1)
        rule["BYMONTHDAY"] = draw(some(number, min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 2)) == 0:
        names = st.sampled_from(WEEKDAYS)
        if freq in ("YEARLY", "MONTHLY") and "BYMONTHDAY" not in rule:
            names = names | st.builds(lambda n, name: f"{n}{name}", st.sampled_from([-2, -1, 1, 2, 4]), names)
        rule["BYDAY"] = draw(some(names, min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 2)) == 0:
        rule["BYHOUR"] = draw(some(st.integers(0, 23), min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 3)) == 0:
        rule["COUNT"] = draw(st.integers(1, 30))
    return rule


@given(
    rules(),
    st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1)),
    st.integers(0, 400),
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata"]
    ),
)
def test_rules_are_due_as_a_naive_reference_says(rule: dict[str, Any], first: datetime, days: int, zone: str) -> None:
    first = first.replace(microsecond=0)
    text = ";".join(f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in rule.items())
    tz = ZoneInfo(zone)
    after = (first + days * DAY).replace(tzinfo=tz).astimezone(UTC)
    end = (first + HORIZON - 2 * DAY).replace(tzinfo=tz).astimezone(UTC)
    wanted = sorted({one.replace(tzinfo=tz).astimezone(UTC) for one in naive(rule, first)})
    start = first.replace(tzinfo=tz).astimezone(UTC)
    expected = [one for one in wanted if after < one < end and one >= start][:50]
    timing = Timing(rrule=text, zone=zone, starts_at=first.isoformat())
    try:
        moments_found = list(islice(moments(timing, round(after.timestamp() * 1000)), 50))
    except InvalidInput as error:  # no hour of the interval is among those of BYHOUR
        assert (not wanted) and "empty set" in error.message
        return
    found = [at for at in (datetime.fromtimestamp(ms / 1000, UTC) for ms in moments_found) if at < end]
    assert found == expected, text


@given(rules(), st.datetimes(datetime(1990, 1, 1), datetime(2000, 1, 1)), st.integers(800, 6000))
def test_a_rule_is_the_same_from_its_beginning_as_from_years_later(
    rule: dict[str, Any], first: datetime, days: int
) -> None:
    rule = {**rule, "FREQ": {"DAILY": "YEARLY", "HOURLY": "YEARLY"}.get(rule["FREQ"], rule["FREQ"])}
    text = ";".join(f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in rule.items())
    timing = Timing(rrule=text, starts_at=first.replace(microsecond=0).isoformat())
    after = round((first + days * DAY).replace(tzinfo=UTC).timestamp() * 1000)
    end = after + 1500 * 24 * 3600 * 1000
    whole = [at for at in takewhile(lambda at: at < end, moments(timing, 0)) if at > after]
    assert list(takewhile(lambda at: at < end, moments(timing, after))) == whole


@given(
    st.tuples(
        *(
            st.sampled_from(part)
            for part in (
                ["0", "*/20", "5,50", "10-12"],
                ["*", "3", "0-6/3"],
                ["*", "1", "10-12"],
                ["*", "3", "JAN,OCT"],
                ["*", "MON", "1-5"],
            )
        )
    ),
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)),
)
def test_cron_is_due_at_each_minute_that_matches(parts: tuple[str, ...], start: datetime) -> None:
    start = start.replace(tzinfo=UTC)
    found = [
        datetime.fromtimestamp(ms / 1000, UTC)
        for ms in islice(moments(Timing(cron=" ".join(parts)), round(start.timestamp() * 1000)), 3)
    ]
    for one in found:
        assert one > start
        assert one.second == one.microsecond == 0
    minute = start.replace(second=0, microsecond=0) + timedelta(minutes=1)
    expected: list[datetime] = []
    while len(expected) < 3 and minute < start + timedelta(days=3):
        if _cron_matches(parts, minute):
            expected.append(minute)
        minute += timedelta(minutes=1)
    assert found[: len(expected)] == expected


def _cron_matches(parts: tuple[str, ...], at: datetime) -> bool:
    known = {
        "*": range(100),
        "*/20": (0, 20, 40),
        "5,50": (5, 50),
        "10-12": (10, 11, 12),
        "0-6/3": (0, 3, 6),
        "JAN,OCT": (1, 10),
        "MON": (1,),
        "1-5": (1, 2, 3, 4, 5),
    }
    minute, hour, day, month, weekday = (known.get(part) or (int(part),) for part in parts)
    days = [at.day in day, at.isoweekday() % 7 in weekday]
    is_day = any(days) if parts[2] != "*" and parts[4] != "*" else all(days)
    return at.minute in minute and at.hour in hour and at.month in month and is_day
