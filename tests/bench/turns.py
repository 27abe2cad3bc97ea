"""Turns: what one costs, how many go through one file, how long the event loop is held, and what stays on disk.

The model is scripted and answers at once and whole; everything else is the product: a file on disk, every commit
synced, every event stored. A two-step turn is: message, decision to call a local tool, its result, answer.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import apsw
import trio

from pattern_core.admission import Incoming
from pattern_core.agents.roster import Agent, AgentSpec
from pattern_core.constellation import Constellation
from pattern_core.limits import Limits
from pattern_core.messages import Text, ToolCall
from pattern_core.models.catalogue import Catalogue, ModelFacts
from pattern_core.models.client import ClientLimits, ModelClient
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta, Provider, Usage
from pattern_core.models.retry import RetryPolicy
from pattern_core.runtime import Runtime
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool, ToolContext, tool
from pattern_db import template
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import EffectClass
from pattern_db.migrate import migrations_of
from tests.bench.report import Figure

NOW = "2026-01-01T00:00:00.000Z"
AGENTS = 50
RUNS = 5
USAGE = Usage(input_tokens=100, output_tokens=50)
FACTS = ModelFacts(
    provider="script", model="m", window=128_000, output_max=4_096, input_price=3_000_000, output_price=15_000_000
)

SYLLABLES = ["ka", "lo", "mi", "ne", "ru", "sa", "to", "vi", "be", "dor", "fen", "gal", "hin", "jus", "pel", "quo"]
VOCABULARY = ["".join(random.Random(n).choices(SYLLABLES, k=1 + n % 4)) for n in range(5_000)]
FREQUENCIES = [1 / (rank + 3) for rank in range(len(VOCABULARY))]  # Zipf's law, as in people's speech


def words(count: int, seed: int) -> str:
    """`count` characters of made-up words, as often as words are in speech: the full-text index works for real."""
    chosen = random.Random(seed).choices(VOCABULARY, FREQUENCIES, k=count // 3)
    return " ".join(chosen)[:count]


@tool(effect=EffectClass.LOCAL)
async def note(context: ToolContext, text: Annotated[str, "What to note."]) -> str:
    """Note something."""
    return f"noted: {text}"


class Script:
    """A model that answers whole and at once: a tool call first, if there are two steps, then `chars` of words."""

    name = "script"

    def __init__(self, *, steps: int, chars: int) -> None:
        self._steps = steps
        self._answers = [words(chars, seed) for seed in range(97)]
        self._asked = 0

    async def ask(self, request: ModelRequest, _on_delta: OnDelta) -> ModelReply:
        """The next answer."""
        await trio.lowlevel.checkpoint()
        self._asked += 1
        if self._steps == 2 and request.messages[-1].role == "user":
            call = ToolCall(call_id=f"call_{self._asked}", tool="note", arguments={"text": "tea with milk, no sugar"})
            return ModelReply(parts=(call,), finish_reason="tool_calls", usage=USAGE)
        text = self._answers[self._asked % len(self._answers)]
        return ModelReply(parts=(Text(text=text),), finish_reason="stop", usage=USAGE)

    async def aclose(self) -> None:
        """Nothing is held open."""


class World:
    """A constellation that runs on a file, and its agents."""

    def __init__(self, constellation: Constellation, agents: list[Agent], path: Path) -> None:
        self.constellation = constellation
        self.agents = agents
        self.path = path

    async def add(self, count: int) -> None:
        """Make more agents."""
        for number in range(len(self.agents), len(self.agents) + count):
            spec = AgentSpec(
                name=f"agent {number}",
                model_provider="script",
                model_name="m",
                system_prompt=words(1_000, 1),
                enabled_tools=["note"],
            )
            self.agents.append(await self.constellation.roster.create(spec, author="user:bench"))

    async def turn(self, agent: Agent, content: str) -> None:
        """One message, until its terminal event."""
        seen = self.constellation.events.latest
        ticket = await self.constellation.submit(Incoming(agent_id=agent.id, content=content, sender="user:bench"))
        await self.constellation.events.rested(ticket.turn_id, after=seen)


@asynccontextmanager
async def world(
    *,
    steps: int = 1,
    chars: int = 400,
    agents: int = 1,
    on_disk: bool = True,
    facts: ModelFacts = FACTS,
    limits: Limits | None = None,
    provider: Provider | None = None,
    tools: Sequence[Tool] = (),
) -> AsyncIterator[World]:
    """A started constellation in a temporary folder, or in memory on the calling thread.

    Its model has the window and prices of `facts`; `provider` answers, under the name "script", in the script's place;
    `tools` are there beside `note`.
    """
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder, DatabaseThreads() as threads:
        path = Path(folder) / "pattern.db"
        template.create(path, migrations_of("constellation"), now=NOW)
        async with await _database(path, threads, on_disk=on_disk) as database:
            runtime, limits = Runtime(), limits or Limits()
            models = ModelClient(
                {"script": provider or Script(steps=steps, chars=chars)},
                RetryPolicy(),
                limits.turn,
                runtime.randomness,
                client_limits=ClientLimits(calls_max=1_000),
                catalogue=Catalogue({"script": {"m": facts}}),
            )
            constellation = Constellation(
                id="cst_bench",
                name="bench",
                database=database,
                models=models,
                tools=ToolRegistry([note, *tools]),
                runtime=runtime,
                limits=limits,
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(constellation.run)
                made = World(constellation, [], path)
                await made.add(agents)
                yield made
                nursery.cancel_scope.cancel()


async def _database(path: Path, threads: DatabaseThreads, *, on_disk: bool) -> Database:
    if on_disk:
        return await Database.open(path, threads)
    return Database.in_memory(template.in_memory(migrations_of("constellation"), now=NOW))


async def cpu_per_turn(turns: int = 300, *, on_disk: bool = True) -> Figure:
    """CPU of the whole process per two-step turn, one after another in one conversation.

    In memory it is what our code and SQLite cost; the difference is five thread hops, write-ahead log and syncs.
    """
    async with world(steps=2, on_disk=on_disk) as bench:
        text = words(400, 2)
        for _ in range(50):
            await bench.turn(bench.agents[0], text)
        values = []
        for _ in range(RUNS):
            start = time.process_time()
            for _ in range(turns):
                await bench.turn(bench.agents[0], text)
            values.append((time.process_time() - start) / turns * 1_000)
        return Figure(
            name=f"CPU per journaled two-step turn, one at a time, {'on disk' if on_disk else 'in memory'}",
            unit="ms",
            values=values,
            most=1.1,
            baseline=bare_cpu(bench.path.parent, commits=5 * turns) / turns * 1_000 if on_disk else None,
            note="user and kernel time of all threads; baseline: five bare synced one-row commits" if on_disk else "",
        )


def bare_cpu(folder: Path, *, commits: int) -> float:
    """CPU seconds of synced one-row transactions in a plain table on the calling thread."""
    connection = apsw.Connection(str(folder / "bare.db"))
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (x TEXT)").fetchall()
    start = time.process_time()
    for _ in range(commits):
        connection.execute("INSERT INTO t VALUES (?)", ("x" * 400,))
    spent = time.process_time() - start
    connection.close()
    return spent


async def throughput(*, steps: int, seconds: float = 2.0) -> tuple[Figure, Figure]:
    """Durable turns per second with 50 agents in one file, and CPU per turn meanwhile."""
    async with world(steps=steps, agents=AGENTS) as bench:
        text = words(400, 2)
        rates, cpus = [], []
        for _ in range(RUNS):
            done, cpu, start = 0, time.process_time(), time.perf_counter()
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:

                    async def drive(agent: Agent) -> None:
                        nonlocal done
                        while True:
                            await bench.turn(agent, text)
                            done += 1

                    for agent in bench.agents:
                        nursery.start_soon(drive, agent)
            rates.append(done / (time.perf_counter() - start))
            cpus.append((time.process_time() - cpu) / done * 1_000)
        kind = "one-step" if steps == 1 else "two-step"
        return (
            Figure(
                name=f"durable {kind} turns per second, {AGENTS} agents, one file",
                unit="/s",
                values=rates,
                least=1_500 if steps == 1 else None,
            ),
            Figure(
                name=f"CPU per {kind} turn, {AGENTS} agents",
                unit="ms",
                values=cpus,
                most=1.1 if steps == 2 else None,
                note="commits are shared between the agents",
            ),
        )


async def loop_lag(seconds: float = 5.0) -> Figure:
    """How late the event loop serves a task that wants to run every millisecond, while 50 agents work."""
    async with world(steps=2, agents=AGENTS) as bench:
        text, late = words(400, 2), []
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:

                async def drive(agent: Agent) -> None:
                    while True:
                        await bench.turn(agent, text)

                for agent in bench.agents:
                    nursery.start_soon(drive, agent)
                while True:
                    due = trio.current_time() + 0.001
                    await trio.sleep_until(due)
                    late.append((trio.current_time() - due) * 1_000)
        late.sort()
        p99 = late[int(len(late) * 0.99)]
        return Figure(
            name=f"event loop lag p99, {AGENTS} agents working",
            unit="ms",
            values=[p99],
            most=10,
            note=f"{len(late)} samples, worst {late[-1]:.1f} ms",
        )


async def disk(*, chars: int, turns: int) -> list[Figure]:
    """Bytes of the file per two-step turn, as a multiple of the text that the turn holds, early and late."""
    async with world(steps=2, chars=chars) as bench:
        payload = 2 * chars + len("tea with milk, no sugar") + len("noted: tea with milk, no sugar")
        empty, early, marks = size(bench.path), 0.0, {turns // 10: 0.0, turns: 0.0}
        for number in range(1, turns + 1):
            await bench.turn(bench.agents[0], words(chars, number))
            if number in marks:
                await bench.constellation.database.run_alone(checkpoint)
                marks[number] = size(bench.path)
        early = (marks[turns // 10] - empty) / (turns // 10)
        late = (marks[turns] - marks[turns // 10]) / (turns - turns // 10)
        return [
            Figure(
                name=f"bytes on disk per turn over its text, {2 * chars} characters of words",
                unit="×",
                values=[late / payload],
                most=4,
                note=f"{late:.0f} bytes for {payload}",
            ),
            Figure(
                name=f"the same, turns {turns // 10} to {turns} over the first {turns // 10}",
                unit="×",
                values=[late / early],
                most=1.05,
            ),
        ]


def checkpoint(connection: apsw.Connection) -> None:
    """Move the write-ahead log into the file."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def size(path: Path) -> float:
    """Bytes of the database file."""
    return float(path.stat().st_size)
