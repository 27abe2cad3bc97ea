"""Schedules: what fires when, what is missed, and what is not due any more."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

from pattern_core.approvals import ApprovalAnswer
from pattern_core.budgets.usage import UsageQuestion
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.groups.group import MemberSpec
from pattern_core.schedule.plan import ScheduleCondition, SchedulePlan, plan_of
from pattern_core.turns.admission import IncomingMessage
from pattern_db.enums import AgentStatus, ApprovalStatus, ScheduleStatus
from pattern_db.journal import usage
from pattern_db.journal.usage import Grouping, UsageRow
from pattern_db.tables import timers
from tests.pattern_core.schedule.rig import HOUR_S, down, scheduled, turns_of
from tests.support import START, USER, rows

HOURLY = {"every": float(HOUR_S)}
DAY_S = 24 * HOUR_S


async def test_an_occurrence_is_a_turn_and_the_next_one_waits() -> None:
    async with scheduled() as here:
        row = await here.schedule({"cron": "30 7 * * *", "zone": "Europe/Berlin"})
        await here.pass_time(6 * HOUR_S)
        assert await here.found() == []
        await here.pass_time(0.5 * HOUR_S)
        assert await here.found() == [("01-01T06:30", "fired", 1)]
        [(content, kind, about)] = await here.running.database.read(
            rows, "SELECT content, batch_type, source_metadata FROM messages WHERE role = 'user'"
        )
        assert (content, kind) == ("Look around.", "system_trigger")
        assert f'"{row.id}"' in str(about)
        [answer] = await here.running.database.read(rows, "SELECT content FROM messages WHERE role = 'assistant'")
        assert answer == ("Done.",)
        assert (await here.running.constellation.schedules.get("daily"))[1] == "2026-01-02T06:30:00.000Z"
        await here.pass_time(DAY_S)
        assert [one[1] for one in await here.found()] == ["fired", "fired"]


async def test_the_timers_of_a_constellation_fire_it_without_being_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scheduled() as here:
        await here.schedule(HOURLY)
        here.clock.advance((HOUR_S - 60) * 1000)
        await trio.sleep(HOUR_S)
        assert await here.found() == []
        here.clock.advance(60_000)
        await trio.sleep(31)
        assert await here.found() == [("01-01T01:00", "fired", 1)]


@pytest.mark.parametrize(
    ("plan", "found", "turns"),
    [
        ({"missed": "skip"}, ["missed"] * 5, 0),
        ({"missed": "last"}, ["missed"] * 4 + ["fired"], 1),
        ({"missed": "all"}, ["fired"] * 5, 5),
        ({"missed": "all", "catch_up_max": 2}, ["missed"] * 3 + ["fired"] * 2, 2),
        ({"missed": "ask"}, ["missed"] * 4 + ["asked"], 0),
    ],
)
async def test_what_was_missed_is_decided_by_the_policy(plan: dict[str, Any], found: list[str], turns: int) -> None:
    async with down({**HOURLY, **plan}, 5.5 * HOUR_S) as here:
        assert [one[1] for one in await here.found()] == found
        assert await turns_of(here.running.database) == turns
        await here.pass_time(0.5 * HOUR_S)
        assert [one[1] for one in await here.found()] == [*found, "fired"]


async def test_a_short_pause_misses_nothing() -> None:
    async with down({**HOURLY, "missed": "skip"}, HOUR_S + 30) as here:
        assert await here.found() == [("01-01T01:00", "fired", 1)]


async def test_a_long_time_down_leaves_few_rows() -> None:
    async with down({"every": 60.0, "missed": "skip"}, 10 * DAY_S) as here:
        found = await here.found()
        assert len(found) == 100
        assert sum(int(str(one[2])) for one in found) == 10 * 24 * 60
        assert (found[0][2], found[-1][1]) == (10 * 24 * 60 - 99, "fired")


@pytest.mark.parametrize(("approve", "status"), [(True, "fired"), (False, "missed")])
async def test_a_person_is_asked_about_what_was_missed(approve: bool, status: str) -> None:
    async with down({**HOURLY, "missed": "ask"}, 2.5 * HOUR_S) as here:
        approvals = here.running.constellation.approvals
        [question] = await approvals.list(9)
        assert question.request["schedule"] == "daily"
        decided = await approvals.decide(question.id, ApprovalAnswer(approve=approve, by=USER))
        assert decided.status is (ApprovalStatus.APPROVED if approve else ApprovalStatus.DENIED)
        await trio.testing.wait_all_tasks_blocked()
        assert await here.found() == [("01-01T01:00", "missed", 1), ("01-01T02:00", status, 1)]
        assert await turns_of(here.running.database) == int(approve)


async def test_a_question_about_a_deleted_schedule_is_closed() -> None:
    async with down({**HOURLY, "missed": "ask"}, 2.5 * HOUR_S) as here:
        approvals = here.running.constellation.approvals
        await here.running.constellation.schedules.delete("daily")
        [question] = await approvals.list(9)
        with pytest.raises(NotFound, match="no schedule"):
            await approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        await approvals.decide(question.id, ApprovalAnswer(approve=False, by=USER))
        assert await approvals.list(9) == []


async def test_a_clock_that_jumps_repeats_and_loses_nothing() -> None:
    async with scheduled() as here:
        await here.schedule({**HOURLY, "missed": "all"})
        for seconds in (HOUR_S, -HOUR_S, HOUR_S, HOUR_S, 3 * HOUR_S, -2 * HOUR_S, 3 * HOUR_S):
            await here.pass_time(seconds)
        assert await here.found() == [(f"01-01T0{hour}:00", "fired", 1) for hour in range(1, 7)]


async def test_an_edit_while_the_clock_is_behind_repeats_nothing() -> None:
    async with scheduled() as here:
        await here.schedule(HOURLY)
        await here.pass_time(HOUR_S)
        await here.pass_time(-0.5 * HOUR_S)
        _, due_at = await here.running.constellation.schedules.update("daily", {"message": "Look again."})
        assert due_at == "2026-01-01T02:00:00.000Z"
        await here.pass_time(HOUR_S)
        assert await here.found() == [("01-01T01:00", "fired", 1)]


async def test_one_that_cannot_be_read_any_more_is_paused_and_says_why() -> None:
    async with scheduled() as here:
        row = await here.schedule(HOURLY)
        plan = '{"every": 3600, "zone": "Mars/Olympus"}'
        await here.running.database.write(rows, "UPDATE schedule SET plan = ? RETURNING id", plan)
        await here.pass_time(HOUR_S)
        schedules = here.running.constellation.schedules
        assert (await schedules.get("daily"))[0].status is ScheduleStatus.PAUSED
        [occurred] = await schedules.occurrences(row.id, 9)
        assert (occurred.status, "no time zone" in (occurred.reason or "")) == ("skipped", True)


def test_a_plan_ignores_what_a_newer_version_stored() -> None:
    stored = {"every": 60, "later": 1, "when": [{"kind": "inbox", "later": 1}]}
    assert plan_of(stored) == SchedulePlan(every=60, when=(ScheduleCondition(kind="inbox"),))
    with pytest.raises(InvalidInput, match=r"`when.0.later` is not known .known are: `kind`.*; `later` is not known"):
        plan_of(stored, is_new=True)


async def test_quiet_hours_and_agents_that_rest() -> None:
    async with scheduled() as here:
        roster = here.running.constellation.roster
        await here.schedule({**HOURLY, "zone": "Asia/Tokyo", "quiet": "22:00-11:30"})
        await here.pass_time(HOUR_S)  # 10:00 in Tokyo
        await here.pass_time(2 * HOUR_S)
        assert await here.found() == [
            ("01-01T01:00", "skipped", 1),
            ("01-01T02:00", "missed", 1),
            ("01-01T03:00", "fired", 1),
        ]
        await roster.update("ada", {"status": AgentStatus.HIBERNATED})
        await here.pass_time(HOUR_S)
        assert (await roster.get("ada")).status is AgentStatus.ACTIVE
        await roster.update("ada", {"status": AgentStatus.ARCHIVED})
        await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()][-2:] == ["fired", "skipped"]
        schedule, _ = await here.running.constellation.schedules.get("daily")
        [newest] = await here.running.constellation.schedules.occurrences(schedule.id, 1)
        assert "archived" in (newest.reason or "")


async def test_jitter_delays_and_never_hurries() -> None:
    async with scheduled() as here:
        schedules = here.running.constellation.schedules
        dues = set()
        for number in range(5):
            row = await here.schedule({**HOURLY, "jitter_s": 600.0}, name=f"s{number}")
            _, due_at = await schedules.get(row.id)
            dues.add(due_at)
        assert len(dues) == 5
        assert all("2026-01-01T01:00:00.000Z" <= str(due) <= "2026-01-01T01:10:00.000Z" for due in dues)
        await here.pass_time(HOUR_S + 600)
        assert [await here.found(f"s{number}") for number in range(5)] == [[("01-01T01:00", "fired", 1)]] * 5


async def test_a_schedule_that_is_over_is_finished_and_can_be_given_another_time() -> None:
    async with scheduled() as here:
        schedules = here.running.constellation.schedules
        await here.schedule({"at": "2026-01-01T02:00:00Z"})
        await here.pass_time(2 * HOUR_S)
        row, due_at = await schedules.get("daily")
        assert (row.status, due_at, len(await here.found())) == (ScheduleStatus.FINISHED, None, 1)
        changed, due_at = await schedules.update("daily", {"every": 7200.0, "name": "often"})
        assert (changed.status, "at" in changed.plan) == (ScheduleStatus.ACTIVE, False)
        assert due_at == "2026-01-01T04:00:00.000Z"


async def test_it_is_paused_resumed_run_by_hand_and_deleted() -> None:
    async with scheduled() as here:
        schedules = here.running.constellation.schedules
        await here.schedule(HOURLY)
        await schedules.update("daily", {"status": ScheduleStatus.PAUSED})
        await here.pass_time(1.5 * HOUR_S)
        assert await here.found() == []
        turn_id = await schedules.run("daily")
        assert (await here.running.constellation.wait(turn_id)).status == "completed"
        with pytest.raises(Conflict, match="fired in this moment"):
            await schedules.run("daily")
        await schedules.update("daily", {"status": ScheduleStatus.ACTIVE})
        await here.pass_time(0.5 * HOUR_S)
        assert await here.found() == [("01-01T01:30", "fired", 1), ("01-01T02:00", "fired", 1)]
        await schedules.delete("daily")
        assert await here.running.database.read(timers.first_due) is None
        with pytest.raises(NotFound, match="no schedule 'daily'"):
            await schedules.get("daily")


async def test_it_goes_with_its_agent() -> None:
    async with scheduled() as here:
        await here.schedule(HOURLY)
        await here.running.constellation.delete_agent("ada")
        assert await here.running.constellation.schedules.all() == []
        await here.pass_time(HOUR_S)
        assert await here.running.database.read(timers.first_due) is None


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({}, "exactly one of"),
        ({"every": 60.0, "cron": "@daily"}, "exactly one of"),
        ({"every": 59.0}, "at least 60"),
        ({"at": "2025-01-01T00:00:00Z"}, "never be due"),
        ({"rrule": "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"}, "never be due"),
        ({"every": 60.0, "evry": 1}, "`evry` is not known"),
        ({"every": 60.0, "missed": "some"}, "missed"),
        ({"every": 60.0, "quiet": "25:00-07:00"}, "quiet"),
        ({"every": 60.0, "when": [{"kind": "block"}]}, "needs `label`"),
        ({"every": 60.0, "when": [{"kind": "inbox", "lable": "x"}]}, "`when.0.lable` is not known"),
    ],
)
async def test_what_cannot_be_is_refused(plan: dict[str, Any], says: str) -> None:
    async with scheduled() as here:
        with pytest.raises(InvalidInput, match=says):
            await here.schedule(plan)
        await here.schedule(HOURLY)
        with pytest.raises(Conflict, match="name 'daily' is taken"):
            await here.schedule(HOURLY)


async def test_usage_by_cause_follows_the_chain_to_who_or_what_began_it() -> None:
    async with scheduled() as here:
        world, schedules = here.running, here.running.constellation.schedules
        bob = await world.agent("bob")
        desk = await world.constellation.groups.create(
            name="desk", pattern_type="parallel", members=[MemberSpec("ada"), MemberSpec("bob")]
        )
        heartbeat = {"every": 3.0 * HOUR_S, "when": [{"kind": "activity"}]}
        await here.schedule({"every": 2.0 * HOUR_S}, target="bob")
        await schedules.create(name="own work", target=desk, message="Look around.", plan=heartbeat)
        await world.say("hello")
        parent = (await world.constellation.turn(await world.submit("ask bob"))).key
        await world.wait(await world.submit("asked", "bob", sender="agent:agt_ada", parent_turn=parent))
        await world.wait(await world.submit("asked", "bob", sender="agent:agt_gone"))
        incoming = IncomingMessage(agent_id="", content="hello", sender=USER)
        await world.wait((await world.constellation.submit_to_group("desk", incoming)).turn_id)
        await here.pass_time(3 * HOUR_S)
        await world.database.write(usage.add, _summary_of(bob.id))

        async def calls(agent_id: str | None = None) -> dict[str, int]:
            question = UsageQuestion(by=Grouping.CAUSE, agent_id=agent_id)
            total, lines = await world.constellation.budgets.report(question)
            assert total.calls == sum(line.calls for line in lines)
            return {line.key: line.calls for line in lines}

        assert await calls() == {"group": 2, "heartbeat": 2, "person": 3, "schedule": 1, "summary": 1, "unknown": 1}
        assert await calls(agent_id=bob.id) == {
            "group": 1, "heartbeat": 1, "person": 1, "schedule": 1, "summary": 1, "unknown": 1,
        }  # fmt: skip
        await world.constellation.delete_agent("bob")
        assert await calls(agent_id=bob.id) == {"summary": 1, "unknown": 5}


def _summary_of(agent_id: str) -> UsageRow:
    return UsageRow(None, 0, 1, agent_id, "script", "script-1", START, 5, 5, purpose="summary")
