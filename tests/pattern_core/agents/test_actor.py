"""Actors: one turn at a time per agent, many agents at once, and exactly one end for every turn."""

from __future__ import annotations

import trio
import trio.testing

from pattern_core.events import TERMINAL
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from tests.support import Outside, note, rows, running


async def test_an_agent_works_on_one_turn_at_a_time_in_order() -> None:
    at_once: list[int] = []
    provider = ScriptedProvider(otherwise=lambda request: slowly(request))

    def slowly(request: ModelRequest) -> Paced:
        at_once.append(provider.running)
        return Paced(answer=says(request.messages[-1].text), delay_s=0.001)

    async with running(provider=provider) as world:
        await world.agent()
        for turn in [await world.submit(f"message {number}") for number in range(10)]:
            await world.constellation.wait(turn)
        assert at_once == [1] * 10
        history = await world.constellation.messages("ada", limit=50)
        said = [message.content for message in reversed(history) if message.role == "user"]
        assert said == [f"message {number}" for number in range(10)]
        answered = [message.content for message in reversed(history) if message.role == "assistant"]
        assert answered == said


async def test_agents_work_side_by_side() -> None:
    gate = trio.Event()
    async with running(otherwise=Paced(answer=says("ok"), gate=gate)) as world:
        for name in ("ada", "bob", "cyd"):
            await world.agent(name)
        turns = [await world.submit("hi", name) for name in ("ada", "bob", "cyd")]
        await trio.testing.wait_all_tasks_blocked()
        assert world.provider.running == 3
        assert not world.constellation.is_idle
        gate.set()
        for turn in turns:
            assert (await world.constellation.wait(turn)).status == "completed"
        await trio.testing.wait_all_tasks_blocked()
        assert world.constellation.is_idle


async def test_cancelling_stops_the_model_call_at_once() -> None:
    async with running([Paced(answer=says("never"), gate=trio.Event()), says("next")]) as world:
        await world.agent()
        turn_id = await world.submit("hi")
        await trio.testing.wait_all_tasks_blocked()
        assert await world.constellation.cancel(turn_id)
        view = await world.constellation.wait(turn_id)
        assert view.status == "cancelled"
        assert world.provider.cancelled == 1
        assert not await world.constellation.cancel(turn_id)
        assert (await world.say("again")).status == "completed"


async def test_cancelling_within_an_unsafe_call_leaves_it_in_doubt() -> None:
    outside = Outside(gate=trio.Event())
    async with running([calls("mail", {"to": "bob"}), says("next")], tools=outside.tools) as world:
        await world.agent()
        turn_id = await world.submit("hi")
        await trio.testing.wait_all_tasks_blocked()
        await world.constellation.cancel(turn_id)
        assert (await world.constellation.wait(turn_id)).status == "cancelled"
        assert await world.database.read(rows, "SELECT status FROM effect") == [("in_doubt",)]
        view = await world.say("next")
        shown = world.provider.requests[-1].messages
        assert [message.role for message in shown] == ["user", "assistant", "tool", "user"]
        assert view.status == "completed"


async def test_cancelling_a_queued_turn_ends_it_without_running() -> None:
    gate = trio.Event()
    async with running([Paced(answer=says("one"), gate=gate), says("three")]) as world:
        await world.agent()
        first, second, third = [await world.submit(text) for text in ("one", "two", "three")]
        await trio.testing.wait_all_tasks_blocked()
        assert await world.constellation.cancel(second)
        assert (await world.constellation.wait(second)).status == "cancelled"
        gate.set()
        assert (await world.constellation.wait(first)).status == "completed"
        view = await world.constellation.wait(third)
        assert [message.content for message in view.messages] == ["three", "three"]
        contents = [message.text for message in world.provider.requests[-1].messages]
        assert "two" not in contents


async def test_every_turn_has_exactly_one_terminal_event() -> None:
    def answer(request: ModelRequest) -> ModelReply:
        text = request.messages[-1].text
        return calls("note", {"text": text}) if text.startswith("note") else says("ok")

    async with running(otherwise=answer, tools=[note]) as world:
        await world.agent()
        await world.agent("bob")
        turns = [await world.submit(f"note {n}", "ada" if n % 2 else "bob") for n in range(20)]
        await world.constellation.cancel(turns[7])
        for turn in turns:
            await world.constellation.wait(turn)
        events = await world.events()
        for turn in turns:
            assert len([event for event in events if event.turn_id == turn and event.name in TERMINAL]) == 1
