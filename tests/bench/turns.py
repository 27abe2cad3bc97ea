"""Turns: what one costs, what a long past adds, how many go through one file, and what stays on disk.

Machines are shared and their speed drifts, so nothing is timed alone: each variant is a process of its own, and they
take turns in rounds, some turns each. What counts is the CPU of all threads of the process; p25, because other work
only ever adds. The baseline in the same rounds is what a turn asks of the disk and nothing else: bare commits.

Other frameworks join the rounds (`peers.py`) if the Python that `PATTERN_BENCH_PEERS` names has them; without it, our
own is asked: `pip install langgraph langgraph-checkpoint-sqlite agent-framework-core`, best in an environment of its
own.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import apsw
import trio

from pattern_core.agents import Agent
from pattern_server.cli import SWITCH_S
from pattern_server.serve import YOUNG_OBJECTS_MAX
from tests.bench.report import Figure, quantile
from tests.bench.world import words, world

ROUNDS, QUICK_ROUNDS = 20, 5
WARM = 20  # turns before the first that counts
PER_ROUND = 8
AGENTS = 50
SLICE_S = 1.0  # of a round, for what is counted by time
TICK_S = 0.005
FIRST_TURN = "first turn"  # what a child of a child measures
PEERS = os.environ.get("PATTERN_BENCH_PEERS", sys.executable)
TEXTS = [words(400, seed) for seed in range(50)]

# The baseline: as many commits and log bytes as a two-step turn is meant to need (the targets of test_cost.py). They
# are fixed, so that ratios of different versions can be compared.
BARE_COMMITS, BARE_BYTES = 3, 60 * 2048

Series = dict[str, list[float]]
Work = Callable[[int], Awaitable[Series]]


@asynccontextmanager
async def conversation(*, steps: int = 2, on_disk: bool = True, past: int = 0) -> AsyncIterator[Work]:
    """One agent that answers, with a past of so many messages."""
    async with world(steps=steps, on_disk=on_disk) as bench:
        agent, texts = bench.agents[0], cycle(TEXTS)
        await bench.remember(agent, past)
        yield partial(_measured, lambda: bench.turn(agent, next(texts)))


@asynccontextmanager
async def in_group() -> AsyncIterator[Work]:
    """A group of one agent that answers."""
    async with world(steps=2, has_group=True) as bench:
        texts = cycle(TEXTS)
        yield partial(_measured, lambda: bench.group_turn(next(texts)))


@asynccontextmanager
async def restarts(*, past: int, has_spoken: bool) -> AsyncIterator[Work]:
    """First turns, each in a process of its own on a file of its own; the agent answered since it got its past, or not
    (then its first turn also makes room in the prompt).
    """
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        path, copy = Path(folder) / "pattern.db", Path(folder) / "copy.db"
        async with world(steps=2, path=path) as bench:
            await bench.remember(bench.agents[0], past)
            if has_spoken:
                await bench.turn(bench.agents[0], TEXTS[0])

        async def work(_count: int) -> Series:
            shutil.copy(path, copy)
            command = [sys.executable, "-m", "tests.bench.turns", FIRST_TURN, str(copy)]
            series: Series = json.loads((await trio.run_process(command, capture_stdout=True)).stdout)
            return series

        yield work


async def first_turn(path: Path) -> Series:
    """One turn of the agent in the file."""
    async with world(steps=2, path=path, agents=0) as bench:
        agent = (await bench.constellation.roster.all())[0]
        return await _measured(lambda: bench.turn(agent, TEXTS[1]), 1)


@asynccontextmanager
async def crowd() -> AsyncIterator[Work]:
    """50 agents that answer all the time: turns per second, and how late the loop serves a task that sleeps."""
    async with world(steps=1, agents=AGENTS) as bench:

        async def work(_count: int) -> Series:
            done, late, began, before = 0, [], time.perf_counter(), time.process_time()

            async def drive(agent: Agent) -> None:
                nonlocal done
                while True:
                    await bench.turn(agent, TEXTS[done % len(TEXTS)])
                    done += 1

            with trio.move_on_after(SLICE_S):
                async with trio.open_nursery() as nursery:
                    for agent in bench.agents:
                        nursery.start_soon(drive, agent)
                    while True:
                        due = trio.current_time() + TICK_S
                        await trio.sleep_until(due)
                        late.append((trio.current_time() - due) * 1_000)
            spent_s, cpu_s = time.perf_counter() - began, time.process_time() - before
            return {"rate": [done / spent_s], "CPU": [cpu_s / done * 1_000], "late": late}

        yield work


@asynccontextmanager
async def bare() -> AsyncIterator[Work]:
    """The baseline: rows in a plain table, each in a synced transaction of its own, by way of another thread."""
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        connection = apsw.Connection(str(Path(folder) / "bare.db"))
        connection.execute("PRAGMA page_size = 2048; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE t (x BLOB)")
        row = b"x" * (BARE_BYTES // BARE_COMMITS - 2 * 2048)  # the table's own pages are written with each

        async def turn() -> None:
            for _ in range(BARE_COMMITS):
                await trio.to_thread.run_sync(connection.execute, "INSERT INTO t VALUES (?)", (row,))

        yield partial(_measured, turn)
        connection.close()


async def _measured(turn: Callable[[], Awaitable[None]], count: int) -> Series:
    """CPU ms of all threads, of each of `count` turns."""
    values = []
    for _ in range(count):
        before = time.process_time()
        await turn()
        values.append((time.process_time() - before) * 1_000)
    return {"CPU": values}


VARIANTS: dict[str, Callable[[], AbstractAsyncContextManager[Work]]] = {
    "bare": bare,
    "disk": conversation,
    "memory": partial(conversation, on_disk=False),
    "one-step": partial(conversation, steps=1),
    "group": in_group,
    "1,000": partial(conversation, past=1_000),
    "10,000": partial(conversation, past=10_000),
    "50,000": partial(conversation, past=50_000),
    "restart": partial(restarts, past=10_000, has_spoken=True),
    "import": partial(restarts, past=10_000, has_spoken=False),
    "crowd": crowd,
}
FRAMEWORKS = {
    "langgraph": "LangGraph with AsyncSqliteSaver, durability sync",
    "agent_framework": "Microsoft Agent Framework, nothing stored",
}


async def serve(variant: str) -> None:
    """A child: say "ready" on standard output, then answer each line with a number of turns by what they took."""
    sys.setswitchinterval(SWITCH_S)  # this, and the next lines, as the server does
    async with VARIANTS[variant]() as work:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS_MAX)
        print(json.dumps("ready"), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(await work(int(line))), flush=True)


class Child:
    """A variant in a process of its own, and what it measured so far."""

    def __init__(self, *command: str) -> None:
        self.series: Series = {}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.missing = ""  # why it cannot take part

    def prepare(self) -> None:
        """Wait until it can work, and let it get warm."""
        said = self._read()
        if said == "ready":
            self._ask(WARM)
        else:
            self.missing = str(said)

    def work(self) -> None:
        """Its turns of one round."""
        if not self.missing:
            for name, values in self._ask(PER_ROUND).items():
                self.series.setdefault(name, []).extend(values)

    def stop(self) -> None:
        """End it; it ends by itself when nothing more can be asked."""
        self._process.communicate()

    def _ask(self, count: int) -> Series:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        series: Series = self._read()
        return series

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the child ended: {self._process.args!r}"
        return json.loads(line)


def rounds(count: int) -> dict[str, Child]:
    """Let all variants take turns, `count` times."""
    script = str(Path(__file__).with_name("peers.py"))
    children = {name: Child(sys.executable, "-m", "tests.bench.turns", name) for name in VARIANTS}
    children |= {name: Child(PEERS, script, name) for name in FRAMEWORKS}
    try:
        for child in children.values():
            child.prepare()
        for _ in range(count):
            for child in children.values():
                children["bare"].work()  # between any two: what all others are compared with must vary least
                child.work()
    finally:
        for child in children.values():
            child.stop()
    return children


def measure(*, quick: bool) -> list[Figure]:
    """All figures of turns."""
    children = rounds(QUICK_ROUNDS if quick else ROUNDS)
    base = quantile(children["bare"].series["CPU"], 0.25)

    def cpu(name: str, child: str, most: float | None = None, note: str = "") -> Figure:
        found = children[child]
        values = found.series.get("CPU", [])
        return Figure(
            name=name, unit="ms", values=values, share=0.25, most=most, baseline=base, note=found.missing or note
        )

    crowded, name = children["crowd"].series, f"{AGENTS} agents, one-step turns"
    ours, theirs = children["disk"].series["CPU"], children["langgraph"].series.get("CPU")
    over = [] if theirs is None else [quantile(ours, 0.25) / quantile(theirs, 0.25)]
    return [
        cpu(f"bare: {BARE_COMMITS} commits of {BARE_BYTES // BARE_COMMITS:,} bytes, by way of a thread", "bare"),
        cpu("two-step turn on disk", "disk", most=1.8),
        cpu("two-step turn in memory", "memory", most=0.95),
        cpu("one-step turn on disk", "one-step"),
        cpu("two-step turn of a group of one agent, on disk", "group"),
        Figure(
            name="the same, over the turn of an agent alone",
            unit="×",
            values=[quantile(children["group"].series["CPU"], 0.25) / quantile(ours, 0.25)],
            most=1.3,
        ),
        cpu("two-step turn on disk, 1,000 messages before", "1,000"),
        cpu("two-step turn on disk, 10,000 messages before", "10,000", most=3.5),
        cpu("two-step turn on disk, 50,000 messages before", "50,000", most=4.0),
        cpu("first turn after a restart, 10,000 messages before", "restart", most=30),
        cpu("the same, and the first since these were imported", "import", most=30),
        Figure(name=f"{name}: per second", unit="/s", values=crowded["rate"], least=1_000, note="one file, durable"),
        cpu(f"{name}: CPU of one", "crowd", note="commits are shared"),
        Figure(name=f"{name}: loop lag", unit="ms", values=crowded["late"], share=0.99, most=6),
        *(cpu(f"the two-step turn in {framework}", child) for child, framework in FRAMEWORKS.items()),
        Figure(
            name="two-step turn on disk, over LangGraph with AsyncSqliteSaver",
            unit="×",
            values=over,
            most=0.25,
            note=children["langgraph"].missing,
        ),
        *trio.run(partial(disk, turns=300 if quick else 1_000)),
    ]


async def disk(*, turns: int) -> Sequence[Figure]:
    """Bytes of the file per two-step turn, as a multiple of the text that the turn holds, early and late."""
    async with world(steps=2) as bench:
        text = 2 * 400 + len("tea with milk, no sugar") + len("noted: tea with milk, no sugar")
        sizes = {}
        for number in range(turns + 1):
            if number in (0, turns // 10, turns):
                await bench.constellation.database.run_alone(_checkpoint)
                sizes[number] = bench.path.stat().st_size
            await bench.turn(bench.agents[0], words(400, number))
        early = (sizes[turns // 10] - sizes[0]) / (turns // 10)
        late = (sizes[turns] - sizes[turns // 10]) / (turns - turns // 10)
        name = f"bytes on disk per turn of {text} characters"
        return [
            Figure(name=name, unit="×", values=[late / text], most=4, note=f"{late:.0f} bytes, {turns:,} turns"),
            Figure(name=f"{name}: later over the first tenth", unit="×", values=[late / early], most=1.05),
        ]


def _checkpoint(connection: apsw.Connection) -> None:
    """Move the write-ahead log into the file."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


if __name__ == "__main__":
    if sys.argv[1] == FIRST_TURN:
        print(json.dumps(trio.run(first_turn, Path(sys.argv[2]))))
    else:
        trio.run(serve, sys.argv[1])
