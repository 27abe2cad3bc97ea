"""Turns as an agent takes them up: from what was accepted, and from rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.agents import recovery
from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.history import History
from pattern_core.agents.opening import NextTurn, equip, found_turn, new_turn, source_of
from pattern_core.agents.services import TurnServices
from pattern_core.errors import InvalidInput
from pattern_core.messages import user
from pattern_core.rules.state import Call
from pattern_core.testing.clock import StoppedClock
from pattern_core.testing.model import calls, says, together
from pattern_db.journal import turns
from tests.support import USER, Outside, Running, note, running

PAYLOAD = {"content": "hello", "source": "schedule"}
FOLLOWING = NextTurn(key=1, id="turn_1", seed=7, sender="user:usr_ada", depth=2, payload=PAYLOAD)


def services_of(one: Running) -> TurnServices:
    return one.constellation._services


async def opened(one: Running, **config: Any) -> ActiveTurn:
    agent = await one.agent()
    if config:
        agent = await one.constellation.roster.update(agent.id, {"config": config})
    incoming = user("hello")
    return new_turn(services_of(one), agent, FOLLOWING, incoming, History())


@pytest.mark.parametrize(
    ("sender", "payload", "source"),
    [
        ("user:usr_1", {}, "user"),
        ("agent:agent_1", {}, "agent"),
        ("system", {"source": ""}, "system"),
        ("user:usr_1", {"source": "schedule"}, "schedule"),
        ("user:usr_1", {"source": 3}, "user"),
    ],
)
def test_where_a_turn_comes_from(sender: str, payload: dict[str, object], source: str) -> None:
    assert source_of(sender, payload) == source


async def test_a_new_turn_has_the_servers_time_or_its_agents() -> None:
    async with running(tools=[note]) as one:
        turn = await opened(one)
        assert (turn.key, turn.seed, turn.depth, turn.source) == (1, 7, 2, "schedule")
        assert turn.deadline == pytest.approx(trio.current_time() + services_of(one).limits.turn.turn_timeout_s, abs=30)
    async with running(tools=[note]) as one:
        turn = await opened(one, limits={"wall_s": 60})
        assert turn.deadline == pytest.approx(trio.current_time() + 60, abs=30)
        assert turn.deadline_at == "2026-01-01T00:01:00.000Z"


async def test_a_turn_gets_its_agents_settings_rules_and_past() -> None:
    async with running([calls("note", {"text": "x"}), says("ok")], tools=[note]) as one:
        turn = await opened(one, message_policy="reject")
        await one.say("go")
        rules = [{"tool": "note", "type": "periodic", "seconds": 60}]
        turn.agent = await one.constellation.roster.update("ada", {"tool_rules": rules})
        made = Call(tool="note")
        assert await equip(services_of(one), turn, [made]) is None
        assert (turn.settings.message_policy, turn.log) == ("reject", [made])
        assert turn.last_ms == {"note": one.clock.now_ms()}, "a rule of time needs to know when the tool last ran"


async def test_trouble_with_what_is_stored_is_told_and_not_raised() -> None:
    async with running(tools=[note]) as one:
        turn = await opened(one)
        stored = turn.agent
        for bad in ({"limits": {"steps": "many"}}, {"temperature": "hot"}):
            turn.agent = replace(stored, config=bad)
            assert isinstance(await equip(services_of(one), turn), InvalidInput)
        turn.agent = replace(stored, tool_rules=[{"type": "sometimes"}])
        assert isinstance(await equip(services_of(one), turn), InvalidInput)
        # Its time does not depend on what is wrong with its config.
        turn.agent = replace(stored, config={"limits": 3})
        assert new_turn(services_of(one), turn.agent, FOLLOWING, user("hello"), History()).deadline > 0


async def found(one: Running, turn_id: str) -> ActiveTurn:
    row = await one.database.read(turns.by_id, turn_id)
    rows = await one.database.read(recovery.find, row.key)
    agent = await one.constellation.roster.get(row.agent_id)
    return await found_turn(services_of(one), row, rows, agent, History())


async def test_a_turn_is_found_as_its_rows_tell_it() -> None:
    outside = Outside(gate=trio.Event())
    clock = StoppedClock()
    both = together(calls("mail", {"to": "bob"}, text="One moment."), calls("note", {"text": "y"}))
    script = [calls("note", {"text": "x"}), both]
    async with running(script, tools=[note, *outside.tools], clock=clock) as one:
        await one.agent()
        turn_id = await one.submit("go")
        await trio.testing.wait_all_tasks_blocked()
        assert outside.done == [("mail", "bob")]
        clock.advance(10_000)
        turn = await found(one, turn_id)
        assert (turn.id, turn.step, turn.attempt, turn.sender, turn.source) == (turn_id, 2, 1, USER, "user")
        assert turn.sequence == 4, "the next message stands behind the four that are stored"
        assert (turn.output_chars, turn.said) == (len("One moment."), {2})
        assert not turn.has_waited
        left_s = services_of(one).limits.turn.turn_timeout_s - 10
        assert turn.deadline == pytest.approx(trio.current_time() + left_s, abs=30)


async def test_a_clock_that_was_set_back_gives_a_turn_no_more_than_its_time() -> None:
    outside = Outside(gate=trio.Event())
    clock = StoppedClock()
    async with running([calls("mail", {"to": "bob"})], tools=outside.tools, clock=clock) as one:
        await one.agent()
        turn_id = await one.submit("go")
        await trio.testing.wait_all_tasks_blocked()
        clock.advance(-86_400_000)
        turn = await found(one, turn_id)
        whole_s = services_of(one).limits.turn.turn_timeout_s
        assert turn.deadline == pytest.approx(trio.current_time() + whole_s, abs=30)


async def test_a_waiting_turn_has_the_time_that_it_had() -> None:
    clock = StoppedClock()
    outside = Outside()
    async with running([calls("mail", {"to": "bob"})], tools=outside.tools, clock=clock) as one:
        await one.agent()
        rules = [{"tool": "mail", "type": "requires_consent"}]
        await one.constellation.roster.update("ada", {"tool_rules": rules, "config": {"limits": {"wall_s": 60}}})
        view = await one.say("go")
        assert view.status == "waiting"
        clock.advance(3_600_000)
        turn = await found(one, view.id)
        assert turn.has_waited
        assert turn.deadline == pytest.approx(trio.current_time() + 60, abs=30)
        assert turn.deadline_at.startswith("2026-01-01T01:0")
