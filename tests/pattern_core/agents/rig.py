"""A turn on a database in memory, with nothing around it but its journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from pattern_core import admission
from pattern_core.admission import Accepted, Incoming
from pattern_core.agents.active import ActiveTurn, Asking
from pattern_core.agents.history import History
from pattern_core.agents.journal import Journal
from pattern_core.agents.roster import Agent
from pattern_core.agents.rows import effect_rows
from pattern_core.budgets.amounts import WorstCase
from pattern_core.events import Event, EventLog, read
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.limits import Limits
from pattern_core.messages import Message, Text, ToolCall
from pattern_core.models.fallback import Chain, Link
from pattern_core.prompts.budget import Fitted
from pattern_core.prompts.conversation import Shown
from pattern_core.prompts.parts import Kind, Part
from pattern_core.prompts.prompt import Prompt, PromptInput, build_prompt
from pattern_core.prompts.sampling import Sampling
from pattern_core.testing.clock import StoppedClock
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from pattern_db.journal.effects import EffectRow
from pattern_db.tables import agents
from tests.support import START, USER, in_memory, rows

EPOCH = 3
DEADLINE = "2026-01-01T00:05:00.000Z"
ADA = Agent(
    id="agent_ada",
    name="ada",
    model_provider="scripted",
    model_name="script-1",
    system_prompt="Be brief.",
    created_at=START,
    updated_at=START,
)


@dataclass(kw_only=True)
class Rig:
    """The journal of one turn, `turn_1`, that has been accepted; `begin` starts it."""

    database: Database
    clock: StoppedClock
    ids: Ids
    log: EventLog
    journal: Journal
    turn: ActiveTurn

    def prompt(self) -> Prompt:
        """What the model would be shown now."""
        instructions = Part(kind=Kind.INSTRUCTIONS, text=self.turn.agent.system_prompt, reason="the agent's")
        return build_prompt(
            PromptInput(
                model="script-1",
                fitted=Fitted(shown=[instructions], left_out=[]),
                conversation=Shown(messages=self.turn.history.messages, tokens=0, mark_tokens=0),
                cursor=self.turn.history.cursor,
                history_digest=self.turn.history.digest,
                tools=[],
                sampling=Sampling(max_output_tokens=100),
                seed=self.turn.seed,
                window=8_192,
            )
        )

    async def begin(self, words: str = "hello") -> Message:
        """T1 and T2."""
        incoming = self.journal.new_message("user", Text(text=words))
        self.turn.batch_id = incoming.position
        self.turn.history.append(incoming)
        await self.journal.begin(self.turn, incoming, {"content": words}, self.prompt())
        return incoming

    def planned(self, *calls: ToolCall, effect: EffectClass = EffectClass.UNSAFE) -> list[EffectRow]:
        """The effects of a decision."""
        return effect_rows(self.turn, calls, [effect] * len(calls), "cst_test")

    async def names(self) -> list[str]:
        """The names of all stored events."""
        return [event.name for event in await self.database.read(read, 0)]

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        """All rows of a query."""
        return await self.database.read(rows, sql)


def asking() -> Asking:
    """A step that asks the agent's own model, whose price nobody knows."""
    worst = WorstCase(tokens=100, microdollars=None, prompt_tokens=10, prompt_microdollars=None)
    chain = Chain(links=(Link(provider=ADA.model_provider, model=ADA.model_name, reason="the agent's own"),))
    return Asking(chain=chain, worst=worst, tokens=10, price=lambda _link, _usage: None)


@asynccontextmanager
async def accepted() -> AsyncIterator[Rig]:
    """A turn after T0."""
    clock = StoppedClock()
    ids = Ids(clock, seeded_randomness(1))
    async with in_memory() as database:
        log = EventLog(database, buffer_max=100, latest=0)
        journal = Journal(database=database, events=log, clock=clock, ids=ids, epoch=EPOCH)
        await database.write(agents.create, ADA)
        await journal.commit(partial(_accept, turn_id="turn_1"))
        turn = ActiveTurn(
            key=1,
            id="turn_1",
            agent=ADA,
            seed=7,
            sender=USER,
            depth=0,
            batch_id="",
            deadline=trio.current_time() + 300,
            deadline_at=DEADLINE,
            history=History(),
            asking=asking(),
        )
        yield Rig(database=database, clock=clock, ids=ids, log=log, journal=journal, turn=turn)


def _accept(connection: Connection, turn_id: str) -> tuple[Accepted, list[Event]]:
    incoming = Incoming(agent_id=ADA.id, content="hello", sender=USER)
    return admission.accept(connection, incoming, turn_id=turn_id, seed=7, now=START, limits=Limits())
