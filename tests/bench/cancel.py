"""How long it takes to cancel a turn, until nothing of it is left.

A turn hangs in its model call, or in a tool call; many others hang beside it. Quiet is when its terminal event is
stored and none of its tasks is left; the file is on disk, and every commit synced.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from pattern_core.agents import AgentSpec
from pattern_core.limits import Limits, TurnLimits
from pattern_core.messages import ToolCall
from pattern_core.models.model import ModelReply, ModelRequest, Usage
from pattern_core.testing.model import Paced, ScriptedProvider
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass
from tests.bench.report import Figure
from tests.support import USER, Running, running

HANGING = 1_000  # turns that hang beside the one that is cancelled
CANCELS = 200
IDLE = 20  # agents whose turns are cancelled, so that no conversation becomes long
AT_ONCE = 50  # agents that are made at the same time
USAGE = Usage(input_tokens=100, output_tokens=50)


@tool(effect=EffectClass.UNSAFE)
async def hang(_context: ToolContext) -> str:
    """Never answer."""
    await trio.sleep_forever()
    raise AssertionError("never")


def hanging(request: ModelRequest) -> ModelReply | Paced:
    """Ask for a tool that hangs, or hang: as the message says."""
    call = ModelReply(
        parts=(ToolCall(call_id=f"call_{request.seed}", tool="hang", arguments={}),),
        finish_reason="tool_calls",
        usage=USAGE,
    )
    is_about_tools = any(message.role == "user" and message.text == "tool" for message in request.messages[-1:])
    return call if is_about_tools else Paced(answer=call, gate=trio.Event())


@asynccontextmanager
async def hung(where: str) -> AsyncIterator[Running]:
    """A constellation on a file with many turns that hang in the model call (`model`) or a tool call (`tool`)."""
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        provider = ScriptedProvider(otherwise=hanging)
        path = Path(folder) / "bench.db"
        hour = TurnLimits(turn_timeout_s=3600, model_timeout_s=3600, model_idle_timeout_s=3600, tool_timeout_s=3600)
        limits = Limits(agents_max=2 * HANGING, turn=hour)
        async with running(provider=provider, tools=[hang], path=path, limits=limits) as one:
            async with trio.open_nursery() as nursery:
                few = trio.CapacityLimiter(AT_ONCE)
                for number in range(HANGING):
                    nursery.start_soon(_hire, one, f"hung-{number}", where, few)
                for number in range(IDLE):
                    nursery.start_soon(_hire, one, f"idle-{number}", None, few)
            yield one


async def _hire(one: Running, name: str, where: str | None, few: trio.CapacityLimiter) -> None:
    async with few:
        spec = AgentSpec(name=name, model_provider="scripted", model_name="m", memory=[], enabled_tools=one.tools)
        await one.constellation.roster.create(spec, author=USER)
        if where is not None:
            await begun(one, name, where)


async def begun(one: Running, agent: str, where: str) -> str:
    """Send a message and wait until its turn hangs; the turn's id."""
    turn_id = await one.submit(where, agent)
    awaited = "step.started" if where == "model" else "tool.call"
    stream = one.constellation.events.subscribe(after=0, turn_id=turn_id)
    async for event in stream:
        if event.name == awaited:
            break
    return turn_id


async def to_quiet(where: str) -> list[Figure]:
    """Cancel one of many hanging turns, again and again."""
    chance = random.Random(3)
    async with hung(where) as one:
        times = []
        for number in range(CANCELS):
            turn_id = await begun(one, f"idle-{number % IDLE}", where)
            await trio.sleep(chance.random() * 0.005)
            began = time.perf_counter()
            await one.constellation.cancel(turn_id)
            await one.constellation.wait(turn_id)
            times.append((time.perf_counter() - began) * 1_000)
        name = f"cancel to quiet, in {'its model call' if where == 'model' else 'a tool call'}"
        note = f"{CANCELS} cancels, {HANGING} other turns hang"
        return [
            Figure(name=name, unit="ms", values=times, note=note),
            Figure(name=name, unit="ms", values=times, share=0.99, most=50, note=note),
        ]


def run() -> list[Figure]:
    """The suite: both places in which turns hang."""
    return [figure for where in ("model", "tool") for figure in trio.run(to_quiet, where)]
