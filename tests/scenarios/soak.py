"""A server at work for a while, to see that it needs no more and more: `python -m tests.scenarios.soak --minutes 30`.

Twenty constellations, half with the embedded rules and half with a slow streaming model that also calls a tool of an
MCP server; clients that wait, that stream, that cancel; readers of all events that leave and resume; a folder that is
kept in step with a memory. More constellations than are at work at a time, so that some are parked and woken all the
time. Nothing may fail, and after a warm-up memory and descriptors must stay what they are.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import httpx2
import trio

from pattern_core.testing.model import calls, says
from pattern_core.testing.wire import Play, WireRequest
from pattern_core.testing.wire_openai import replies, serve_openai
from tests.pattern_core.mcp_servers.rig import PROGRAM
from tests.scenarios.server import Server, serving

CONSTELLATIONS = 20
WORKERS = 6
READERS = 3
SAMPLE_S = 0.5
# From the second quarter of the time to the last one.
GROWTH_MAX = 0.08  # of the memory
GROWTH_SHORT_MAX = 0.25  # where the time is too short for caches to fill
SHORT_MINUTES = 5
DESCRIPTORS_MAX = 60  # more; each constellation that happens to be awake has seven


@dataclass
class Soak:
    """What was done and seen."""

    done: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds
    errors: list[str] = field(default_factory=list)
    samples: list[tuple[float, int]] = field(default_factory=list)  # MiB, descriptors

    def quarter(self, number: int) -> tuple[float, float]:
        """The median memory (MiB) and descriptors of a quarter of the time."""
        size = len(self.samples) // 4
        memory, descriptors = zip(*self.samples[size * number : size * (number + 1)], strict=True)
        return statistics.median(memory), statistics.median(descriptors)

    def expect(self, answer: httpx2.Response, *statuses: int) -> Any:
        """Note an answer with another status; its JSON."""
        if answer.status_code not in statuses:
            self.errors.append(f"{answer.request.method} {answer.request.url.path}: {answer.text[:300]}")
        return answer.json()

    def misses(self, minutes: float) -> list[str]:
        """What does not hold."""
        (memory_then, descriptors_then), (memory, descriptors) = self.quarter(1), self.quarter(3)
        growth = GROWTH_SHORT_MAX if minutes < SHORT_MINUTES else GROWTH_MAX
        found = [f"{len(self.errors)} errors: {self.errors[:3]}"] if self.errors else []
        if memory > memory_then * (1 + growth):
            found.append(f"memory grew from {memory_then:.0f} to {memory:.0f} MiB")
        if descriptors > descriptors_then + DESCRIPTORS_MAX:
            found.append(f"descriptors grew from {descriptors_then:.0f} to {descriptors:.0f}")
        return found

    def __str__(self) -> str:
        quarters = ", ".join(
            f"{memory:.0f} MiB and {count:.0f} descriptors" for memory, count in map(self.quarter, range(4))
        )
        slowest = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.slowest.items())
        return f"{dict(self.done)}, slowest {slowest}, {len(self.errors)} errors; quarters of the time: {quarters}"


def answer(request: WireRequest) -> Play:
    """Call the MCP server's tool for some messages, once, then say some words."""
    messages: Any = request.json()["messages"]
    # The turn's own message and its result may have a passage of the past behind them.
    if "echo" in str(messages[-2:]) and all(message["role"] != "tool" for message in messages[-3:]):
        return replies(calls("notes__echo", {"text": "hello"}))
    return replies(says("Words, one after the other, and not too many of them. " * 4))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Server]:
    """A server with its constellations."""
    async with serve_openai(otherwise=answer) as wire, trio.open_nursery() as nursery:
        slow = {"kind": "openai", "base_url": f"{wire.url}/v1", "api_key": "sk-soak"}
        program = {"command": sys.executable, "args": ["-I", "-S", str(PROGRAM), str(folder / "mcp.log")]}
        environment = {
            "PATTERN_PROVIDERS": json.dumps({"slow": slow}),
            "PATTERN_DEFAULT_PROVIDER": "embedded",
            "PATTERN_MCP": json.dumps({"notes": {**program, "protocol": "legacy", "idle_s": 5}}),
            "PATTERN_SUPERVISOR__IDLE_PARK_S": "3",
        }

        async def forget() -> None:
            while True:
                await trio.sleep(1)
                wire.requests.clear()

        nursery.start_soon(forget)
        async with serving(folder, environment=environment) as server:
            yield server
        nursery.cancel_scope.cancel()


async def make(server: Server, soak: Soak) -> None:
    """Make the constellations."""
    async with server.client() as client:
        for number in range(CONSTELLATIONS):
            soak.expect(await client.post("/constellations", json={"name": f"c{number}"}), 201)
            model = {"model_provider": "slow", "model_name": "m"} if number % 2 else {}
            agent = {"name": "ada", **model, "memory": [{"label": "human", "content": "Nothing yet."}]}
            soak.expect(await client.post(f"/constellations/c{number}/agents", json=agent), 201)
            if number % 2:
                where = f"/constellations/c{number}/agents/ada"
                tools = soak.expect(await client.get(where), 200)["enabled_tools"]
                soak.expect(await client.patch(where, json={"enabled_tools": [*tools, "notes__echo"]}), 200)


async def work(server: Server, soak: Soak, chance: random.Random) -> None:
    """Send messages, in one way or another, until cancelled."""
    async with server.client() as client:
        while True:
            what = chance.choice(["wait", "wait", "wait", "stream", "cancel", "edit", "search"])
            name = f"c{chance.randrange(CONSTELLATIONS)}"
            began = trio.current_time()
            try:
                await do(client, soak, chance, what, f"/constellations/{name}")
            except httpx2.HTTPError as error:
                soak.errors.append(f"{what} in {name}: {error!r}")
            soak.done[what] += 1
            soak.slowest[what] = max(soak.slowest.get(what, 0), trio.current_time() - began)


async def do(client: httpx2.AsyncClient, soak: Soak, chance: random.Random, what: str, home: str) -> None:
    """Do one thing in a constellation."""
    where, block = f"{home}/agents/ada/messages", f"{home}/agents/ada/memory/human"
    body = {"content": f"Remember that number {chance.randrange(1_000)} is good. {chance.choice(['', 'echo'])}"}
    if what == "wait":
        said = soak.expect(await client.post(where, json=body), 200)
        if said.get("status") not in ("completed", "cancelled"):
            soak.errors.append(f"{where}: {said.get('status')}, {said.get('error')}")
    elif what == "stream":
        async with client.stream("POST", where, json=body, headers={"Accept": "text/event-stream"}) as events:
            names = [line async for line in events.aiter_lines() if line.startswith("event: turn.")]
        if names[-1:] not in (["event: turn.completed"], ["event: turn.cancelled"]):
            soak.errors.append(f"{where}: a stream of {names}")
    elif what == "cancel":
        begun = soak.expect(await client.post(where, json=body, headers={"Prefer": "respond-async"}), 202)
        await trio.sleep(chance.random() / 10)
        soak.expect(await client.post(f"{home}/turns/{begun['turn_id']}/cancel"), 200)
    elif what == "edit":
        soak.expect(await client.put(block, json={"content": f"Number {chance.randrange(1_000)}."}), 200)
    else:
        soak.expect(await client.post(f"{home}/search", json={"query": "good number"}), 200)


async def follow(server: Server, soak: Soak, chance: random.Random) -> None:
    """Read a constellation's events for a while, leave and resume, until cancelled. None may come twice."""
    async with server.client() as client:
        last = {f"c{number}": 0 for number in range(CONSTELLATIONS)}
        while True:
            name = chance.choice(list(last))
            with trio.move_on_after(3 * chance.random()):
                headers = {"Last-Event-ID": str(last[name])}
                async with client.stream("GET", f"/constellations/{name}/events", headers=headers) as events:
                    async for line in events.aiter_lines():
                        if line.startswith("id: "):
                            number = int(line.removeprefix("id: "))
                            if number <= last[name]:
                                soak.errors.append(f"event {number} of {name} after {last[name]}")
                            last[name] = number
                            soak.done["events"] += 1


async def watch(server: Server, soak: Soak) -> None:
    """Sample the server's memory and descriptors until cancelled."""
    place = trio.Path(f"/proc/{server.pid}")
    while True:
        status = (await (place / "status").read_text()).split("VmRSS:")[1]
        descriptors = len(list(await (place / "fd").iterdir()))
        soak.samples.append((int(status.split()[0]) / 1024, descriptors))
        await trio.sleep(SAMPLE_S)


async def soaked(folder: Path, minutes: float, seed: int) -> Soak:
    """Let everything work for so long."""
    soak, chance = Soak(), random.Random(seed)
    async with running(folder) as server:
        await make(server, soak)
        mirror = ["memory", "sync", str(folder / "mirror"), "-c", "c0", "--data-dir", str(folder)]
        with trio.move_on_after(60 * minutes):
            async with trio.open_nursery() as nursery:
                command = [sys.executable, "-m", "pattern_server", *mirror]
                nursery.start_soon(partial(trio.run_process, command, stdout=DEVNULL, stderr=DEVNULL))
                for _ in range(WORKERS):
                    nursery.start_soon(work, server, soak, random.Random(chance.random()))
                for _ in range(READERS):
                    nursery.start_soon(follow, server, soak, random.Random(chance.random()))
                nursery.start_soon(watch, server, soak)
        if not await trio.Path(folder / "mirror").exists():
            soak.errors.append("nothing was mirrored")
    log = await trio.Path(folder / "server.log").read_text()
    soak.errors += [line for line in log.splitlines() if '"level": "error"' in line or "Traceback" in line]
    return soak


def main(arguments: list[str]) -> int:
    """Soak a server, print what was seen, and return 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        soak = trio.run(soaked, Path(folder), given.minutes, given.seed)
    misses = soak.misses(given.minutes)
    sys.stdout.write("\n".join([str(soak), *misses, ""]))
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
