"""The prompt of a step: whom it asks, whether it fits, and what makes it fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.history import load_history
from pattern_core.agents.opening import NextTurn, equip, new_turn
from pattern_core.agents.prompting import OUTPUT_SHARE, fits, make_fitting_prompt, make_prompt, squeeze
from pattern_core.agents.services import TurnServices
from pattern_core.errors import LimitReached
from pattern_core.messages import Message
from pattern_core.rules.state import Call
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_db.columns import Json
from tests.support import USER, note, rows, running, shout

LONG = "word " * 400
WINDOW = 4_000


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A turn with a conversation behind it, about to ask for step 1."""

    services: TurnServices
    turn: ActiveTurn
    provider: ScriptedProvider


@asynccontextmanager
async def stage(*said: str, config: Mapping[str, Json] | None = None, ask: str = "and now?") -> AsyncIterator[Stage]:
    provider = ScriptedProvider(otherwise=says("All right."))
    other = ScriptedProvider(name="other", otherwise=says("All right."))
    async with running(provider=provider, others=[other], tools=[note, shout]) as one:
        await one.agent()
        for words in said:
            await one.say(words)
        gate = trio.Event()
        provider._script = iter([Paced(answer=says("late"), gate=gate)])
        turn_id = await one.submit(ask)
        await trio.testing.wait_all_tasks_blocked()
        agent = await one.constellation.roster.update("ada", {"config": {"context_window": WINDOW, **(config or {})}})
        services = one.constellation._services
        [(key, batch)] = await one.database.read(rows, f"SELECT key, batch_id FROM turn WHERE id = '{turn_id}'")
        history = await one.database.read(load_history, agent.id, services.limits.prompt, active=str(batch))
        following = NextTurn(key=int(str(key)), id=turn_id, seed=7, sender=USER, depth=0, payload={})
        turn = new_turn(services, agent, following, _incoming(history.messages, ask), history)
        turn.batch_id = str(batch)
        assert await equip(services, turn) is None
        yield Stage(services=services, turn=turn, provider=provider)


def _incoming(messages: Sequence[Message], ask: str) -> Message:
    assert messages[-1].text == ask
    return messages[-1]


async def test_a_prompt_says_whom_it_asks_and_what_that_costs_at_most() -> None:
    async with stage("hello") as it:
        made = await make_prompt(it.services, it.turn, step=1)
        asking = it.turn.asking
        assert asking is not None
        assert (asking.first.provider, asking.first.model) == ("scripted", "script-1")
        assert asking.tokens == made.tokens
        assert asking.worst.tokens == asking.worst.prompt_tokens + made.request.max_output_tokens
        assert [tool.name for tool in made.request.tools] == ["note", "shout"]
        assert fits(it.turn, made)


async def test_the_answer_has_its_share_of_the_models_window() -> None:
    async with stage() as it:
        made = await make_prompt(it.services, it.turn, step=1)
        assert made.request.max_output_tokens == WINDOW // OUTPUT_SHARE
    async with stage(config={"max_output_tokens": 50}) as it:
        made = await make_prompt(it.services, it.turn, step=1)
        assert made.request.max_output_tokens == 50


async def test_a_rule_of_routing_chooses_the_model_and_the_dearest_of_the_chain_is_held() -> None:
    rule = {"condition": {"type": "tool_call", "tools": ["note"]}, "model": "other/big", "max_tokens_override": 3_000}
    async with stage(config={"routing": {"rules": [rule]}}) as it:
        await make_prompt(it.services, it.turn, step=1)
        assert it.turn.asking is not None
        assert [link.provider for link in it.turn.asking.chain.links] == ["scripted"]
        small = it.turn.asking.worst.tokens
        it.turn.log.append(Call(tool="note", status="done"))
        await make_prompt(it.services, it.turn, step=2)
        assert [link.provider for link in it.turn.asking.chain.links] == ["other", "scripted"]
        assert it.turn.asking.worst.tokens >= small
        assert it.turn.asking.worst.tokens == it.turn.asking.worst.prompt_tokens + 3_000


async def test_a_rule_of_cost_reads_what_was_spent_today() -> None:
    rule = {"condition": {"type": "cost_threshold", "max_usd": 0.01}, "model": "other/cheap"}
    async with stage("hello", config={"routing": {"rules": [rule]}}) as it:
        await make_prompt(it.services, it.turn, step=1)
        assert it.turn.asking is not None
        assert it.turn.asking.first.provider == "scripted"
        await it.services.database.write(
            lambda db: db.execute("UPDATE usage_day SET cost_microdollars = 10000").fetchall()
        )
        await make_prompt(it.services, it.turn, step=1)
        assert it.turn.asking.first.provider == "other"


async def test_notes_stand_at_the_end() -> None:
    async with stage() as it:
        it.turn.notes = ["Mind the gap."]
        made = await make_prompt(it.services, it.turn, step=2)
        assert any("Mind the gap." in text for text in made.request.tail)
        assert not any("Mind the gap." in text for text in made.request.system)


async def test_room_is_made_only_where_it_is_needed() -> None:
    async with stage("hello") as it:
        await make_fitting_prompt(it.services, it.turn, step=1)
        assert it.turn.compactions == []
    async with stage(*[LONG] * 10) as it:
        before = await make_prompt(it.services, it.turn, step=1)
        assert not fits(it.turn, before)
        made = await make_fitting_prompt(it.services, it.turn, step=1)
        assert it.turn.compactions == [1]
        assert fits(it.turn, made)
        assert made.tokens + made.request.max_output_tokens <= WINDOW
        assert made.request.messages[-1].text == "and now?"


async def test_what_a_vendor_found_too_long_is_squeezed() -> None:
    async with stage(*["word " * 50] * 10) as it:
        before = await make_prompt(it.services, it.turn, step=1)
        assert fits(it.turn, before)
        made = await squeeze(it.services, it.turn, step=1)
        assert made.tokens < before.tokens
        assert it.turn.compactions == [1]
        assert made.request.messages[-1].text == "and now?"


async def test_what_does_not_fit_by_itself_is_said() -> None:
    async with stage(ask="word " * 5_000) as it:
        with pytest.raises(LimitReached):
            await make_fitting_prompt(it.services, it.turn, step=1)


async def test_a_rule_shows_one_tool_and_forces_it() -> None:
    async with stage() as it:
        rules = [{"tool": "note", "type": "start_constraint"}]
        it.turn.agent = replace(it.turn.agent, tool_rules=rules)
        await equip(it.services, it.turn)
        made = await make_prompt(it.services, it.turn, step=1)
        assert (made.request.force_tool, [tool.name for tool in made.request.tools]) == ("note", ["note"])


async def test_a_window_without_room_says_what_takes_it() -> None:
    async with running([says("hi")], tools=[note, shout]) as one:
        await one.agent(prompt="Be kind. " * 400)
        await one.constellation.roster.update("ada", {"config": {"context_window": 1_000}})
        view = await one.say("hello")
    assert view.status == "limit"
    assert view.error is not None
    assert "2 tools take about" in str(view.error["message"])
    assert "context_window" in str(view.error["message"])
