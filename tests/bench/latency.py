"""How soon the first word of an answer is passed on, and how long a turn takes to be cancelled.

The word comes from a server on loopback that speaks a vendor's format and writes the time into it; it is taken where
clients' streams take it, after its commit. A turn that is cancelled hangs in its model call, or in a tool call, with
many others next to it. Quiet is when its terminal event is stored and none of its tasks is left; the file is on disk,
and every commit synced.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from pattern_core.agents import AgentSpec
from pattern_core.limits import Limits, TurnLimits
from pattern_core.messages import ToolCall
from pattern_core.models.model import ModelReply, ModelRequest, Usage
from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.testing.model import Paced, ScriptedProvider
from pattern_core.testing.wire_openai import chunk
from pattern_core.tools.tool import ToolContext, tool
from pattern_core.turns.admission import IncomingMessage
from pattern_db.enums import EffectClass
from tests.bench.report import Figure
from tests.bench.world import World, words, world
from tests.support import USER, Running, running

HANGING = 1_000  # turns that hang beside the one that is cancelled
CANCELS = 200
IDLE = 20  # agents whose turns are cancelled, so that no conversation becomes long
AT_ONCE = 50  # agents that are made at the same time
WARM = 50
FIRST_TOKENS = 150
FIRST_TOKEN_MS = 5
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


def cancels() -> list[Figure]:
    """Both places in which turns hang."""
    return [figure for where in ("model", "tool") for figure in trio.run(to_quiet, where)]


async def first_token() -> list[Figure]:
    """From when a vendor sends the first word until a client's stream has it: wire, provider, commit, event."""
    waits: list[float] = []
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, _vendor, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        provider = OpenAIProvider(
            "script",
            ProviderSettings(kind="openai", base_url=f"http://127.0.0.1:{port}/v1", api_key=Secret("sk-bench")),
        )
        async with world(provider=provider) as bench:
            for number in range(FIRST_TOKENS + WARM):
                waited = await _first_word(bench, f"{number}: {words(200, number)}")
                if number >= WARM:
                    waits.append(waited)
        await provider.aclose()
        nursery.cancel_scope.cancel()
    name = "first word from the vendor to a client's stream"
    return [
        Figure(name=name, unit="ms", values=waits, most=FIRST_TOKEN_MS, note="one synced commit is within it"),
        Figure(name=name, unit="ms", values=waits, share=0.99),
    ]


async def _first_word(bench: World, content: str) -> float:
    """Milliseconds from the word on the wire to the event."""
    constellation, waited = bench.constellation, None
    after = constellation.events.latest
    incoming = IncomingMessage(agent_id=bench.agents[0].id, content=content, sender="user:bench")
    ticket = await constellation.submit(incoming)
    stream = constellation.events.subscribe(after=after, turn_id=ticket.turn_id)
    async for event in stream:
        if event.name == "text.delta" and waited is None:
            waited = (time.perf_counter() - float(str(event.data["text"]))) * 1_000
    assert waited is not None, "no word came"
    return waited


async def _vendor(stream: trio.SocketStream) -> None:
    """One answer per connection, in OpenAI's format: a head, a pause, and the time as its first word."""
    got = b""
    async with stream:
        while not _is_whole(got):
            got += await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        await stream.send_all(_event(chunk({"role": "assistant", "content": ""})))
        await trio.sleep(0.01)
        await stream.send_all(_event(chunk({"content": f"{time.perf_counter():.6f}"})))
        await trio.sleep(0.02)
        await stream.send_all(_event(chunk({"content": " and more"})))
        await stream.send_all(_event(chunk({}, finish_reason="stop")) + b"data: [DONE]\n\n")


def _is_whole(got: bytes) -> bool:
    head, _, body = got.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    return bool(length) and len(body) >= int(length)


def _event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
