"""Occurrences of events: against a naive reference, where clocks change, and with exceptions."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.occurrences import DATES_MAX, event_of, nominal_times, occurrence_of, occurrences, reminders
from pattern_db.columns import iso, unix_ms
from pattern_db.enums import EventOccurrenceStatus, OccurrenceStatus
from pattern_db.tables.calendars import CalendarEventRow, EventOccurrenceRow
from tests.pattern_core.test_timing import HORIZON, naive, rules

DAY = timedelta(days=1)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata"]


def event(**fields: Any) -> CalendarEventRow:
    return event_of(CalendarEventRow("evt_1", "", "", "", ""), {"title": "e", **fields})


def state(nominal: str, starts_at: str | None = None, **fields: Any) -> EventOccurrenceRow:
    return EventOccurrenceRow("occ", "evt_1", nominal, starts_at or nominal, "", **fields)


@pytest.mark.parametrize(
    ("zone", "local", "found"),
    [
        # 02:30 (02:15, 00:30) does not exist on the second day, or 02:30 (01:30, 01:45, 23:30) comes twice.
        ("Europe/Berlin", "2026-03-28T02:30", ["01:30", "01:30", "00:30"]),
        ("Europe/Berlin", "2026-10-24T02:30", ["00:30", "00:30", "01:30"]),
        ("America/New_York", "2026-03-07T02:30", ["07:30", "07:30", "06:30"]),
        ("America/New_York", "2026-10-31T01:30", ["05:30", "05:30", "06:30"]),
        ("Australia/Lord_Howe", "2026-10-03T02:15", ["15:45", "15:45", "15:15"]),
        ("Australia/Lord_Howe", "2026-04-04T01:45", ["14:45", "14:45", "15:15"]),
        ("Africa/Cairo", "2026-04-23T00:30", ["22:30", "22:30", "21:30"]),
        ("Africa/Cairo", "2026-10-28T23:30", ["20:30", "20:30", "21:30"]),
        ("Asia/Kolkata", "2026-03-28T02:30", ["21:00", "21:00", "21:00"]),
    ],
)
def test_gaps_and_folds(zone: str, local: str, found: list[str]) -> None:
    row = event(starts_at=local, ends_at=local[:11] + "23:59", zone=zone, rrule="FREQ=DAILY")
    several = list(islice(occurrences(row, [], unix_ms(row.starts_at) - 1), 3))
    assert [one.starts_at[11:16] for one in several] == found
    lengths = {unix_ms(str(one.ends_at)) - unix_ms(one.starts_at) for one in several}
    assert len(lengths) == 1  # elapsed time, as RFC 5545 has it
    whole = event(starts_at=local, zone=zone, rrule="FREQ=DAILY", all_day=True)
    days = list(islice(occurrences(whole, [], unix_ms(whole.starts_at) - 1), 3))
    assert [(one.local, one.ends_at) for one in days[:2]] == [
        (local[:10], days[1].starts_at),
        (days[1].local, days[2].starts_at),
    ]


@pytest.mark.parametrize("first", ["1604-02-29", "1950-06-01", "1979-12-31", "2020-06-01"])
def test_birthdays_of_long_ago_do_not_end(first: str) -> None:
    row = event(starts_at=first, all_day=True, rrule="FREQ=YEARLY")
    found = list(islice(occurrences(row, [], unix_ms("2027-01-01T00:00:00Z")), 30))
    assert found[-1].local[:4] >= "2056" and {one.local[4:] for one in found} == {first[4:]}


def test_a_reminder_comes_at_most_a_year_before() -> None:
    year = 366 * 24 * 60
    assert event(starts_at="2026-01-01T00:00", reminder_minutes=year).reminder_minutes == year
    with pytest.raises(InvalidInput, match="from 0 to 527040"):
        event(starts_at="2026-01-01T00:00", reminder_minutes=year + 1)


def test_the_beginning_counts_also_if_the_rule_does_not_name_it() -> None:
    row = event(
        starts_at="2026-01-06T09:00", rrule="FREQ=WEEKLY;BYDAY=MO", rdates=["2026-01-07T09:00", "2026-01-12T09:00"]
    )
    assert [iso(one)[5:10] for one in islice(nominal_times(row, 0), 4)] == ["01-06", "01-07", "01-12", "01-19"]
    row = event_of(row, {"exdates": ["2026-01-06T09:00", "2026-01-12T09:00"]})
    assert [iso(one)[5:10] for one in islice(nominal_times(row, 0), 2)] == ["01-07", "01-19"]


@pytest.mark.parametrize("name", ["exdates", "rdates"])
def test_too_many_times_are_refused_and_none_is_forgotten(name: str) -> None:
    """Also if some are there twice, by which all would be few enough."""
    days = [(date(2026, 1, 6) + at * DAY).isoformat() for at in range(DATES_MAX)]
    row = event(starts_at="2026-01-05T09:00", rrule="FREQ=DAILY", **{name: days})
    assert len(getattr(row, name)) == DATES_MAX
    with pytest.raises(InvalidInput, match="at most 1000 times"):
        event(starts_at="2026-01-05T09:00", rrule="FREQ=DAILY", **{name: [*days[:500], *days[:501]]})


def test_an_occurrence_is_as_its_own_state_leaves_it() -> None:
    row = event(starts_at="2026-01-05T09:00", ends_at="2026-01-05T10:00", zone="Asia/Tokyo", location="Here")
    one = occurrence_of(row, state(row.starts_at, "2026-01-06T03:00:00.000Z", title="Other", notes="late"))
    assert (one.title, one.local, one.ends_at) == ("Other", "2026-01-06T12:00", "2026-01-06T04:00:00.000Z")
    assert (one.nominal_at, one.location, one.notes) == (row.starts_at, "Here", "late")


@given(
    rule=rules(),
    first=st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1)),
    days=st.integers(-3, 400),
    zone=st.sampled_from(ZONES),
    data=st.data(),
)
def test_occurrences_are_those_of_a_naive_reference(
    rule: dict[str, Any], first: datetime, days: int, zone: str, data: st.DataObject
) -> None:
    first, tz = first.replace(microsecond=0), ZoneInfo(zone)

    def utc(local: datetime) -> datetime:
        return local.replace(tzinfo=tz).astimezone(UTC)

    after, end = utc(first + days * DAY), utc(first + HORIZON - 2 * DAY)
    named = sorted({utc(one) for one in naive(rule, first) if utc(one) >= utc(first)} | {utc(first)})
    some = st.lists(st.sampled_from(named[:40]), max_size=3, unique=True)
    left_out, moved, cancelled = data.draw(some), data.draw(some), data.draw(some)
    added = [utc(first + n * timedelta(hours=7)) for n in data.draw(st.lists(st.integers(0, 800), max_size=3))]
    to = {one: one + data.draw(st.sampled_from([-9, 1, 30, 700])) * timedelta(hours=1) for one in moved}
    text = ";".join(f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in rule.items())
    try:
        row = event(
            starts_at=first.isoformat(),
            zone=zone,
            rrule=text,
            exdates=[one.isoformat() for one in left_out],
            rdates=[one.isoformat() for one in added],
        )
    except InvalidInput as error:  # no hour of the interval is among those of BYHOUR
        assert "empty set" in error.message
        return
    states = {one: state(stored(one), stored(to.get(one, one))) for one in {*moved, *cancelled}}
    for one in cancelled:
        states[one] = state(stored(one), stored(to.get(one, one)), status=EventOccurrenceStatus.CANCELLED)

    expected = sorted(
        (to.get(one, one), one)
        for one in {*named, *added, *moved} - {one for one in left_out if one not in moved} - {*cancelled}
        if after < to.get(one, one) < end
    )
    found = takewhile(lambda one: one.starts_at < stored(end), occurrences(row, list(states.values()), ms(after)))
    several = [(one.starts_at, one.nominal_at) for one in islice(found, 60) if one.starts_at > stored(after)]
    assert sorted(several[:40]) == [(stored(at), stored(one)) for at, one in expected][: min(40, len(several))]
    assert len(several) >= min(40, len(expected))


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def stored(at: datetime) -> str:
    return iso(ms(at))


@given(st.integers(0, 3000), st.integers(0, 5 * 1440), st.lists(st.integers(0, 9), max_size=4, unique=True))
def test_reminders_are_each_later_than_the_last_ones(minutes: int, now: int, decided: list[int]) -> None:
    row = event(starts_at="2026-01-01T00:00", rrule="FREQ=DAILY", reminder_minutes=minutes)
    start = unix_ms("2026-01-01T00:00:00Z")
    at = [start + (n * 1440 - minutes) * 60_000 for n in range(20)]
    states = [state(iso(start + n * 1440 * 60_000), reminder=OccurrenceStatus.FIRED) for n in decided]
    open_ = [one for n, one in enumerate(at) if n not in decided]
    found = reminders(row, states, at[0] - 1, start + now * 60_000)
    assert [one for one, _ in found.due] == [one for one in open_ if one <= start + now * 60_000]
    assert (found.older, found.next_ms) == (0, next(one for one in open_ if one > start + now * 60_000))


def test_none_is_early_not_even_behind_another() -> None:
    row = event(starts_at="2026-01-01T10:00", rdates=["2026-01-01T10:00:30"], reminder_minutes=0)
    found = reminders(row, [], 0, unix_ms(row.starts_at))
    assert [iso(one) for one, _ in found.due] == [row.starts_at]
    assert iso(found.next_ms or 0) == "2026-01-01T10:00:30.000Z"


def test_of_very_many_reminders_the_newest_are_listed() -> None:
    row = event(starts_at="2020-01-01T00:00", rrule="FREQ=HOURLY", reminder_minutes=0)
    found = reminders(row, [], 0, unix_ms("2021-01-01T00:30:00Z"))
    assert (found.older, len(found.due), iso(found.next_ms or 0)) == (
        366 * 24 + 1 - 1000,
        1000,
        "2021-01-01T01:00:00.000Z",
    )
