"""Questions without a turn: what they show, what they leave, and what they cost when they fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from pattern_core.errors import LimitReached
from pattern_core.messages import Message, Text, user
from pattern_core.models.errors import ModelRefused
from pattern_core.models.model import Delta, ToolSpec
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_core.turns.admission import TurnOptions
from pattern_core.turns.aside import ask_aside, ignore
from pattern_db.journal.budgets import BudgetRow, BudgetScope, Period, Unit
from tests.support import Running, acting, rows

TALK = [user("I am Ruth."), Message(role="assistant", parts=(Text(text="Hello."),)), user("Who am I?")]
OPTIONS = TurnOptions(
    instructions="Be short.",
    config={"temperature": 0.5},
    tools=[ToolSpec(name="weather", description="", parameters={"type": "object"})],
)


async def ask(world: Running, said: list[str] | None = None, talk: Sequence[Message] = TALK) -> str:
    async def on_delta(delta: Delta) -> None:
        assert said is not None
        said.append(delta.text)

    agent = await world.constellation.roster.get("ada")
    reply = await ask_aside(world.constellation._services, agent, talk, OPTIONS, ignore if said is None else on_delta)
    return "".join(part.text for part in reply.parts if isinstance(part, Text))


async def test_it_shows_the_clients_conversation_and_leaves_only_usage() -> None:
    said: list[str] = []
    async with acting(provider=ScriptedProvider([says("You are Ruth.")], slice_chars=4)) as world:
        assert await ask(world, said) == "".join(said) == "You are Ruth."
        [request] = world.provider.requests
        assert [message.text for message in request.messages] == ["I am Ruth.", "Hello.", "Who am I?"]
        assert (request.system[-1], request.temperature) == ("Be short.", 0.5)
        assert [tool.name for tool in request.tools] == ["weather"], "none of the agent's own"
        assert await world.database.read(rows, "SELECT count(*) FROM messages") == [(0,)]
        assert await world.database.read(rows, "SELECT turn, purpose, input_tokens FROM usage") == [(None, "aside", 10)]


async def test_a_failed_or_cancelled_question_holds_no_budget_back() -> None:
    never = Paced(answer=says("…"), gate=trio.Event())
    provider = ScriptedProvider([ModelRefused("no", provider="scripted"), never, says("Yes.")])
    async with acting(provider=provider) as world:
        budget = BudgetRow(BudgetScope.CONSTELLATION, "", Period.DAY, Unit.TOKENS, 100_000)
        await world.constellation.budgets.put(budget)
        with pytest.raises(ModelRefused):
            await ask(world)
        with trio.move_on_after(0.1) as scope:
            await ask(world)
        assert scope.cancelled_caught
        assert await world.database.read(rows, "SELECT count(*) FROM reservation") == [(0,)]
        assert await ask(world) == "Yes."


async def test_a_conversation_that_does_not_fit_is_refused() -> None:
    async with acting(otherwise=says("Yes.")) as world:
        with pytest.raises(LimitReached, match="window"):
            await ask(world, talk=[user("tea " * 100_000)])
