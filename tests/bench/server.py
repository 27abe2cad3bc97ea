"""The server as a process: what a request, a start and a command cost, and what awake constellations weigh.

CPU is that of all its threads, read from the system's clock for the process, so this benchmark needs Linux. Kinds of
request take turns in rounds over one connection that is kept: those that only read, then those that leave work behind.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path

import httpx2
import trio

from tests.bench.report import Figure, quantile
from tests.bench.world import words
from tests.scenarios.server import Server, serving

STARTS, QUICK_STARTS = 5, 2
ROUNDS, QUICK_ROUNDS = 20, 5
WARM = 3  # rounds before the first that counts
PER_ROUND = 8
SETTLE_S = 0.5  # after messages, for what they leave to be done, such as embeddings
CONSTELLATIONS = 60
PAST = 10_000
EMBEDDED_S = 60.0
MIB = 1_024.0  # KiB

Request = Callable[[httpx2.AsyncClient], Awaitable[httpx2.Response]]


def measure(*, quick: bool) -> list[Figure]:
    """All figures of a real server process."""
    return [
        *trio.run(_starts, QUICK_STARTS if quick else STARTS),
        *_commands(QUICK_STARTS if quick else STARTS),
        *trio.run(_requests, QUICK_ROUNDS if quick else ROUNDS),
        *trio.run(_memory),
    ]


async def _starts(runs: int) -> list[Figure]:
    ready = []
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        for _ in range(runs + 1):
            began = time.perf_counter()
            async with serving(Path(folder)) as server:
                ready.append(time.perf_counter() - began)
                server.terminate()
    # The first start makes the files and compiles the modules.
    return [Figure(name="server: start to ready", unit="s", values=ready[1:], most=0.7)]


def _commands(runs: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        _command_s(["constellation", "create", "home", "--data-dir", folder])  # reading makes no files
        without_server = ["constellation", "list", "--data-dir", folder]
        spent = {}
        for name, arguments in (("`pattern --help`", ["--help"]), ("a command without a server", without_server)):
            spent[name] = [_command_s(arguments) for _ in range(runs + 1)][1:]
    return [
        Figure(name=f"{name}: CPU", unit="s", values=values, most=most)
        for (name, values), most in zip(spent.items(), (0.25, 0.6), strict=True)
    ]


def _command_s(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pattern_server", *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def _requests(rounds: int) -> list[Figure]:
    """CPU of the server per request; POSTs are answered when their turns have ended."""
    numbers = count()

    def get(path: str) -> Request:
        return lambda client: client.get(path)

    def post(agent: str) -> Request:
        path = f"/constellations/home/agents/{agent}/messages"
        return lambda client: client.post(path, json={"content": words(400, next(numbers))})

    reads: dict[str, Request] = {
        "GET /healthz": lambda client: client.get(str(client.base_url.copy_with(path="/healthz"))),
        "GET of one agent": get("/constellations/home/agents/young"),
        "GET of agents": get("/constellations/home/agents"),
    }
    messages = {
        "POST of a message and its turn": post("young"),
        f"the same with {PAST:,} messages before": post("old"),
    }
    most = dict(zip(["GET of one agent", *messages], (1.2, 4.0, 12.0), strict=True))
    spent: dict[str, list[float]] = {name: [] for name in (*reads, *messages)}
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        async with serving(Path(folder)) as server, server.client() as client:
            await _make(client, "home", "young", "old")
            past = [{"role": ("user", "assistant")[n % 2], "content": words(200, n)} for n in range(PAST)]
            history = await client.post("/constellations/home/agents/old/history", json={"messages": past})
            history.raise_for_status()
            await _embedded(client, ["home"])
            for kinds, settle_s in ((reads, 0.0), (messages, SETTLE_S)):
                for number in range(WARM + rounds):
                    for name, request in kinds.items():
                        before = cpu_s(server)
                        for _ in range(PER_ROUND):
                            (await request(client)).raise_for_status()
                        await trio.sleep(settle_s)
                        if number >= WARM:
                            spent[name].append((cpu_s(server) - before) * 1_000 / PER_ROUND)
    health = quantile(spent["GET /healthz"], 0.25)
    return [
        Figure(name=f"{name}: CPU", unit="ms", values=values, share=0.25, most=most.get(name), baseline=health)
        for name, values in spent.items()
    ]


async def _memory() -> list[Figure]:
    """Resident memory per awake constellation, at rest and after work; and what waking takes."""
    names = [f"c{number}" for number in range(CONSTELLATIONS)]
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        async with serving(Path(folder)) as server, server.client() as client:
            for name in ("first", *names):
                await _make(client, name, "friend")
            await _embedded(client, ["first", *names])  # so that nothing is left to do when they are awake again
            server.terminate()  # a killed server's constellations are awake at the next start, to look for open turns
        async with serving(Path(folder)) as server, server.client() as client:
            await _get_ms(client, "first")
            await _say(client, "first")  # what the process itself needs for all this is there from now on
            asleep = rss_kib(server)
            cold = [await _get_ms(client, name) for name in names]
            warm = statistics.median([await _get_ms(client, name) for name in names])
            await trio.sleep(1)
            awake = rss_kib(server)
            await _say(client, *names)
            worked = rss_kib(server)
    note = f"resident, of {CONSTELLATIONS} constellations"
    return [
        Figure(
            name="waking a constellation: first request less a warm one",
            unit="ms",
            values=[first - warm for first in cold],
            most=15,
            note=f"a warm request takes {warm:.1f} ms",
        ),
        Figure(
            name="memory of an awake constellation",
            unit="MiB",
            values=[(awake - asleep) / CONSTELLATIONS / MIB],
            most=0.5,
            note=note,
        ),
        Figure(
            name="the same after a turn and its embedding",
            unit="MiB",
            values=[(worked - asleep) / CONSTELLATIONS / MIB],
            most=0.7,
            note=note,
        ),
    ]


async def _make(client: httpx2.AsyncClient, name: str, *agents: str) -> None:
    (await client.post("/constellations", json={"name": name})).raise_for_status()
    for agent in agents:
        (await client.post(f"/constellations/{name}/agents", json={"name": agent})).raise_for_status()


async def _say(client: httpx2.AsyncClient, *names: str) -> None:
    """A message to each constellation, until it has its answer and both have their vectors."""
    for name in names:
        message = {"content": words(400, len(name))}
        (await client.post(f"/constellations/{name}/agents/friend/messages", json=message)).raise_for_status()
    await _embedded(client, names)


async def _embedded(client: httpx2.AsyncClient, names: Sequence[str]) -> None:
    """Wait until every text has its vector."""
    with trio.fail_after(EMBEDDED_S):
        for name in names:
            while True:
                state = (await client.get(f"/constellations/{name}/embeddings")).raise_for_status().json()
                if state["state"] == "idle" and state["done"] >= state["total"]:
                    break
                await trio.sleep(0.1)


async def _get_ms(client: httpx2.AsyncClient, name: str) -> float:
    began = time.perf_counter()
    (await client.get(f"/constellations/{name}/agents")).raise_for_status()
    return (time.perf_counter() - began) * 1_000


def cpu_s(server: Server) -> float:
    """CPU seconds of all threads of the server, by the clock that Linux has for each process."""
    return time.clock_gettime(~server.pid << 3 | 2)


def rss_kib(server: Server) -> float:
    """Resident memory of the server."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    raise AssertionError("no resident size; this benchmark needs Linux")
