"""The server: from start to ready, waking a cold constellation, and memory per constellation."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import apsw
import httpx2
import trio

from tests.bench.report import Figure
from tests.scenarios.server import Server, serving

RUNS = 5
CONSTELLATIONS = 100


def measure() -> list[Figure]:
    """All figures of a real server process."""
    return trio.run(_measure)


async def _measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        path = Path(folder)
        starts = [await _start_s(path) for _ in range(RUNS + 1)][1:]  # the first one makes files and compiles modules
        async with serving(path) as server:
            await _make(server, CONSTELLATIONS)
            server.terminate()  # a killed server's constellations are awake at the next start, to look for open turns
        wakes, warm, memory = await _wake(path)
        return [
            Figure(name="server start to ready", unit="s", values=starts, most=1.0, note="a fresh Python process"),
            Figure(
                name="waking a cold constellation: first request less a warm one",
                unit="ms",
                values=[wake - statistics.median(warm) for wake in wakes],
                most=15,
                baseline=_open_ms(path),
                note=f"a warm request takes {statistics.median(warm):.1f} ms; baseline: opening such a file bare",
            ),
            *memory,
        ]


async def _start_s(path: Path) -> float:
    start = time.perf_counter()
    async with serving(path) as server:
        spent = time.perf_counter() - start
        server.terminate()
        return spent


async def _make(server: Server, count: int) -> None:
    async with server.client() as client:
        for number in range(count):
            (await client.post("/constellations", json={"name": f"c{number}"})).raise_for_status()
            (await client.post(f"/constellations/c{number}/agents", json={"name": "friend"})).raise_for_status()


async def _wake(path: Path) -> tuple[list[float], list[float], list[Figure]]:
    """Times in ms of the first and of a later request to each constellation, and what they weigh when awake."""
    async with serving(path) as server, server.client() as client:
        await client.get("/constellations")
        asleep = _rss_kib(server.pid)
        cold = [await _get_ms(client, number) for number in range(CONSTELLATIONS)]
        warm = [await _get_ms(client, number) for number in range(CONSTELLATIONS)]
        await trio.sleep(1)
        awake = _rss_kib(server.pid)
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        async with serving(Path(folder)) as server, server.client() as client:
            await client.get("/constellations")
            empty = _rss_kib(server.pid)
    return (
        cold,
        warm,
        [
            Figure(
                name="memory per awake idle constellation",
                unit="KiB",
                values=[(awake - asleep) / CONSTELLATIONS],
                most=600,
                note=f"resident memory, {CONSTELLATIONS} awake",
            ),
            Figure(
                name="memory per parked constellation",
                unit="KiB",
                values=[max(0.0, (asleep - empty) / CONSTELLATIONS)],
                note=f"a server with {CONSTELLATIONS} asleep less one with none: the noise of two processes",
            ),
        ],
    )


async def _get_ms(client: httpx2.AsyncClient, number: int) -> float:
    start = time.perf_counter()
    (await client.get(f"/constellations/c{number}/agents")).raise_for_status()
    return (time.perf_counter() - start) * 1_000


def _rss_kib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    raise AssertionError("no resident size; this benchmark needs Linux")


def _open_ms(path: Path) -> float:
    """Opening one of the files with SQLite alone and reading a row."""
    file = next(path.glob("constellations/*/pattern.db"))
    start = time.perf_counter()
    connection = apsw.Connection(str(file))
    connection.execute("SELECT count(*) FROM agents").fetchall()
    spent = time.perf_counter() - start
    connection.close()
    return spent * 1_000
