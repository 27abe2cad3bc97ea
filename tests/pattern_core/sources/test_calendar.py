"""A calendar elsewhere: what is new, what changed or was deleted, and what begins soon, each once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied, Unavailable
from pattern_core.sources.kinds.ics import AHEAD_MS, SOON_MAX, CalendarSource, read_entries
from pattern_core.sources.source import Arrivals, SourceAccount
from pattern_core.testing import START_MS, StoppedClock
from pattern_core.testing.channels import FeedServer
from pattern_core.timing import DAY_MS
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import settings
from tests.support import START

KIND = CalendarSource()
HOUR_MS = 3_600_000


def at(hours: float) -> str:
    """So many hours after the clock's beginning, as iCalendar writes it."""
    moment = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=hours)
    return moment.strftime("%Y%m%dT%H%M%SZ")


def entry(uid: str, hours: float, *lines: str, title: str = "") -> str:
    """An entry that begins then."""
    about = [f"SUMMARY:{title or uid}", f"DTSTART:{at(hours)}", f"DTEND:{at(hours + 1)}", *lines]
    return "\r\n".join(["BEGIN:VEVENT", f"UID:{uid}", "DTSTAMP:20260101T000000Z", *about, "END:VEVENT"])


def calendar(*entries: str) -> bytes:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Test//EN", *entries, "END:VCALENDAR", ""]).encode()


class Watching:
    """A source without a constellation: what it returned is its cursor the next time."""

    def __init__(self, server: FeedServer, **config: Any) -> None:
        self.server = server
        self.clock = StoppedClock()
        reach = settings(server)
        checked = KIND.checked({"url": f"{server.url}/a.ics", **config}, reach)
        row = SourceRow("src_1", "it", "calendar", checked, START, START)
        self.account = SourceAccount(row=row, settings=reach, clock=self.clock)

    async def poll(self) -> Arrivals:
        arrived = await self.account.call(KIND.poll)
        cursor = json.loads(json.dumps(dict(arrived.cursor)))
        self.account = replace(self.account, row=replace(self.account.row, sync_cursor=cursor))
        return arrived

    async def titles(self, *entries: str, later_ms: int = 0) -> list[str]:
        """What is new after some time, with these entries in the calendar, if given."""
        self.clock.advance(later_ms)
        if entries:
            self.server.body = calendar(*entries)
        return [one.title for one in (await self.poll()).events]


@asynccontextmanager
async def watching(*entries: str, **config: Any) -> AsyncIterator[Watching]:
    """A calendar that was looked at once."""
    async with FeedServer(calendar(*entries)) as server:
        it = Watching(server, **config)
        assert (await it.poll()).events == []
        yield it


async def test_what_is_new_changed_or_deleted_is_an_event_and_what_is_over_none() -> None:
    async with watching(entry("past", -48), entry("a", 240), entry("b", 240)) as it:
        assert await it.titles() == []
        assert it.server.requests[-1].headers["if-none-match"]
        moved = entry("a", 250, "LOCATION:Room 12", r"DESCRIPTION:Bring\nyours")
        assert await it.titles(entry("b", 240), moved, entry("c", 300), entry("old", -20)) == ["Changed: a", "New: c"]
        assert await it.titles(entry("b", 240), moved) == ["Deleted: c"]
        assert await it.titles(entry("b", 240, "STATUS:CANCELLED"), moved) == ["Deleted: b"]
        assert await it.titles(moved, later_ms=20 * DAY_MS) == []


async def test_an_entry_says_when_where_and_how_often() -> None:
    async with watching(entry("b", 240)) as it:
        repeated = (
            "BEGIN:VEVENT\r\nUID:a\r\nSUMMARY:Review\r\nDTSTART;TZID=Europe/Berlin:20260109T090000\r\nDURATION:PT90M"
        )
        it.server.body = calendar(
            f"{repeated}\r\nRRULE:FREQ=WEEKLY\r\nLOCATION:Room 12\r\nDESCRIPTION:Bring it\r\nEND:VEVENT",
            entry("b", 240),
        )
        [event] = (await it.poll()).events
        assert event.text == (
            "Begins at 2026-01-09T09:00, ends at 2026-01-09T10:30 (Europe/Berlin)\n"
            "It repeats: FREQ=WEEKLY\nPlace: Room 12\nBring it"
        )
        day = "BEGIN:VEVENT\r\nUID:d\r\nSUMMARY:Feast\r\nDTSTART;VALUE=DATE:20260301\r\nEND:VEVENT"
        it.server.body = calendar(day)
        events = (await it.poll()).events
        assert [one.text for one in events if one.title == "New: Feast"] == ["Begins at 2026-03-01 (UTC)"]


async def test_what_a_server_writes_differently_each_time_is_no_change() -> None:
    async with watching(entry("a", 240)) as it:
        again = entry("a", 240, "LAST-MODIFIED:20260102T000000Z", "SEQUENCE:4").replace("DTSTAMP:2026", "DTSTAMP:2027")
        assert await it.titles(again) == []
        assert await it.titles(entry("a", 241)) == ["Changed: a"]
        assert await it.titles(entry("a", 240)) == ["Changed: a"]


async def test_an_entry_that_changes_back_is_another_event() -> None:
    async with watching(entry("a", 240)) as it:
        natives = []
        for hours in (241, 240, 241):
            it.server.body = calendar(entry("a", hours))
            natives += [one.native for one in (await it.poll()).events]
        assert len(set(natives)) == 3


async def test_what_begins_soon_is_announced_once_though_the_calendar_does_not_change() -> None:
    async with watching(entry("a", 10), entry("b", 10.1), before_min=30) as it:
        assert await it.titles(later_ms=9 * HOUR_MS) == []
        arrived = await it.poll()
        assert (arrived.events, arrived.wait_s) == ([], 900.0)
        it.clock.advance(15 * 60_000)
        assert (await it.poll()).wait_s == 900.0
        it.clock.advance(15 * 60_000)
        asked = len(it.server.requests)
        [event] = (await it.poll()).events
        assert len(it.server.requests) == asked  # an event that is due needs no calendar
        assert event.title == "Begins at 2026-01-01T10:00: a"
        assert (await it.poll()).wait_s == 360.0
        assert await it.titles(later_ms=360_000) == ["Begins at 2026-01-01T10:06: b"]
        assert await it.titles(entry("a", 10), entry("b", 10.1), entry("c", 500)) == ["New: c"]
        assert await it.titles(later_ms=60_000) == []


async def test_what_began_long_ago_is_not_announced() -> None:
    async with watching(entry("a", 10), entry("b", 12.5), before_min=0) as it:
        assert await it.titles(later_ms=13 * HOUR_MS) == ["Began at 2026-01-01T12:30: b"]
        assert await it.titles() == []


async def test_what_begins_first_is_announced_first() -> None:
    async with watching(entry("b", 10.1), entry("a", 10), before_min=30) as it:
        found = await it.titles(later_ms=9 * HOUR_MS + 40 * 60_000)
        assert found == ["Begins at 2026-01-01T10:00: a", "Begins at 2026-01-01T10:06: b"]


async def test_each_occurrence_is_announced_for_days_and_a_moved_one_where_it_moved() -> None:
    daily = entry("a", 9, "RRULE:FREQ=DAILY", title="Stand-up")
    moved = "\r\n".join(["BEGIN:VEVENT", "UID:a", f"RECURRENCE-ID:{at(57)}", f"DTSTART:{at(60)}", "END:VEVENT"])
    cancelled = moved.replace(at(57), at(81)).replace(at(60), at(81)).replace("END:", "STATUS:CANCELLED\r\nEND:")
    found: list[str] = []
    async with watching(daily, moved, cancelled, before_min=60) as it:
        for _ in range(10 * 24):
            found += await it.titles(later_ms=HOUR_MS)
    wanted = [24 * day + 9 for day in range(10) if day != 3]
    wanted[2] = 60
    begun = [datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=hours) for hours in wanted]
    assert found == [f"Begins at {one:%Y-%m-%dT%H:%M}: Stand-up" for one in begun]


async def test_more_than_is_known_of_comes_later() -> None:
    many = SOON_MAX + 100
    async with watching(
        *(entry(str(at), (at + at % 2) / 60) for at in range(1, many + 1)), before_min=0, every_s=60
    ) as it:
        found = []
        for _ in range(many + 10):
            found += await it.titles(later_ms=60_000)
        assert [one.rpartition(" ")[2] for one in found] == [str(number + 1) for number in range(many)]


async def test_a_calendar_that_cannot_be_asked_or_read_is_an_error_and_no_news() -> None:
    async with watching(entry("a", 10)) as it:
        for body, status, error in (
            (b"<html>Sign in</html>", 200, InvalidInput),
            (b"", 503, Unavailable),
            (b"", 403, PermissionDenied),
            (b"x" * 6_000_000, 200, InvalidInput),
        ):
            it.server.body, it.server.status = body, status
            with pytest.raises(error):
                await it.poll()
        it.server.status = 200
        assert await it.titles(entry("a", 10), entry("b", 300)) == ["New: b"]
        it.server.status = 503
        assert await it.titles(later_ms=10 * HOUR_MS - 60_000) == ["Begins at 2026-01-01T10:00: a"]


def test_a_calendar_with_too_much_is_refused() -> None:
    times = [str(START_MS), str(START_MS), str(START_MS + AHEAD_MS)]
    with pytest.raises(InvalidInput, match="entries are not over"):
        read_entries(calendar(*(entry(str(number), 300) for number in range(2_001))), *times)
    for body in (b"", b"\xff\x00", b"BEGIN:VCALENDAR\r\n" * 3_000):
        with pytest.raises(InvalidInput, match="not an iCalendar"):
            read_entries(body, *times)


def test_configuration() -> None:
    reach = settings(ports=(443,))
    found = KIND.checked({"url": "webcal://example.org/a.ics"}, reach)
    assert found == {"url": "https://example.org/a.ics", "before_min": 15, "every_s": 900.0}
    for wrong in ({"every_s": 1}, {"before_min": -1}, {"before_min": 1.5}, {"url": "http://example.org:22/"}):
        with pytest.raises((InvalidInput, PermissionDenied)):
            KIND.checked({**found, **wrong}, reach)
