"""The tools of the calendar: `event_create`, `event_list`, `event_update`."""

from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.models.tokens import estimate_tools
from pattern_core.tools.builtin.event import event_create, event_list, event_update
from tests.pattern_core.memory.rig import ADA
from tests.pattern_core.tools.rig import ToolRig

JANUARY = {"since": "2027-01-01T00:00:00Z", "until": "2027-01-18T00:00:00Z"}
WALK = {"title": "Walk", "starts_at": "2027-01-05T09:00", "zone": "Asia/Tokyo", "rrule": "FREQ=WEEKLY"}


async def listed(tools: ToolRig) -> list[tuple[str, str]]:
    found = await tools.call(event_list, **JANUARY)
    return [(one["title"], one["local"]) for one in found["events"]]


async def test_an_agent_keeps_a_calendar(tools: ToolRig) -> None:
    made = await tools.call(event_create, **WALK, reminder_minutes=30)
    assert made["data"]["reminder_at"] == "2027-01-04T23:30:00.000Z"
    [event, _] = (await tools.call(event_list, **JANUARY))["events"]
    assert (event["occurrence"], event["event"]) == ("2027-01-05T00:00:00.000Z", made["data"]["event"])
    await tools.call(event_create, title="Fair", starts_at="2027-01-10", location="Hall")
    await tools.call(
        event_update, event="Walk", occurrence=event["occurrence"], starts_at="2027-01-06T10:00", notes="!"
    )
    assert await listed(tools) == [
        ("Walk", "2027-01-06T10:00"), ("Fair", "2027-01-10"), ("Walk", "2027-01-12T09:00")]  # fmt: skip
    await tools.call(event_update, event="Walk", occurrence="2027-01-12T09:00", cancel=True)
    await tools.call(event_update, event="Fair", starts_at="2027-01-11", title="Big fair")
    assert await listed(tools) == [("Walk", "2027-01-06T10:00"), ("Big fair", "2027-01-11")]
    await tools.call(event_update, event="Walk", cancel=True)
    assert await listed(tools) == [("Big fair", "2027-01-11")]
    assert [event.name for event in tools.rig.events].count("calendar.changed") == 3


async def test_an_agent_is_reminded_of_its_own_events(tools: ToolRig) -> None:
    await tools.call(event_create, **WALK)
    [(row, _)] = await tools.toolbox.calendar.all()
    assert row.agent_id == ADA


async def test_what_cannot_be_is_refused_and_changes_nothing(tools: ToolRig) -> None:
    await tools.call(event_create, **WALK)
    with pytest.raises(InvalidInput, match="one occurrence cannot change title"):
        await tools.call(event_update, event="Walk", occurrence="2027-01-05T09:00", title="Run")
    with pytest.raises(NotFound, match="no event 'Run'"):
        await tools.call(event_update, event="Run", cancel=True)
    with pytest.raises(InvalidInput, match="FREQ is one of"):
        await tools.call(event_update, event="Walk", rrule="FREQ=SECONDLY")
    assert len(await listed(tools)) == 2


def test_they_cost_a_prompt_little_and_only_if_enabled() -> None:
    found = (event_create, event_list, event_update)
    assert estimate_tools([one.spec for one in found]) <= 500
    assert [one.profiles for one in found] == [frozenset()] * 3
