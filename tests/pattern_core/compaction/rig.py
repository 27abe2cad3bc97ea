"""An agent with a past and a summariser that follows a script, for tests of compaction."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pattern_core.agents import Agent
from pattern_core.budgets.budget import KnownBudgets
from pattern_core.compaction.compaction import Compaction, Made
from pattern_core.compaction.summariser import SummaryUsage
from pattern_core.conversation.history import History, load_history, to_row
from pattern_core.events import Event, EventLog, read
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.journal import Journal
from pattern_core.limits import Limits, PromptLimits
from pattern_core.messages import Message, Part, Text, ToolCall, ToolResult
from pattern_core.models.client import ModelClient
from pattern_core.models.model import ModelFacts, ModelRequest, Usage
from pattern_core.models.throttle import RetryPolicy
from pattern_core.search import SearchRequest, search
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer, ScriptedProvider
from pattern_core.turns import admission
from pattern_core.turns.admission import Arrival, IncomingMessage, Ticket
from pattern_db import template
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import Role
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, messages, summaries
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.summaries import SummaryRow
from tests.support import make_message

WINDOW = 8_192
START = "2026-01-01T00:00:00.000Z"  # where StoppedClock begins
USER = "user:usr_ada"
ADA = Agent(
    id="agent_ada",
    name="ada",
    model_provider="scripted",
    model_name="script-1",
    system_prompt="Be brief.",
    created_at=START,
    updated_at=START,
)


def is_untrusted(_tool: str) -> bool:
    return False


class CountedUsage(SummaryUsage):
    """Notes each call."""

    def __init__(self, models: ModelClient) -> None:
        self.models = models
        self.reserved: list[ModelRequest] = []
        self.settled: list[Usage | None] = []

    async def reserve(self, provider: str, request: ModelRequest) -> None:
        self.reserved.append(request)

    async def settle(self, provider: str, request: ModelRequest, usage: Usage | None) -> None:
        self.settled.append(usage)


class Windows(ModelClient):
    """Knows the window of the agent's model; other models' windows are too small to summarise in."""

    window = WINDOW

    def facts(self, provider_name: str, model: str) -> ModelFacts:
        is_own = (provider_name, model) == (ADA.model_provider, ADA.model_name)
        return replace(super().facts(provider_name, model), window=self.window if is_own else 100)


@dataclass(kw_only=True)
class Stage:
    """One agent with its conversation, its turn under way, and what makes room for it."""

    database: Database
    clock: StoppedClock
    ids: Ids
    agent: Agent
    history: History = field(default_factory=History)
    running_from: str = "~"  # where the turn's messages begin
    deadline: float = math.inf
    provider: ScriptedProvider
    models: ModelClient
    compaction: Compaction
    usage: CountedUsage
    limits: Limits
    stored: int = 0  # messages of earlier turns

    async def make_room(self, room: int, compaction: Compaction | None = None) -> Made:
        """Make room for the turn: then the conversation fits, and nothing is lost."""
        made = await (compaction or self.compaction).make_room(
            self.agent,
            self.history,
            turn=(1, "turn_1"),
            running_from=self.running_from,
            deadline=self.deadline,
            room=room,
            usage=self.usage,
        )
        assert self.history.tokens == made.tokens_after <= room
        await self.assert_nothing_lost()
        return made

    async def assert_nothing_lost(self) -> None:
        """Every message is there and is either shown or archived; events and summaries account for the archived."""
        rows, kept, events = await self.rows(), await self.summaries(), await self.events()
        shown = {message.id for message in self.history.messages}
        assert len(rows) == self.stored
        assert all(row.is_archived != (row.id in shown) for row in rows if row.position >= self.history.loaded_from)
        assert loose_ends(self.history.messages) == []
        if any(row.batch_id is None and row.role is Role.TOOL for row in rows):
            return  # no prompt shows them, so they are not counted
        archived = sum(row.is_archived for row in rows)
        assert sum(event.data["messages"] for event in events) == archived  # type: ignore[misc]  # JSON
        if not any(row.depth for row in kept):
            assert sum(row.message_count for row in kept) == archived

    def new(self, role: str, *parts: Part) -> Message:
        self.clock.advance(1_000)
        created_at = iso(self.clock.now_ms())
        return make_message(role, parts, position=self.ids.position(), created_at=created_at)

    async def _turn(self, question: str, results: Sequence[str], answer: str) -> None:
        """Store a question, a call with its result for each of the results, an answer."""
        said = [self.new("user", Text(text=question))]
        for number, content in enumerate(results):
            said.append(self.new("assistant", ToolCall(call_id=f"c{number}", tool="note")))
            said.append(self.new("tool", ToolResult(call_id=f"c{number}", tool="note", content=content)))
        said.append(self.new("assistant", Text(text=answer)))
        batch = said[0].position
        rows = [to_row(one, agent_id=ADA.id, batch_id=batch, sequence=place) for place, one in enumerate(said)]
        await self.database.write(messages.append, rows)
        self.stored += len(rows)

    async def said(self, turns: int, *, tools: int = 0) -> None:
        """Store so many earlier turns: a question, calls with their results, an answer that names its number."""
        words = "word " * 40
        for number in range(turns):
            await self._turn(f"question n{number}: {words}", [words] * tools, f"answer{number} {words}")

    async def turn_of(self, words: int, results: Sequence[int]) -> None:
        """Store one turn of so many words, with a call for each result."""
        await self._turn("word " * words, ["data " * length for length in results], "done")

    async def imported(self, count: int, *, role: str = "user") -> None:
        """Store past messages of no turn."""
        said = [self.new(role, Text(text=f"past {number}")) for number in range(count)]
        rows = [to_row(one, agent_id=ADA.id, batch_id="", sequence=0, source="import") for one in said]
        await self.database.write(messages.append, [row._replace(batch_id=None) for row in rows])
        self.stored += count

    async def begin(self, text: str = "and now?") -> Message:
        """Read the history and let the turn begin with a message."""
        await self.reload()
        message = self.new("user", Text(text=text))
        self.running_from = message.position
        self.history.append(message)
        return message

    async def reload(self) -> None:
        """Read the conversation as a new process does."""
        self.history = await self.database.read(
            load_history, ADA.id, self.limits.prompt, active=None, is_untrusted=is_untrusted
        )

    async def rows(self) -> list[MessageRow]:
        """All messages, oldest first, archived or not."""
        return (await self.database.read(messages.recent, ADA.id, 100_000))[::-1]

    async def summaries(self) -> list[SummaryRow]:
        """All summaries, oldest first."""
        return (await self.database.read(summaries.recent, ADA.id, 1_000))[::-1]

    async def events(self) -> list[Event]:
        """The events of compactions."""
        return [event for event in await self.database.read(read, 0) if event.name == "history.compacted"]

    async def found(self, query: str) -> Sequence[str]:
        """The contents of what search finds by words."""
        return [hit.content for hit in (await search(self.database, SearchRequest(query=query, limit=200))).hits]


@asynccontextmanager
async def stage(
    script: Iterable[Answer] = (),
    *,
    otherwise: Answer | None = None,
    window: int = WINDOW,
    read_max: int = 2_000,
    config: Mapping[str, object] | None = None,
    said: int = 0,
    asks: str = "and now?",
) -> AsyncIterator[Stage]:
    """An agent whose turn was accepted, and begins if it `said` something in earlier ones; a model that answers by the
    script.
    """
    clock, limits = StoppedClock(), Limits(prompt=PromptLimits(history_messages_max=read_max))
    ids = Ids(clock, seeded_randomness(7))
    provider = ScriptedProvider(script, otherwise=otherwise, name=ADA.model_provider)
    models = Windows({provider.name: provider}, RetryPolicy(attempts_max=1), limits.turn, seeded_randomness(3))
    models.window = window
    async with Database.in_memory(template.in_memory(migrations_of("constellation"), now=START)) as database:
        await database.write(agents.create, ADA)
        journal = Journal(
            constellation_id="cst_test",
            database=database,
            events=EventLog(database, buffer_max=1, latest=0),
            clock=clock,
            ids=ids,
            epoch=1,
            budgets=KnownBudgets(exist=False),
        )
        await journal.commit(partial(_accept, limits=limits))
        world = Stage(
            database=database,
            clock=clock,
            ids=ids,
            agent=replace(ADA, config={} if config is None else {"compaction": config}),
            provider=provider,
            models=models,
            compaction=Compaction(journal=journal, models=models, limits=limits, is_untrusted=is_untrusted),
            usage=CountedUsage(models),
            limits=limits,
        )
        if said:
            await world.said(said)
            await world.begin(asks)
        yield world


def _accept(connection: Connection, limits: Limits) -> tuple[Ticket, list[Event]]:
    incoming = IncomingMessage(agent_id=ADA.id, content="hello", sender=USER)
    return admission.accept(connection, Arrival.of(incoming, ADA, turn_id="turn_1", seed=7, now=START), limits)


def loose_ends(conversation: Sequence[Message]) -> list[str]:
    """Call ids that are asked without an answer right after, or answered without having been asked."""
    ends: list[str] = []
    waiting: set[str] = set()
    for one in conversation:
        if one.role == "tool":
            answered = one.parts[0]
            assert isinstance(answered, ToolResult)
            if answered.call_id in waiting:
                waiting.remove(answered.call_id)
            else:
                ends.append(answered.call_id)
            continue
        ends.extend(waiting)
        waiting = {asked.call_id for asked in one.tool_calls}
    return [*ends, *waiting]
