"""What a turn costs beyond the bare call of its provider, what agents at rest keep in memory, and how soon the first
word of an answer is passed on.

The bare call is `provider.ask` with the request that the turn sent. The first word comes from a server on loopback
that speaks a vendor's format and writes the time into it; it is taken where clients' streams take it, after its commit.
"""

from __future__ import annotations

import gc
import json
import resource
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from pattern_core.admission import Incoming
from pattern_core.limits import Limits
from pattern_core.models.model import Delta, ModelReply, ModelRequest, OnDelta
from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire_openai import chunk
from tests.bench.report import Figure
from tests.bench.turns import Script, World, words, world

TURNS = 400
WARM = 50
FIRST_TOKENS = 150
IDLE_AGENTS = 1_000
KNOWN_AGENTS = 300  # more than any cache keeps: what comes after fills none
FIRST_TOKEN_MS = 5
IDLE_KIB = 5


class Listening(Script):
    """The scripted model, which keeps the last request."""

    last: ModelRequest | None = None

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """As the script does."""
        self.last = request
        return await super().ask(request, on_delta)


async def turns_over_bare_calls(*, steps: int, on_disk: bool) -> list[Figure]:
    """CPU and wall time of turns one after another, each beside the bare calls of the same requests."""
    provider = Listening(steps=steps, chars=400)
    async with world(steps=steps, on_disk=on_disk, provider=provider) as bench:
        text = words(400, 2)
        agent = bench.agents[0]
        for _ in range(WARM):
            await bench.turn(agent, text)
        turn = await _timed(partial(bench.turn, agent, text))
        request = provider.last
        assert request is not None
        bare = await _timed(partial(_ask_bare, provider, request, steps))
    kind = f"{'two' if steps == 2 else 'one'}-step turn{', on disk' if on_disk else ', in memory'}"
    return [
        *_percentiles(f"overhead of a {kind}: CPU", turn[0], bare[0]),
        *_percentiles(f"overhead of a {kind}: wall", turn[1], bare[1]),
    ]


async def _ask_bare(provider: Script, request: ModelRequest, steps: int) -> None:
    for _ in range(steps):
        await provider.ask(request, _ignore)


async def _ignore(_delta: Delta) -> None:
    """Nobody listens."""


async def _timed(work: Callable[[], Awaitable[None]]) -> tuple[list[float], list[float]]:
    """CPU of the process and wall time of each of `TURNS` runs, in ms."""
    cpu, wall = [], []
    for _ in range(TURNS):
        began, began_cpu = time.perf_counter(), time.process_time()
        await work()
        cpu.append((time.process_time() - began_cpu) * 1_000)
        wall.append((time.perf_counter() - began) * 1_000)
    return cpu, wall


def _percentiles(name: str, values: list[float], bare: list[float]) -> list[Figure]:
    base = _at(bare, 0.5)
    return [
        Figure(name=f"{name}, p{round(share * 100)}", unit="ms", values=[_at(values, share) - base], baseline=base)
        for share in (0.5, 0.99)
    ]


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def first_token() -> list[Figure]:
    """From when a vendor sends the first word until a client's stream has it: wire, provider, commit, event."""
    waits: list[float] = []
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, _vendor, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        provider = OpenAIProvider("script", Secret("sk-bench"), f"http://127.0.0.1:{port}/v1")
        async with world(provider=provider) as bench:
            for number in range(FIRST_TOKENS + WARM):
                waited = await _first_word(bench, f"{number}: {words(200, number)}")
                if number >= WARM:
                    waits.append(waited)
        await provider.aclose()
        nursery.cancel_scope.cancel()
    return [
        Figure(
            name="first word from the vendor to a client's stream, median", unit="ms", values=waits, most=FIRST_TOKEN_MS
        ),
        Figure(name="the same, p99", unit="ms", values=[_at(waits, 0.99)], note="one synced commit is within it"),
    ]


async def _first_word(bench: World, content: str) -> float:
    """Milliseconds from the word on the wire to the event."""
    constellation, waited = bench.constellation, None
    after = constellation.events.latest
    incoming = Incoming(agent_id=bench.agents[0].id, content=content, sender="user:bench")
    ticket = await constellation.submit(incoming)
    async with constellation.events.subscribe(after=after, turn_id=ticket.turn_id) as stream:
        async for event in stream:
            if event.name == "text.delta" and waited is None:
                waited = (time.perf_counter() - float(str(event.data["text"]))) * 1_000
            if event.is_terminal:
                break
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


async def idle_agents() -> list[Figure]:
    """What each of 1,000 agents keeps in memory that spoke once and rest."""
    limits = Limits(agents_max=KNOWN_AGENTS + IDLE_AGENTS)
    tracemalloc.start()  # first of all: what fills caches now is replaced later
    async with world(limits=limits, agents=KNOWN_AGENTS) as bench:
        await _speak(bench, 0)
        gc.collect()
        held, resident = tracemalloc.get_traced_memory()[0], _resident_kib()
        await bench.add(IDLE_AGENTS)
        await _speak(bench, KNOWN_AGENTS)
        gc.collect()
        grown = (tracemalloc.get_traced_memory()[0] - held) / 1024 / IDLE_AGENTS
        grown_resident = (_resident_kib() - resident) / IDLE_AGENTS
        tracemalloc.stop()
    return [
        Figure(
            name="memory per agent at rest", unit="KiB", values=[grown], most=IDLE_KIB, note="Python's objects, traced"
        ),
        Figure(
            name="resident memory per agent at rest",
            unit="KiB",
            values=[grown_resident],
            note="with the database's caches, and tracing's own",
        ),
    ]


async def _speak(bench: World, first: int) -> None:
    for number, agent in enumerate(bench.agents[first:]):
        await bench.turn(agent, words(400, number))


def _resident_kib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024
