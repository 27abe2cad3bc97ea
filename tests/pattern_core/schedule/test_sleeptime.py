"""Groups that work by themselves: `sleeptime`."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

from pattern_core.errors import InvalidInput
from pattern_core.groups.coordinations.sleeptime import Sleeptime, condition_of
from pattern_core.groups.group import MemberSpec
from pattern_core.testing import StoppedClock
from tests.pattern_core.groups.rig import asked, group
from tests.pattern_core.groups.rig import speak as by_name
from tests.pattern_core.schedule.rig import HOUR_S, Scheduled
from tests.support import in_memory, running

NAME = "desk: own work"


async def work(config: dict[str, Any], *hours: str | None) -> tuple[list[str], list[object]]:
    """Have a group live for some hours, in each of which ada may be told something; who was asked, what occurred."""
    clock = StoppedClock()
    async with running(otherwise=by_name, clock=clock) as one:
        here = Scheduled(one, clock)
        await group(one, "sleeptime", config)
        for words in hours:
            if words is not None:
                await one.say(words)
            await here.pass_time(HOUR_S)
        return await asked(one.database), [status for _, status, _ in await here.found(NAME)]


async def test_members_take_turns_by_themselves() -> None:
    found = await work({"check_interval": 3600}, None, None, None, None)
    assert found == (["ada", "bob", "cleo", "ada"], ["fired"] * 4)


async def test_triggers_decide_and_cost_nothing_where_none_holds() -> None:
    trigger = {"name": "talk", "condition": {"type": "constellation_activity", "message_threshold": 1}}
    config = {"check_interval": 3600, "triggers": [trigger], "intervention_agent": "cleo"}
    assert await work(config, None, "hello", None) == (["cleo"], ["skipped", "fired", "skipped"])


async def test_a_cool_down_delays_the_next_time() -> None:
    config = {"check_interval": 3600, "triggers": [{"kind": "activity"}], "cooldown": 7200}
    found = await work(config, "one", "two", "three", None, None)
    assert found == (["ada", "bob"], ["skipped", "fired", "skipped", "fired", "skipped"])


async def test_missed_times_coalesce_and_a_restart_continues() -> None:
    async with in_memory() as database:
        async with running(otherwise=by_name, database=database) as one:
            await group(one, "sleeptime", {"cron": "0 * * * *"})
        clock = StoppedClock()
        clock.advance(5 * HOUR_S * 1000 + 1)
        async with running(otherwise=by_name, clock=clock, database=database, seed=2) as one:
            await trio.testing.wait_all_tasks_blocked()
            assert await asked(database) == ["ada"]
            found = await Scheduled(one, clock).found(NAME)
            assert [status for _, status, _ in found] == ["missed"] * 4 + ["fired"]


async def test_the_schedule_follows_the_group() -> None:
    async with running(otherwise=by_name) as one:
        groups, schedules = one.constellation.groups, one.constellation.schedules
        await group(one, "sleeptime")
        await groups.update("desk", {"name": "night", "pattern_config": {"check_interval": 7200}})
        [(row, due_at)] = await schedules.all()
        assert (row.name, row.plan["every"], due_at) == ("night: own work", 7200, "2026-01-01T02:00:00.000Z")
        await groups.update("night", {"pattern_type": "round_robin", "pattern_config": {}})
        assert await schedules.all() == []
        await groups.update("night", {"pattern_type": "sleeptime"})
        await one.constellation.delete_group("night")
        assert await schedules.all() == []


async def test_each_group_has_a_schedule_of_its_own() -> None:
    async with running(otherwise=by_name) as one:
        await group(one, "sleeptime")
        await one.constellation.groups.create(name="attic", pattern_type="sleeptime", members=[MemberSpec("ada")])
        found = {row.name: row.id for row, _ in await one.constellation.schedules.all()}
        assert found.keys() == {NAME, "attic: own work"} and len(set(found.values())) == 2


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"check_interval": 1}, "at least 60"),
        ({"intervention_agent": "zoe"}, "not a member of the group"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"triggers": [{"kind": "block"}]}, "needs `label`"),
        ({"triggers": [{"condition": {"type": "custom"}}]}, "kind"),
    ],
)
async def test_what_cannot_run_is_refused(config: dict[str, Any], says: str) -> None:
    async with running(otherwise=by_name) as one:
        with pytest.raises(InvalidInput, match=says):
            await group(one, "sleeptime", config)


def test_the_triggers_of_the_original_are_conditions() -> None:
    told = {
        "name": "n",
        "priority": "low",
        "condition": {"type": "metric_threshold", "metric": "tokens", "threshold": 5},
    }
    assert condition_of(told) == {"name": "n", "priority": "low", "kind": "threshold", "metric": "tokens", "count": 5}
    assert condition_of({"condition": {"type": "time_elapsed", "duration": 60}}) == {"kind": "elapsed", "seconds": 60}
    assert condition_of({"kind": "inbox"}) == {"kind": "inbox"}
    plan = Sleeptime(cron="@daily", zone="Asia/Tokyo", prompt="Look.").own_plan()
    assert plan == {
        "cron": "@daily",
        "zone": "Asia/Tokyo",
        "when": [],
        "cooldown_s": 0.0,
        "missed": "last",
        "message": "Look.",
    }
