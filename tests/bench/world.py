"""A constellation to measure: the turn that benchmarks time is the one that `test_cost.py` counts.

The model is scripted and answers at once and whole, so nothing is streamed; everything else is the product: a file on
disk, every commit synced, every event stored. A two-step turn: message, decision to call a local tool, result, answer.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import trio

from pattern_core.agents import Agent, AgentSpec
from pattern_core.constellation import Constellation
from pattern_core.conversation.imports import PastMessage
from pattern_core.groups.group import MemberSpec
from pattern_core.limits import IMPORT_MESSAGES_MAX
from pattern_core.messages import Text, ToolCall
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.client import Account, ModelClient
from pattern_core.models.model import ModelFacts, ModelReply, ModelRequest, OnDelta, Provider, Usage
from pattern_core.models.throttle import ClientLimits, RetryPolicy
from pattern_core.runtime import Runtime
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolContext, tool
from pattern_core.turns.admission import IncomingMessage
from pattern_db import template
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import EffectClass, Role
from pattern_db.migrate import migrations_of
from pattern_db.tables import meta

NOW = "2026-01-01T00:00:00.000Z"
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


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def note(context: ToolContext, text: Annotated[str, "What to note."]) -> str:
    """Note something."""
    return f"noted: {text}"


class Script(Provider):
    """A model that answers whole and at once: a tool call first, if there are two steps, then 400 characters."""

    name = "script"

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._answers = [words(400, seed) for seed in range(97)]
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


class World:
    """A constellation that runs on a file, and its agents."""

    def __init__(self, constellation: Constellation, agents: list[Agent], path: Path) -> None:
        self.constellation = constellation
        self.agents = agents
        self.path = path

    async def remember(self, agent: Agent, count: int) -> None:
        """Give an agent a past of `count` messages of 200 characters, its own and people's in turn."""
        for first in range(0, count, IMPORT_MESSAGES_MAX):
            numbers = range(first, min(first + IMPORT_MESSAGES_MAX, count))
            past = [PastMessage(role=(Role.USER, Role.ASSISTANT)[n % 2], content=words(200, n)) for n in numbers]
            await self.constellation.imports.add(agent.id, past, author="user:bench")

    async def turn(self, agent: Agent, content: str) -> None:
        """One message, until its terminal event."""
        seen = self.constellation.events.latest
        ticket = await self.constellation.submit(
            IncomingMessage(agent_id=agent.id, content=content, sender="user:bench")
        )
        await self.constellation.events.rested(ticket.turn_id, after=seen)

    async def group_turn(self, content: str) -> None:
        """One message to the group, until its terminal event."""
        seen = self.constellation.events.latest
        incoming = IncomingMessage(agent_id="", content=content, sender="user:bench")
        ticket = await self.constellation.submit_to_group("desk", incoming)
        await self.constellation.events.rested(ticket.turn_id, after=seen)


@asynccontextmanager
async def world(
    *,
    steps: int = 1,
    agents: int = 1,
    on_disk: bool = True,
    provider: Provider | None = None,
    threads: DatabaseThreads | None = None,
    path: Path | None = None,
    has_group: bool = False,
) -> AsyncIterator[World]:
    """A started constellation on the file at `path` (a temporary one if None), or in memory on the calling thread.

    `agents` are made, beside those that the file has. `provider` answers, under the name "script", in the script's
    place; `threads`, not yet entered, do the work of the file. With `has_group` the agents are a group, `desk`.
    """
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder, threads or DatabaseThreads() as threads:
        path = path or Path(folder) / "pattern.db"
        if not path.exists():
            template.create(path, migrations_of("constellation"), now=NOW)
        async with await _database(path, threads, on_disk=on_disk) as database:
            await database.claim(meta.next_epoch)
            runtime = Runtime()
            models = ModelClient(
                {"script": provider or Script(steps)},
                RetryPolicy(),
                runtime.limits.turn,
                runtime.randomness,
                accounts={"script": Account(key="script", limits=ClientLimits(calls_max=1_000))},
                catalogue=Catalogue({"script": {"m": FACTS}}),
            )
            constellation = Constellation(
                id="cst_bench",
                database=database,
                models=models,
                tools=ToolRegistry([note]),
                runtime=runtime,
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(constellation.run)
                made = [await _agent(constellation, f"agent {number}") for number in range(agents)]
                if has_group:
                    members = [MemberSpec(one.id) for one in made]
                    await constellation.groups.create(name="desk", pattern_type="round_robin", members=members)
                yield World(constellation, made, path)
                nursery.cancel_scope.cancel()


async def _database(path: Path, threads: DatabaseThreads, *, on_disk: bool) -> Database:
    if on_disk:
        return await Database.open(path, threads)
    return Database.in_memory(template.in_memory(migrations_of("constellation"), now=NOW))


async def _agent(constellation: Constellation, name: str) -> Agent:
    spec = AgentSpec(
        name=name,
        model_provider="script",
        model_name="m",
        system_prompt=words(1_000, 1),
        enabled_tools=["note"],
    )
    return await constellation.roster.create(spec, author="user:bench")
