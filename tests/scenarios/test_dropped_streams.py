"""Readers by other authors follow a constellation while their connections drop and the server is killed:
`python -m tests.scenarios.test_dropped_streams --drops 1000 --kills 50`.

The streams are decoded by the `openai` package (server-sent events) and by `websockets`. Each reader comes back with
the last number that it saw. What it put together must be the sequence in the file: nothing lost, repeated or reordered.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import trio
from openai._streaming import SSEDecoder
from websockets.exceptions import WebSocketException
from websockets.trio.client import connect

from pattern_db.connection import fetch_all, open_connection
from pattern_db.journal.events import DELTAS
from tests.scenarios.server import TOKEN, Server, serving

# A reader that leaves closes the response; the iterators inside httpx2 and openai cannot be closed.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:Async generator '{name}:ResourceWarning")
    for name in ("httpx2", "httpcore2", "openai")
]
AGENTS = ("ada", "bo", "cy")
EVENTS_MAX = 20  # of a connection, which a reader leaves then
UPTIME_S = 1.0  # of a server, at most
AGAIN_S = 0.05
PATIENCE_S = 30.0
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
LIMITS = {"PATTERN_HTTP__RATE_PER_TOKEN": "1000000", "PATTERN_HTTP__RATE_PER_USER": "1000000"}
GONE = (httpx2.TransportError, WebSocketException, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class NotReadyError(Exception):
    """The server starts or stops, and refuses."""


@dataclass
class Reader:
    """What one reader has put together."""

    kind: str
    seen: dict[int, tuple[str, Any]] = field(default_factory=dict)
    place: int = 0
    drops: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, number: int, name: str, data: Any) -> None:
        """Keep an event, which must be later than all before."""
        if number <= self.place:
            self.wrong.append(f"{self.kind}: {name} {number} after {self.place}")
        self.place, self.seen[number] = number, (name, data)


@dataclass
class Run:
    """One server, its readers and what happened to them."""

    server: Server
    random: Random
    readers: list[Reader]
    turns: int = 0
    kills: int = 0
    is_over: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def drops(self) -> int:
        """Connections that brought events and were left."""
        return sum(reader.drops for reader in self.readers)

    def __str__(self) -> str:
        events = ", ".join(f"{reader.kind} {len(reader.seen)}" for reader in self.readers)
        return f"{self.turns} turns, {self.drops} drops, {self.kills} kills, events: {events}, wrong: {self.wrong}"


async def by_sse(server: Server, place: int) -> AsyncGenerator[tuple[int, str, Any]]:
    """Yield the events of one connection, decoded by `openai`."""
    async with (
        httpx2.AsyncClient(headers=HEADERS, trust_env=False, timeout=PATIENCE_S, verify=False) as http,
        http.stream(
            "GET",
            f"{server.url}/api/v1/constellations/home/events?after=0",
            headers={"Last-Event-ID": str(place)},
        ) as answer,
    ):
        if answer.status_code == 503:
            raise NotReadyError
        assert answer.status_code == 200, (await answer.aread()).decode()
        async for event in SSEDecoder().aiter_bytes(answer.aiter_bytes()):
            if event.data:
                yield int(event.id or 0), str(event.event), json.loads(event.data)


async def by_websocket(server: Server, place: int) -> AsyncGenerator[tuple[int, str, Any]]:
    """Yield the events of one connection of `websockets`."""
    url = f"{server.url}/api/v1/constellations/home/ws".replace("http", "ws", 1)
    async with connect(url, additional_headers=HEADERS, proxy=None, open_timeout=PATIENCE_S, close_timeout=1) as socket:
        await socket.send(json.dumps({"type": "subscribe", "id": 1, "after": place}))
        while True:
            message = json.loads(await socket.recv())
            if message["type"] == "answer" and message["status"] == 503:
                raise NotReadyError
            assert message["type"] in ("subscribed", "event"), message
            if message["type"] == "event":
                yield message["data"]["seq"], message["event"], message["data"]


async def read(run: Run, reader: Reader) -> None:
    """Follow the events, one connection after another, until cancelled."""
    ways = {"sse": by_sse, "websocket": by_websocket}
    while True:
        left = run.random.randint(1, EVENTS_MAX)
        try:
            async with aclosing(ways[reader.kind](run.server, reader.place)) as events:
                async for number, name, data in events:
                    reader.take(number, name, data)
                    left -= 1
                    if not left and not run.is_over:
                        reader.drops += 1
                        break
        except (*GONE, NotReadyError):
            await trio.sleep(AGAIN_S)
        except BaseExceptionGroup as group:
            if group.split(GONE)[1] is not None:
                raise
            await trio.sleep(AGAIN_S)


async def ask(run: Run, agent: str, key: str) -> str:
    """Send a message until it is accepted; its turn."""
    async with httpx2.AsyncClient(headers=HEADERS, trust_env=False, timeout=PATIENCE_S, verify=False) as http:
        while True:
            try:
                answer = await http.post(
                    f"{run.server.url}/api/v1/constellations/home/agents/{agent}/messages",
                    json={"content": f"Hello from {key}."},
                    headers={"Idempotency-Key": key, "Prefer": "respond-async"},
                )
            except httpx2.TransportError:
                await trio.sleep(AGAIN_S)
                continue
            if answer.status_code == 202:
                return str(answer.json()["turn_id"])
            assert answer.status_code in (429, 503), answer.text
            await trio.sleep(AGAIN_S)


async def talk(run: Run, agent: str) -> None:
    """Send messages to an agent until the run is over."""
    while not run.is_over:
        await ask(run, agent, f"{agent}-{run.turns}")
        run.turns += 1
        await trio.sleep(run.random.uniform(0, AGAIN_S))


async def attack(run: Run, drops: int, kills: int) -> None:
    """Kill the server until there were enough kills and drops."""
    while run.kills < kills or run.drops < drops:
        await trio.sleep(run.random.uniform(0.05, UPTIME_S))
        if run.kills < kills:
            run.server.kill()
            run.kills += 1
            await run.server.start()


async def dropped(folder: Path, *, drops: int, kills: int, seed: int) -> Run:
    """Do it all; the run with what went wrong."""
    async with serving(folder, environment=LIMITS) as server:
        readers = [Reader(kind) for kind in ("sse", "sse", "websocket", "websocket")]
        run = Run(server, Random(seed), readers)
        async with server.client() as client:
            (await client.post("/constellations", json={"name": "home"})).raise_for_status()
            for agent in AGENTS:
                made = {"name": agent, "model_provider": "embedded", "model_name": "rules"}
                (await client.post("/constellations/home/agents", json=made)).raise_for_status()
        async with trio.open_nursery() as following:
            for reader in readers:
                following.start_soon(read, run, reader)
            async with trio.open_nursery() as talking:
                for agent in AGENTS:
                    talking.start_soon(talk, run, agent)
                await attack(run, drops, kills)
                run.is_over = True
            last = [await end_of(run, await ask(run, agent, f"last-{agent}")) for agent in AGENTS]
            with trio.move_on_after(PATIENCE_S):
                while any(reader.place < max(last) for reader in readers):
                    await trio.sleep(AGAIN_S)
            following.cancel_scope.cancel()
        server.terminate()
    compare(run, folder, max(last))
    return run


async def end_of(run: Run, turn: str) -> int:
    """The number of the last event of a turn; earlier ones of its agent have ended then, too."""
    async with httpx2.AsyncClient(headers=HEADERS, trust_env=False, timeout=PATIENCE_S, verify=False) as http:
        answer = await http.get(f"{run.server.url}/api/v1/constellations/home/turns/{turn}/events")
        assert answer.status_code == 200, answer.text
    return max(int(line.removeprefix("id: ")) for line in answer.text.splitlines() if line.startswith("id: "))


def compare(run: Run, folder: Path, last: int) -> None:
    """Compare what the readers have with the file, up to an event, and with each other.

    The file has no deltas of messages that are stored, so a reader has only those that it was in time for.
    """
    (path,) = folder.glob("constellations/*/pattern.db")
    with closing(open_connection(path, readonly=True)) as connection:
        everything = fetch_all(connection, "SELECT seq, name FROM event WHERE seq <= ? ORDER BY seq", (last,))
    stored = [(number, name) for number, name in everything if name not in DELTAS]
    known: dict[int, tuple[str, Any]] = {}
    for reader in run.readers:
        run.wrong += reader.wrong
        seen = [
            (number, name) for number, (name, _data) in reader.seen.items() if number <= last and name not in DELTAS
        ]
        if seen != stored:
            missing = sorted({*stored} - {*seen})
            run.wrong.append(f"{reader.kind} stopped at {reader.place} of {last}; it has not {missing[:5]}")
        for number, event in reader.seen.items():
            if known.setdefault(number, event) != event:
                run.wrong.append(f"event {number} is {event} for {reader.kind}, and was {known[number]}")


@pytest.mark.slow
async def test_no_event_is_lost_repeated_or_reordered(tmp_path: Path) -> None:
    run = await dropped(tmp_path, drops=20, kills=2, seed=1)
    assert not run.wrong, str(run)
    assert run.turns > 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drops", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pattern-drops-") as folder:
        run = trio.run(lambda: dropped(Path(folder), drops=asked.drops, kills=asked.kills, seed=asked.seed))
    sys.stdout.write(f"{run}\n")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
