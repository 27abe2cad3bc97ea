"""The calendar: events, their occurrences, and reminders."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core import calendars as module
from pattern_core.calendars import Calendar, place_of
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_db.enums import EventOccurrenceStatus
from pattern_db.tables import calendars
from tests.pattern_core.schedule.rig import HOUR_S, Scheduled, scheduled

DAY_S = 24 * HOUR_S
DENTIST = {"title": "Dentist", "starts_at": "2026-01-01T10:00", "ends_at": "2026-01-01T11:00"}
STANDUP = {
    "title": "Stand-up",
    "starts_at": "2026-01-05T09:00",
    "ends_at": "2026-01-05T09:15",
    "zone": "Europe/Berlin",
    "rrule": "FREQ=WEEKLY;BYDAY=MO,WE",
}


def of(here: Scheduled) -> Calendar:
    return here.running.constellation.calendar


async def starts(here: Scheduled, since: str, until: str) -> list[str]:
    found = await of(here).between(since, until, 100)
    return [f"{one.local} {one.title}" for one in found]


async def test_events_take_place_where_their_zone_says() -> None:
    async with scheduled() as here:
        await of(here).create(DENTIST)
        await of(here).create(STANDUP)
        await of(here).create({"title": "Fair", "starts_at": "2026-03-28", "ends_at": "2026-03-31", "all_day": True,
                               "zone": "Europe/Berlin"})  # fmt: skip
        assert await starts(here, "2026-01-01", "2026-01-10") == [
            "2026-01-01T10:00 Dentist",
            "2026-01-05T09:00 Stand-up",
            "2026-01-07T09:00 Stand-up",
        ]
        # The clocks change within the fair; it is under way where the list begins.
        [fair, standup] = await of(here).between("2026-03-29T12:00:00Z", "2026-03-31T00:00:00Z", 9)
        assert (fair.local, fair.starts_at, fair.ends_at) == (
            "2026-03-28",
            "2026-03-27T23:00:00.000Z",
            "2026-03-30T22:00:00.000Z",
        )
        assert (standup.local, standup.starts_at[11:16], str(standup.ends_at)[11:16]) == (
            "2026-03-30T09:00", "07:00", "07:15")  # fmt: skip


async def test_a_list_has_what_takes_place_at_its_first_moment_and_not_at_its_last() -> None:
    async with scheduled() as here:
        await of(here).create(DENTIST)
        await of(here).create({"title": "Bell", "starts_at": "2026-01-01T10:00"})
        both = {"2026-01-01T10:00 Bell", "2026-01-01T10:00 Dentist"}
        assert set(await starts(here, "2026-01-01T10:00:00.000Z", "2026-01-01T11:00:00.000Z")) == both
        assert await starts(here, "2026-01-01T10:00:00.001Z", "2026-01-02") == ["2026-01-01T10:00 Dentist"]
        assert await starts(here, "2026-01-01", "2026-01-01T10:00:00.000Z") == []


async def test_pages_continue_where_the_last_one_ended() -> None:
    async with scheduled() as here:
        for number in range(3):
            await of(here).create({**STANDUP, "title": f"s{number}", "rrule": "FREQ=DAILY;COUNT=5"})
        until, found = "2026-02-01T00:00:00Z", []
        whole = await of(here).between(None, until, 100)
        after: str | None = None
        while page := await of(here).between(None, until, 4, after=after):
            found += page
            after = place_of(page[-1])
        assert found == whole and len(whole) == 15


async def test_an_occurrence_is_moved_cancelled_and_noted() -> None:
    async with scheduled() as here:
        calendar = of(here)
        await calendar.create(STANDUP)
        moved = await calendar.change("Stand-up", "2026-01-07T09:00", {"starts_at": "2026-01-08T14:00"})
        assert (moved.local, moved.ends_at) == ("2026-01-08T14:00", "2026-01-08T13:15:00.000Z")
        cancelled = {"status": EventOccurrenceStatus.CANCELLED}
        await calendar.change("Stand-up", "2026-01-12T08:00:00.000Z", cancelled)
        await calendar.change("Stand-up", "2026-01-14T09:00", {"notes": "Bring the plan."})
        assert await starts(here, "2026-01-01", "2026-01-20") == [
            f"{local} Stand-up"
            for local in ("2026-01-05T09:00", "2026-01-08T14:00", "2026-01-14T09:00", "2026-01-19T09:00")
        ]
        await calendar.change("Stand-up", "2026-01-07T09:00", {"starts_at": "2026-01-07T09:00"})
        await calendar.change("Stand-up", "2026-01-12T09:00", {"status": EventOccurrenceStatus.SCHEDULED})
        assert len(await starts(here, "2026-01-01", "2026-01-20")) == 5
        with pytest.raises(NotFound, match="no occurrence at 2026-01-06"):
            await calendar.change("Stand-up", "2026-01-06T09:00", {"notes": "no"})
        await calendar.change("Stand-up", "2026-01-07T09:00", {"starts_at": "2026-01-08T14:00"})
        await calendar.update("Stand-up", {"rrule": "FREQ=WEEKLY;BYDAY=MO"})
        assert await starts(here, "2026-01-01", "2026-01-14") == [
            "2026-01-05T09:00 Stand-up",
            "2026-01-12T09:00 Stand-up",
        ]
        await calendar.delete("Stand-up")
        assert await starts(here, "2026-01-01", "2026-01-20") == []


async def test_only_so_many_occurrences_differ_from_their_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGED_MAX", 2)
    async with scheduled() as here:
        calendar = of(here)
        await calendar.create(STANDUP)
        for day in ("05", "07"):
            await calendar.change("Stand-up", f"2026-01-{day}T09:00", {"notes": "x"})
        with pytest.raises(InvalidInput, match="2 occurrences differ from the rule"):
            await calendar.change("Stand-up", "2026-01-12T09:00", {"notes": "x"})
        changed = await calendar.change("Stand-up", "2026-01-07T09:00", {"notes": "y"})  # which differs already
        assert changed.notes == "y"


async def test_an_event_that_moves_keeps_its_length_and_its_zone_is_never_guessed() -> None:
    async with scheduled() as here:
        await of(here).create(DENTIST)
        row, _ = await of(here).update("Dentist", {"starts_at": "2026-01-02T15:00"})
        assert (row.starts_at, row.ends_at) == ("2026-01-02T15:00:00.000Z", "2026-01-02T16:00:00.000Z")
        with pytest.raises(InvalidInput, match="add `starts_at`"):
            await of(here).update("Dentist", {"zone": "Asia/Tokyo"})
        row, _ = await of(here).update("Dentist", {"all_day": True})
        assert (row.starts_at, row.ends_at) == ("2026-01-02T00:00:00.000Z", "2026-01-03T00:00:00.000Z")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"title": " "}, "1 to 500 characters"),
        ({"title": "a\x1b[31m"}, "control characters"),
        ({"starts_at": "soon"}, "`starts_at` cannot be read"),
        ({"starts_at": "0001-01-01T00:00"}, "between the years"),
        ({"ends_at": "2025-12-31T00:00"}, "ends before it begins"),
        ({"zone": "Mars/Olympus"}, "no time zone"),
        ({"rrule": "FREQ=MINUTELY"}, "FREQ is one of"),
        ({"rrule": "FREQ=DAILY", "ends_at": "2028-01-01T00:00"}, "at most 366 days"),
        ({"rdates": [f"2026-01-01T{n // 60:02}:{n % 60:02}" for n in range(1001)]}, "at most 1000 times"),
        ({"reminder_minutes": -1}, "reminder_minutes"),
        ({"description": "x" * 20_001}, "more than 20000"),
    ],
)
async def test_what_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    async with scheduled() as here:
        with pytest.raises((InvalidInput, NotFound), match=says):
            await of(here).create({**DENTIST, **changes})
        assert await of(here).all() == []


async def test_titles_name_events_as_long_as_they_are_single() -> None:
    async with scheduled() as here:
        row, _ = await of(here).create(DENTIST)
        await of(here).create(DENTIST)
        with pytest.raises(Conflict, match="several events are called Dentist"):
            await of(here).get("Dentist")
        assert (await of(here).get(row.id))[0] == row


async def test_reminders_of_a_copy_rest_until_the_event_is_changed() -> None:
    async with scheduled() as here:
        await of(here).create({**DENTIST, "reminder_minutes": 0})
        await here.running.database.write(calendars.pause_reminders)
        assert (await of(here).get("Dentist"))[1] is None
        assert (await of(here).update("Dentist", {}))[1] == "2026-01-01T10:00:00.000Z"
