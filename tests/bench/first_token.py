"""How soon the first word of an answer is passed on.

It comes from a server on loopback that speaks a vendor's format and writes the time into it; it is taken
where clients' streams take it, after its commit.
"""

from __future__ import annotations

import json
import time
from functools import partial

import trio

from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.testing.wire_openai import chunk
from pattern_core.turns.admission import IncomingMessage
from tests.bench.report import Figure
from tests.bench.world import World, words, world

WARM = 50
FIRST_TOKENS = 150
FIRST_TOKEN_MS = 5


async def measure() -> list[Figure]:
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
