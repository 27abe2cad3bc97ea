"""What the phases of the load test share: the server, a slow model, and what was found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import trio

from pattern_core.testing.model import says
from pattern_core.testing.wire_openai import replies
from pattern_server.listener import listen
from tests.bench.report import Figure
from tests.bench.world import words
from tests.scenarios.server import Server, serving

# The product measures its loop once a second, which is too rare for a percentile.
LAG_EVERY_S = 0.01
PROGRAM = (
    "-c",
    f"from pattern_server import cli, metrics; metrics.SAMPLE_S = {LAG_EVERY_S}; cli.main()",
)
NO_BOUND = "100000"
ENVIRONMENT = {  # one token does what many users would do
    "PATTERN_HTTP__CONNECTIONS_MAX": NO_BOUND,
    "PATTERN_HTTP__CONNECTIONS_PER_ADDRESS_MAX": NO_BOUND,
    "PATTERN_HTTP__REQUESTS_MAX": NO_BOUND,
    "PATTERN_HTTP__REQUESTS_PER_TOKEN_MAX": NO_BOUND,
    "PATTERN_HTTP__RATE_PER_TOKEN": NO_BOUND,
    "PATTERN_HTTP__RATE_PER_USER": NO_BOUND,
    "PATTERN_HTTP__RATE_PER_CONSTELLATION": NO_BOUND,
}
ANSWERS_IN_S = 0.2
SLOWER = 1.2  # what others may become by load, at the 99th percentile

Client = httpx2.AsyncClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    readers: int
    constellations: int
    rate: float  # requests a second
    seconds: float
    messages: int
    queued: int
    registered: int
    awake: int
    rest_s: float  # until memory is measured
    accounts: int  # of sources


FULL = Scale(
    readers=1_000,
    constellations=100,
    rate=200,
    seconds=240,  # the loop's lag is sampled once a second
    messages=200,
    queued=1_000,
    registered=10_000,
    awake=1_000,
    accounts=50,
    rest_s=130,  # the first tidying is done after 30, then connections are closed and their memory is returned
)


@dataclass
class Found:
    """What a phase measured, and what failed in it."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def expect(self, answer: httpx2.Response, *statuses: int) -> Any:
        """Note an answer with another status; its JSON."""
        if answer.status_code not in statuses:
            self.failures.append(f"{answer.request.method} {answer.request.url.path}: {answer.text[:200]}")
        return answer.json()


@asynccontextmanager
async def prepared(
    folder: Path, names: Sequence[str], agents: Mapping[str, object], *, more: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Server, Client]]:
    """A server with constellations, each with an agent `ada`; and a client."""
    environment = {**ENVIRONMENT, **(more or {})}
    async with serving(folder, environment=environment, program=PROGRAM) as server, server.client() as client:
        for name in names:
            (await client.post("/constellations", json={"name": name})).raise_for_status()
            ada = await client.post(f"/constellations/{name}/agents", json={"name": "ada", **agents})
            ada.raise_for_status()
        yield server, client


@asynccontextmanager
async def slow_model() -> AsyncIterator[tuple[dict[str, str], list[trio.Event]]]:
    """A model of another process that answers in `ANSWERS_IN_S`, and after all events of the list: the server's
    environment with it, and the list.
    """
    gates: list[trio.Event] = []
    chunks = replies(says("Words, one after the other.")).body

    async def answer(_scope: object, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await trio.sleep(ANSWERS_IN_S)
        for gate in gates:
            await gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": chunks})

    async with trio.open_nursery() as nursery:
        stop = trio.Event()

        async def listening(*, task_status: trio.TaskStatus[str]) -> None:
            await listen(answer, host="127.0.0.1", port=0, stop=stop, task_status=task_status)

        url = await nursery.start(listening)
        slow = {"kind": "openai", "base_url": f"{url}/v1", "api_key": "sk-load"}
        yield {"PATTERN_PROVIDERS": json.dumps({"slow": slow})}, gates
        stop.set()


async def others(client: Client, names: Sequence[str], each: int, found: Found, *, every_s: float = 0.0) -> list[float]:
    """Have each of these constellations do so many turns, begun at least `every_s` apart; return how long they took,
    in ms.
    """
    took: list[float] = []

    async def one(name: str) -> None:
        start = trio.current_time()
        for number in range(each):
            await trio.sleep_until(start + number * every_s)
            began = trio.current_time()
            await say(client, found, name)
            took.append((trio.current_time() - began) * 1_000)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(one, name)
    return took


async def say(client: Client, found: Found, name: str) -> None:
    where = f"/constellations/{name}/agents/ada/messages"
    said = found.expect(await client.post(where, json={"content": words(100, len(name))}), 200)
    if said.get("status") != "completed":
        found.failures.append(f"{name}: {said}")
