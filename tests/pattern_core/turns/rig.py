"""A turn on a database in memory, with nothing around it but its record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from pattern_core.agent_settings import AgentSettings, ContextSettings
from pattern_core.agents import Agent
from pattern_core.budgets.budget import KnownBudgets, TurnBudget
from pattern_core.conversation.history import History
from pattern_core.events import Event, EventLog, read
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.messages import Message, Part, Text, ToolCall, user
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.model import ModelReply, Usage
from pattern_core.models.routing import Link, ModelChain
from pattern_core.prompts.build import (
    NOT_NOTED,
    Material,
    Offered,
    Prompt,
    build_prompt,
    stable_of,
)
from pattern_core.runtime import Meters
from pattern_core.testing import StoppedClock
from pattern_core.turns import admission
from pattern_core.turns.admission import Arrival, IncomingMessage, Ticket
from pattern_core.turns.record import Record
from pattern_core.turns.state import Asking
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from pattern_db.journal.steps import EffectRow, hash_call
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
OFFERED = Offered(
    tools=(),
    window=8_192,
    output_max=100,
    settings=AgentSettings(context=ContextSettings(show={"guide": False, "time": False})),
)
MATERIAL = Material(
    instructions=ADA.system_prompt,
    blocks=(),
    is_opened=False,
    offered=OFFERED,
)
PROMPT = build_prompt(  # of 10 tokens, 3 of them instructions, and an answer of 90 at most
    "script-1",
    stable_of(MATERIAL),
    NOT_NOTED,
    History([user("twelve chars")]),
    replace(OFFERED, output_max=90),
    seed=7,
)
OWN = Link(provider=ADA.model_provider, model=ADA.model_name)
TABLES = ("turn", "inbox", "step", "effect", "event", "usage", "messages", "approval", "prompt_log", "meta")


@dataclass(kw_only=True)
class Rig:
    """The record of one turn, `turn_1`, that has been accepted."""

    database: Database
    clock: StoppedClock
    ids: Ids
    log: EventLog
    journal: Journal
    record: Record
    meters: Meters

    @property
    def said(self) -> list[Message]:
        """The conversation in memory."""
        return list(self.record.history.messages)

    def prompt(self) -> Prompt:
        """What the model would be shown now."""
        stable = stable_of(MATERIAL._replace(instructions=self.record.agent.system_prompt))
        return build_prompt("script-1", stable, NOT_NOTED, self.record.history, OFFERED, seed=7)

    def start(self, words: str = "hello") -> Message:
        """Record T1."""
        incoming = self.journal.new_message("user", Text(text=words))
        self.record.batch_id = incoming.position
        self.record.start(incoming, {"content": words}, limits=TurnBudget())
        return incoming

    async def open(self) -> None:
        """T2."""
        await self.record.open_step(asking(prompt=self.prompt()))

    async def decided(self, *calls: ToolCall, effect: EffectClass = EffectClass.LOCAL) -> list[EffectRow]:
        """A started turn that decided on calls; the decision is recorded and not flushed."""
        self.start()
        await self.open()
        planned = self.planned(*calls, effect=effect)
        self.record.decide(reply(*calls), asking(), planned)
        return planned

    def planned(self, *calls: ToolCall, effect: EffectClass = EffectClass.LOCAL) -> list[EffectRow]:
        """The effects of a decision."""
        arguments = [to_json(dict(call.arguments)) for call in calls]
        key, step = self.record.key, self.record.step
        return [
            EffectRow(
                key, step, at, call.call_id, call.tool, text, hash_call(call.tool, text), effect.value, f"key_{at}"
            )
            for at, (call, text) in enumerate(zip(calls, arguments, strict=True))
        ]

    async def names(self) -> list[str]:
        """The names of all stored events."""
        return [event.name for event in await self.database.read(read, 0)]

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        """All rows of a query."""
        return await self.database.read(rows, sql)

    async def stored(self) -> Sequence[Sequence[tuple[object, ...]]]:
        """All that is stored."""
        return [await self.rows(f"SELECT * FROM {table}") for table in TABLES]


def reply(*parts: Part) -> ModelReply:
    """A decision."""
    usage = Usage(input_tokens=10, output_tokens=5)
    return ModelReply(parts=parts, finish_reason="stop", usage=usage, request_id="req_1")


def asking(*links: Link, prompt: Prompt = PROMPT) -> Asking:
    """A step that asks these models in turn (none: the agent's own), whose prices nobody knows."""
    return Asking(chain=ModelChain(links=links or (OWN,)), prompt=prompt, facts=Catalogue({}).facts)


@asynccontextmanager
async def accepted() -> AsyncIterator[Rig]:
    """A turn after T0, whose message waits in line."""
    clock = StoppedClock()
    ids = Ids(clock, seeded_randomness(1))
    async with in_memory() as database:
        log = EventLog(database, buffer_max=100, latest=0)
        meters = Meters()
        known = KnownBudgets(exist=False)
        journal = Journal(
            constellation_id="cst_test",
            database=database,
            events=log,
            clock=clock,
            ids=ids,
            epoch=EPOCH,
            budgets=known,
            meters=meters,
        )
        await database.write(agents.create, ADA)
        await journal.commit(partial(_accept, turn_id="turn_1"))
        record = Record(
            journal=journal,
            agent=ADA,
            history=History(is_untrusted=lambda _tool: False),
            id="turn_1",
            batch_id="",
            key=1,
            deadline_at=DEADLINE,
        )
        yield Rig(database=database, clock=clock, ids=ids, log=log, journal=journal, record=record, meters=meters)


def _accept(connection: Connection, turn_id: str) -> tuple[Ticket, list[Event]]:
    incoming = IncomingMessage(agent_id=ADA.id, content="hello", sender=USER)
    return admission.accept(connection, Arrival.of(incoming, ADA, turn_id=turn_id, seed=7, now=START), Limits())
