"""The constellation's face: accepting, waiting, cancelling, reading, draining, and messages between agents."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.budgets.budget import Budget
from pattern_core.errors import Conflict, InvalidInput, NotFound, Unavailable
from pattern_core.limits import Limits, TurnLimits
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.shell.policy import ShellSettings
from pattern_core.testing.model import Paced, calls, says
from pattern_core.tools.tool import ToolContext, ToolSettings, tool
from pattern_core.web.policy import WebSettings
from pattern_db.enums import EffectClass
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from tests.support import Outside, acting, in_memory, note, rows, running


@tool(effect=EffectClass.LOCAL)
async def tell(context: ToolContext, target: str, content: str) -> str:
    """Send words to another agent."""
    return await context.deliver(context.work, target, content)


async def test_what_cannot_be_accepted_changes_nothing() -> None:
    async with acting(otherwise=says("ok")) as world:
        with pytest.raises(NotFound, match="nobody"):
            await world.submit("hi", "nobody")
        with pytest.raises(InvalidInput, match="empty"):
            await world.submit("   ")
        with pytest.raises(NotFound):
            await world.constellation.turn("turn_unknown")
        with pytest.raises(NotFound):
            await world.constellation.cancel("turn_unknown")
        await world.constellation.roster.update("ada", {"status": "archived"})
        with pytest.raises(Conflict, match="archived"):
            await world.submit("hi")
        assert await world.database.read(rows, "SELECT count(*) FROM turn") == [(0,)]


async def test_agents_that_pass_a_request_around_are_stopped() -> None:
    limits = Limits(turn=TurnLimits(depth_max=3))

    def pass_on(request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "tool":
            return says("passed on")
        return calls("tell", {"target": chr(ord(request.system[0]) + 1), "content": "you do it"})

    async with running(otherwise=pass_on, tools=[tell], limits=limits) as world:
        await world.agent(prompt="a")
        for name in "bcdef":
            await world.agent(name, prompt=name)
        await world.say("start")
        await trio.testing.wait_all_tasks_blocked()
        assert world.constellation.is_idle
        assert await world.database.read(rows, "SELECT max(depth), count(*) FROM turn") == [(3, 4)]


async def test_an_agent_cannot_send_itself_a_message() -> None:
    async with acting([calls("tell", {"target": "ada", "content": "me"}), says("ok")], tools=[tell]) as world:
        await world.say("go")
        assert await world.database.read(rows, "SELECT status FROM effect") == [("error",)]


async def test_a_message_for_an_unknown_agent_is_answered_with_those_that_there_are() -> None:
    script = [calls("tell", {"target": who, "content": "hello"}) for who in ("nobody", "CY", "Bob")]
    async with acting(script, otherwise=says("ok"), tools=[tell]) as world:
        for name in ("bob", "cy", "Cy"):
            await world.agent(name)
        await world.say("go")
        asked = "SELECT content, tool_result FROM messages WHERE role = 'tool' ORDER BY position"
        unknown, unclear, sent = map(str, await world.database.read(rows, asked))
        assert "there is no agent 'nobody'; the agents are Cy, ada, bob, cy" in unknown
        assert "there is no agent 'CY'" in unclear
        assert "false" in sent  # bob is the only one with that name in any case


async def test_draining_rests_at_a_step_border_and_the_next_start_continues() -> None:
    async with in_memory() as database:
        outside = Outside(gate=trio.Event())
        script = [calls("put", {"text": "x"})]
        async with acting(script, tools=[note, *outside.tools], database=database) as world:
            turn_id = await world.submit("go")
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.constellation.drain)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(Unavailable):
                    await world.submit("too late")
                assert outside.gate is not None
                outside.gate.set()
            assert world.constellation.is_idle
            assert not (await world.constellation.turn(turn_id)).has_ended
        async with running([says("over")], tools=[note, *outside.tools], database=database) as again:
            view = await again.constellation.wait(turn_id)
            assert (view.status, view.steps) == ("completed", 2)
            assert len(outside.done) == 1
            assert "step.superseded" not in await again.names(turn_id)


async def test_commands_and_the_web_are_there_where_they_are_allowed(tmp_path: Path) -> None:
    for web, shell in ((None, None), (WebSettings(), ShellSettings(roots=(tmp_path,)))):
        async with running(reach=ToolSettings(web=web, shell=shell)) as world:
            toolbox = world.constellation._toolbox
            assert ((toolbox.web is None), (toolbox.shell is None)) == (web is None, shell is None)


async def test_what_has_ended_cannot_be_cancelled() -> None:
    async with acting(otherwise=says("ok")) as world:
        turn = await world.say("hi")
        assert not await world.constellation.cancel(turn.id)
        assert (await world.constellation.turn(turn.id)).status == "completed"


async def test_deleting_an_agent_ends_what_it_does_and_what_waits() -> None:
    async with running(otherwise=lambda _request: Paced(answer=says("late"), gate=trio.Event())) as world:
        ada = await world.agent()
        await world.agent("bob")
        turns = [await world.submit(text) for text in ("working on this", "waiting")]
        await trio.testing.wait_all_tasks_blocked()
        ends: list[str] = []

        async def watch(turn_id: str) -> None:
            stream = world.constellation.events.subscribe(after=0, turn_id=turn_id)
            ends.extend([event.name async for event in stream][-1:])

        async with trio.open_nursery() as nursery:
            for turn_id in turns:
                nursery.start_soon(watch, turn_id)
            await trio.testing.wait_all_tasks_blocked()
            await world.constellation.delete_agent("ada")
        assert ends == ["turn.cancelled", "turn.cancelled"]
        with pytest.raises(NotFound):
            await world.submit("hello?")
        assert world.provider.cancelled == 1
        left = await world.database.read(
            rows, "SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM messages), (SELECT count(*) FROM inbox)"
        )
        assert left == [(0, 0, 0)]
        assert (await world.agent("ada")).id != ada.id


async def test_a_budget_is_kept_from_when_it_is_set_and_after_a_restart() -> None:
    async with in_memory() as database:
        async with acting(otherwise=says("ok"), database=database) as world:
            assert (await world.say("before")).status == "completed"
            budget = Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 1)
            await world.constellation.budgets.put(budget)
            assert (await world.say("after")).status == "limit"
        async with running(otherwise=says("ok"), database=database) as world:
            assert (await world.say("again")).status == "limit"
