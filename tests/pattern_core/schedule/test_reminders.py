"""Reminders, on time and missed, and killed after each of their commits: each exactly once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.limits import Limits
from pattern_core.testing import StoppedClock
from pattern_db.database import Database
from pattern_db.enums import AgentStatus, EventOccurrenceStatus, TrustLevel
from pattern_db.tables import timers
from tests.pattern_core.schedule.rig import HOUR_S, scheduled, speak, turn_ids, turns_of
from tests.pattern_core.schedule.test_kill_points import live, turns_that_ended
from tests.pattern_core.test_calendars import DAY_S, DENTIST, of
from tests.support import in_memory, rows, running

HOUR_MS = HOUR_S * 1000


async def reminded(database: Database) -> list[tuple[object, ...]]:
    """What became of reminders: nominal time (month to minute) and decision, oldest first."""
    return await database.read(
        rows,
        "SELECT substr(nominal_at, 6, 11), reminder FROM event_occurrences WHERE reminder IS NOT NULL"
        " ORDER BY nominal_at",
    )


async def told(database: Database) -> list[dict[str, Any]]:
    """The reminders that people were told of."""
    found = await database.read(rows, "SELECT data FROM event WHERE name = 'calendar.reminder' ORDER BY seq")
    return [json.loads(str(data)) for (data,) in found]


async def test_people_and_agents_are_reminded_once() -> None:
    async with scheduled() as here:
        calendar = of(here)
        await calendar.create({**DENTIST, "reminder_minutes": 30})
        _, due_at = await calendar.create(
            {**DENTIST, "title": "Call", "location": "Home", "agent_id": await here.ada(), "reminder_minutes": 60}
        )
        assert due_at == "2026-01-01T09:00:00.000Z"
        await here.pass_time(9 * HOUR_S - 1)
        assert await reminded(here.running.database) == []
        await here.pass_time(1)
        await here.pass_time(HOUR_S / 2)
        await here.pass_time(DAY_S)
        assert await reminded(here.running.database) == [("01-01T10:00", "fired")] * 2
        assert [one["title"] for one in await told(here.running.database)] == ["Call", "Dentist"]
        [turn_id] = await turn_ids(here.running.database)
        view = await here.running.constellation.turn(turn_id)
        assert (view.sender, view.trust) == ("system:reminder", TrustLevel.SOURCE), "agents write events, too"
        [(content,)] = await here.running.database.read(rows, "SELECT content FROM messages WHERE role = 'user'")
        assert content == "Reminder of an event in the calendar, 2026-01-01T10:00 (UTC):\n\nCall\nHome"
        assert await here.running.database.read(timers.first_due) is None


async def test_a_reminder_in_the_past_of_an_event_in_the_future_is_due_now() -> None:
    async with scheduled() as here:
        await of(here).create({**DENTIST, "reminder_minutes": 24 * 60})
        await of(here).create({**DENTIST, "starts_at": "2025-12-31T10:00", "ends_at": None, "reminder_minutes": 60})
        await here.look()
        assert await reminded(here.running.database) == [("01-01T10:00", "fired")]


async def test_an_occurrence_that_moves_reminds_at_its_new_time_and_one_that_is_over_does_not() -> None:
    async with scheduled() as here:
        daily = {**DENTIST, "title": "Walk", "rrule": "FREQ=DAILY;COUNT=4", "reminder_minutes": 10, "missed": "all"}
        await of(here).create(daily)
        await of(here).change("Walk", "2026-01-02T10:00", {"starts_at": "2026-01-01T05:00"})
        await of(here).change("Walk", "2026-01-03T10:00", {"status": EventOccurrenceStatus.SKIPPED})
        await here.pass_time(5 * HOUR_S)
        assert await reminded(here.running.database) == [("01-02T10:00", "fired")]
        await here.pass_time(DAY_S)
        await of(here).change("Walk", "2026-01-02T10:00", {"starts_at": "2026-01-02T20:00"})
        for _ in range(4):
            await here.pass_time(DAY_S)
        assert [one["starts_at"][5:16] for one in await told(here.running.database)] == [
            "01-01T05:00",
            "01-01T10:00",
            "01-02T20:00",
            "01-04T10:00",
        ]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("skip", ["missed", "missed", "missed"]),
        ("last", ["missed", "missed", "fired"]),
        ("all", ["fired", "fired", "fired"]),
    ],
)
async def test_missed_reminders_follow_the_policy(policy: str, found: list[str]) -> None:
    async with in_memory() as database:
        async with scheduled(database) as here:
            await of(here).create({**DENTIST, "rrule": "FREQ=DAILY", "reminder_minutes": 5, "missed": policy})
        clock = StoppedClock()
        clock.advance((2 * DAY_S + 12 * HOUR_S) * 1000)
        async with running(otherwise=speak, clock=clock, database=database, seed=2):
            await trio.testing.wait_all_tasks_blocked()
            while len(await reminded(database)) < 3:
                await trio.sleep(0.01)
        assert [one[1] for one in await reminded(database)] == found
        assert len(await told(database)) == found.count("fired")


async def test_an_agent_that_cannot_be_reminded_is_visible_and_one_that_rests_wakes() -> None:
    async with scheduled() as here:
        roster = here.running.constellation.roster
        await of(here).create({**DENTIST, "rrule": "FREQ=DAILY", "agent_id": await here.ada(), "reminder_minutes": 0})
        await roster.update("ada", {"status": AgentStatus.HIBERNATED})
        await here.pass_time(DAY_S / 2)
        assert (await roster.get("ada")).status is AgentStatus.ACTIVE
        await roster.update("ada", {"status": AgentStatus.ARCHIVED})
        await here.pass_time(DAY_S)
        row, _ = await of(here).get("Dentist")
        [newest, _] = await of(here).states(row.id, 9)
        assert (newest.reminder, "archived" in str(newest.reason)) == ("skipped", True)
        assert len(await told(here.running.database)) == 2


async def test_what_was_over_when_the_event_was_added_never_reminds() -> None:
    async with scheduled() as here:
        old = {"starts_at": "2025-12-01T10:00", "ends_at": None, "rrule": "FREQ=DAILY", "missed": "all"}
        await of(here).create({**DENTIST, **old, "reminder_minutes": 0})
        await here.pass_time(DAY_S / 2)
        await here.pass_time(DAY_S)
        assert [one[0] for one in await reminded(here.running.database)] == ["01-01T10:00", "01-02T10:00"]


async def test_a_rule_that_changes_reminds_of_no_occurrence_that_was_moved() -> None:
    async with scheduled() as here:
        await of(here).create({**DENTIST, "rrule": "FREQ=DAILY", "reminder_minutes": 0})
        await of(here).change("Dentist", "2026-01-03T10:00", {"starts_at": "2026-01-01T05:00"})
        _, due_at = await of(here).update("Dentist", {"rrule": "FREQ=DAILY;INTERVAL=2"})
        assert due_at == "2026-01-01T10:00:00.000Z"


async def test_an_agent_for_whom_too_many_messages_wait_is_not_reminded() -> None:
    async with scheduled(limits=Limits(inbox_per_agent_max=0)) as here:
        await of(here).create({**DENTIST, "agent_id": await here.ada(), "reminder_minutes": 0})
        await here.pass_time(DAY_S / 2)
        row, _ = await of(here).get("Dentist")
        [one] = await of(here).states(row.id, 9)
        assert (one.reminder, one.turn_id, "wait" in str(one.reason)) == ("skipped", None, True)
        assert await turns_of(here.running.database) == 0


async def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    async with scheduled() as here:
        await of(here).create({**DENTIST, "rrule": "FREQ=HOURLY", "reminder_minutes": 0})
        await here.pass_time(10 * HOUR_S)
        await here.pass_time(-3 * HOUR_S)
        await of(here).update("Dentist", {"location": "Downtown"})
        await here.pass_time(4 * HOUR_S)
        assert [one["nominal_at"][11:16] for one in await told(here.running.database)] == ["10:00", "11:00"]


@pytest.mark.parametrize("policy", ["all", "last"])
@pytest.mark.parametrize("agent", ["ada", None])
async def test_a_kill_after_any_commit_repeats_and_loses_nothing(policy: str, agent: str | None) -> None:
    event = {"title": "Walk", "starts_at": "2026-01-01T01:00", "rrule": "FREQ=HOURLY", "missed": policy,
             "reminder_minutes": 10}  # fmt: skip

    async def lived(kill_at: int) -> tuple[object, int]:
        async with in_memory() as database:
            async with scheduled(database) as here:
                await of(here).create({**event, "agent_id": await here.ada() if agent else None})
            clock = StoppedClock()
            clock.advance(3 * HOUR_MS)
            survived, commits = await live(database, clock, kill_at=kill_at, seed=2)
            if not survived:
                await live(database, clock, kill_at=0, seed=3)
            assert await turns_that_ended(database) == await turns_of(database)
            people = [one["nominal_at"] for one in await told(database)]
            return (await reminded(database), people, await turns_of(database)), commits

    whole, commits = await lived(0)
    fired = 3 if policy == "all" else 1
    assert isinstance(whole, tuple) and (len(whole[1]), whole[2]) == (fired, fired if agent else 0)
    assert commits >= 1
    for kill_at in range(1, commits + 1):
        assert (await lived(kill_at))[0] == whole, f"killed after commit {kill_at}"
