"""Clients without a token that use up connections, and one with a token that is answered meanwhile:
`python -m tests.scenarios.flood`.

All of them come from one address, as they do behind a proxy. The attackers are a process of their own, which gives way
to the others: it is not the machine's processors that are attacked. First connections are opened and closed, then
opened that send nothing, then some that send a byte of a request each second; those that the server closes come again,
until the client has asked so often. It asks over a connection that it keeps, and over a new one for each request.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import trio

from tests.scenarios.server import Server, serving

SLOWER_MAX = 10  # times the time of a calm server, at the 99th percentile
ASKED = 300  # requests of each kind in each phase
PAUSE_S = 0.01
ATTACKS = {"open and close": 10_000, "silent": 5_000, "a byte a second": 500}


@dataclass
class Phase:
    """What the client with a token saw while something went on."""

    name: str
    kept_ms: list[float] = field(default_factory=list)
    new_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kept, new = (f"{percentile(ms, 50):7.1f} {percentile(ms, 99):7.1f}" for ms in (self.kept_ms, self.new_ms))
        return f"{self.name:<16} {kept}  {new}  {len(self.kept_ms) + len(self.new_ms):6}  {len(self.failures)}"


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which so many percent of the values are."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1] if values else math.inf


async def ask(server: Server, phase: Phase, asked: int) -> None:
    """Ask so often over a kept connection, and as often over new ones."""
    async with server.client() as kept:
        for _ in range(asked):
            await _timed(kept, phase, phase.kept_ms)
            async with server.client() as new:
                await _timed(new, phase, phase.new_ms)
            await trio.sleep(PAUSE_S)


async def _timed(client: httpx2.AsyncClient, phase: Phase, found_ms: list[float]) -> None:
    began = trio.current_time()
    try:
        answer = await client.get("/constellations")
        if answer.status_code != 200:
            phase.failures.append(answer.text)
    except httpx2.HTTPError as error:
        phase.failures.append(repr(error))
    found_ms.append((trio.current_time() - began) * 1_000)


async def attacked(server: Server, name: str, count: int, asked: int) -> Phase:
    """Let a process attack the server, and ask meanwhile."""
    phase = Phase(name)
    command = [sys.executable, "-m", "tests.scenarios.flood", "--attack", name]
    port = server.url.rsplit(":", 1)[1]
    async with trio.open_nursery() as nursery:
        attacker = await nursery.start(trio.run_process, [*command, "--port", port, "--count", str(count)])
        await trio.sleep(0.5)
        await ask(server, phase, asked)
        phase.name += "" if attacker.poll() is None else " (ended)"
        nursery.cancel_scope.cancel()
    return phase


async def attack(name: str, port: int, count: int) -> None:
    """Do one of the attacks until killed."""

    os.nice(10)

    async def one() -> None:
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                if name == "open and close":
                    return
                for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 60:
                    if name == "silent":
                        await trio.sleep_forever()
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(1)

    async def again() -> None:
        while True:
            await one()

    async with trio.open_nursery() as nursery:
        for _ in range(min(count, 100) if name == "open and close" else count):
            nursery.start_soon(again)


async def run(
    folder: Path, attacks: Mapping[str, int], asked: int, *, environment: Mapping[str, str] | None = None
) -> list[Phase]:
    """Return the phases: a calm one first, then one for each attack."""
    async with serving(folder, environment=environment) as server:
        warm_up, calm = Phase("warm-up"), Phase("calm")
        await ask(server, warm_up, asked)
        await ask(server, calm, asked)
        return [calm, *[await attacked(server, name, count, asked) for name, count in attacks.items()]]


def main(arguments: list[str]) -> int:
    """Run all phases, print what they took, and return 1 if a request failed or took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", choices=ATTACKS)
    parser.add_argument("--port", type=int)
    parser.add_argument("--count", type=int)
    given = parser.parse_args(arguments)
    if given.attack:
        trio.run(attack, given.attack, given.port, given.count)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        phases = trio.run(run, Path(folder), ATTACKS, ASKED)
    lines = ["                 kept: p50, p99   new: p50, p99 (ms)  asked  failed"]
    lines += [f"{phase}  {' '.join(phase.failures[:3])}" for phase in phases]
    sys.stdout.write("\n".join([*lines, ""]))
    return 0 if all(holds(phase, phases[0]) for phase in phases) else 1


def holds(phase: Phase, calm: Phase) -> bool:
    """Whether all requests were answered, and nearly as fast as by a calm server."""
    pairs = ((phase.kept_ms, calm.kept_ms), (phase.new_ms, calm.new_ms))
    return not phase.failures and all(
        percentile(found, 99) <= SLOWER_MAX * percentile(before, 99) for found, before in pairs
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
