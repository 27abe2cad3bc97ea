"""A constellation that runs, for tests: on memory or a file, with a scripted model, stopped time and seeded chance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import trio
import trio.testing

from pattern_core.agents import Agent, AgentSpec
from pattern_core.approvals import Approval, ApprovalAnswer
from pattern_core.budgets.budget import Budget
from pattern_core.constellation import Constellation
from pattern_core.events import Event, read
from pattern_core.ids import Clock, message_id, seeded_randomness
from pattern_core.limits import Limits
from pattern_core.memory.block import Attribution
from pattern_core.messages import Message, Note, Part, ToolResult
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.client import ModelClient
from pattern_core.models.model import ModelRequest, Provider
from pattern_core.models.throttle import RetryPolicy
from pattern_core.runtime import Meters, Runtime
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer, ScriptedProvider
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool, ToolContext, ToolSettings, tool
from pattern_core.turns.admission import IncomingMessage
from pattern_core.views import TurnView
from pattern_core.web.policy import SourceSettings, WebhookSettings
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import EffectClass
from pattern_db.migrate import migrations_of
from pattern_db.tables import meta

START = "2026-01-01T00:00:00.000Z"  # where StoppedClock begins
USER = "user:usr_ada"
BY_USER = Attribution(author=USER)
PATIENCE_S = 60.0  # a turn that takes longer than this hangs


@dataclass(frozen=True, kw_only=True)
class Running:
    """A started constellation and what it was started with. `nursery` is the one that it runs in."""

    constellation: Constellation
    database: Database
    provider: ScriptedProvider
    tools: Sequence[str]
    clock: Clock
    nursery: trio.Nursery

    async def agent(
        self, name: str = "ada", *, tools: Sequence[str] | None = None, prompt: str = "", **fields: Any
    ) -> Agent:
        """Make an agent; `tools` None enables all that the constellation was started with, `fields` are its others."""
        spec = AgentSpec(
            name=name,
            model_provider=self.provider.name,
            model_name="script-1",
            system_prompt=prompt,
            enabled_tools=self.tools if tools is None else tools,
            **fields,
        )
        return await self.constellation.roster.create(spec, author=USER)

    async def submit(self, content: str, agent: str = "ada", *, key: str | None = None, **fields: Any) -> str:
        """Send a message and return the id of its turn; `fields` are the message's others."""
        incoming = IncomingMessage(agent_id=agent, content=content, idempotency_key=key, **{"sender": USER, **fields})
        return (await self.constellation.submit(incoming)).turn_id

    async def wait(self, turn_id: str) -> TurnView:
        """Wait until a turn has ended or waits for a person; fails rather than hang."""
        with trio.fail_after(PATIENCE_S):
            return await self.constellation.wait(turn_id)

    async def say(self, content: str, agent: str = "ada") -> TurnView:
        """Send a message and wait for the end of its turn."""
        return await self.wait(await self.submit(content, agent))

    async def answer(self, **said: Any) -> Approval:
        """Answer the only open question: yes, unless `said` is something else."""
        [question] = await self.constellation.approvals.list(9)
        given = ApprovalAnswer(**{"approve": True, "by": USER, **said})
        return await self.constellation.approvals.decide(question.id, given)

    async def events(self, turn_id: str | None = None, *, after: int = 0) -> list[Event]:
        """What is stored, complete, oldest first; of one turn if given."""
        return await self.database.read(read, after, turn_id=turn_id)

    async def names(self, turn_id: str) -> list[str]:
        """The names of a turn's events in order."""
        return [event.name for event in await self.events(turn_id)]


@asynccontextmanager
async def running(
    script: Iterable[Answer] = (),
    *,
    otherwise: Answer | None = None,
    provider: ScriptedProvider | None = None,
    others: Sequence[Provider] = (),
    tools: Sequence[Tool] = (),
    database: Database | None = None,
    path: Path | None = None,
    limits: Limits | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
    seed: int = 1,
    budgets: Sequence[Budget] = (),
    catalogue: Catalogue | None = None,
    meters: Meters | None = None,
    reach: ToolSettings | None = None,
    webhooks: WebhookSettings | None = None,
    sources: SourceSettings | None = None,
) -> AsyncIterator[Running]:
    """Start a constellation, and stop it as a crash does at the end of the block: what is unfinished stays so.

    `otherwise` answers when the script is over. A `database` stays open afterwards, so that another constellation may
    be started on it; else `path` names a file, made if it is missing; else there is a database in memory. Without a
    `retry` a failed question is not asked again. `others` are providers beside the one that agents ask first, and
    `reach` is what tools may reach.
    """
    provider = provider or ScriptedProvider(script, otherwise=otherwise)
    clock, limits, meters = clock or StoppedClock(), limits or Limits(), meters or Meters()
    runtime = Runtime(
        clock=clock,
        randomness=seeded_randomness(seed),
        limits=limits,
        budgets=budgets,
        meters=meters,
        tools=reach or ToolSettings(),
        webhooks=webhooks or WebhookSettings(),
        sources=sources or SourceSettings(),
    )
    async with AsyncExitStack() as stack:
        if database is None:
            database = await stack.enter_async_context(_opened(path))
        await database.claim(meta.next_epoch)
        registry = ToolRegistry(tools)
        providers: dict[str, Provider] = {one.name: one for one in (provider, *others)}
        retry = retry or RetryPolicy(attempts_max=1)
        models = ModelClient(providers, retry, limits.turn, runtime.randomness, catalogue=catalogue)
        constellation = Constellation(id="cst_test", database=database, models=models, tools=registry, runtime=runtime)
        async with trio.open_nursery() as nursery:
            await nursery.start(constellation.run)
            yield Running(
                constellation=constellation,
                database=database,
                provider=provider,
                tools=registry.names,
                clock=clock,
                nursery=nursery,
            )
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _opened(path: Path | None) -> AsyncIterator[Database]:
    if path is None:
        async with in_memory() as database:
            yield database
    else:
        with DatabaseThreads() as threads:
            async with await on_file(path, threads) as database:
                yield database


async def until(holds: Callable[[], object]) -> None:
    """Wait until it holds; fails rather than hang."""
    with trio.fail_after(PATIENCE_S):
        while not holds():
            await trio.sleep(0.01)


def last_words(request: ModelRequest) -> str:
    """All that the newest message of a request shows: notes, words, the content of results."""
    parts = request.messages[-1].parts
    return "".join(part.content if isinstance(part, ToolResult) else getattr(part, "text", "") for part in parts)


def note_in(request: ModelRequest) -> str:
    """What stands before the newest question of a request."""
    asked = next(message for message in reversed(request.messages) if message.role == "user")
    return "".join(part.text for part in asked.parts[:1] if isinstance(part, Note))


def make_message(role: str, parts: Sequence[Part], *, position: str, created_at: str) -> Message:
    """Return a message at `position` with the id that belongs to it."""
    return Message(
        role=role,  # type: ignore[arg-type]  # tests pass one of the four roles
        parts=tuple(parts),
        id=message_id(position),
        position=position,
        created_at=created_at,
    )


def empty_constellation() -> Connection:
    """A new constellation's tables, in memory."""
    return template.in_memory(migrations_of("constellation"), now=START)


def in_memory() -> Database:
    """A new constellation's database in memory, whose work runs inline: the one for tests of time."""
    return Database.in_memory(empty_constellation())


async def on_file(path: Path, threads: DatabaseThreads) -> Database:
    """The database at `path`, made if it is missing."""
    if not await trio.Path(path).exists():
        template.create(path, migrations_of("constellation"), now=START)
    return await Database.open(path, threads)


def rows(connection: Connection, sql: str, *values: str | int | bytes | None) -> list[tuple[object, ...]]:
    """All rows of a query, for `database.read(rows, "SELECT …")`."""
    return list(connection.execute(sql, values))


async def statuses(database: Database) -> list[object]:
    """The statuses of all calls, in order."""
    return [status for (status,) in await database.read(rows, "SELECT status FROM effect ORDER BY turn, step, call")]


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def note(context: ToolContext, text: Annotated[str, "What to note."]) -> str:
    """Note something: a local effect, stored with its result."""
    context.work.event("noted", {"text": text})
    return f"noted {text}"


@tool(effect=EffectClass.PURE, returns_untrusted_text=False)
async def shout(_context: ToolContext, text: Annotated[str, "What to shout."]) -> str:
    """Say it louder: an effect nowhere."""
    return text.upper()


@dataclass
class Outside:
    """A world outside, in which calls that reach it leave a trace; `mail` is unsafe, `put` idempotent."""

    done: list[tuple[str, str]] = field(default_factory=list)
    gate: trio.Event | None = None  # awaited after the trace is left and before the call answers

    @property
    def tools(self) -> list[Tool]:
        """`mail(to)` and `put(text)`, each bound to this world."""

        @tool(effect=EffectClass.UNSAFE, name="mail", for_strangers=True)
        async def mail(_context: ToolContext, to: Annotated[str, "The address."]) -> str:
            """Send a mail."""
            return await self._do("mail", to)

        @tool(effect=EffectClass.IDEMPOTENT, name="put", for_strangers=True)
        async def put(context: ToolContext, text: Annotated[str, "The content."]) -> str:
            """Put something under the call's own key."""
            return await self._do("put", context.idempotency_key)

        return [mail, put]

    async def _do(self, what: str, argument: str) -> str:
        self.done.append((what, argument))
        if self.gate is not None:
            await self.gate.wait()
        return f"done: {what}"


@asynccontextmanager
async def acting(script: Iterable[Answer] = (), **options: Any) -> AsyncIterator[Running]:
    """Start a constellation as `running` does, with an agent ada."""
    async with running(script, **options) as one:
        await one.agent()
        yield one


@asynccontextmanager
async def crashed(*script: Answer, tools: Sequence[Tool] = (), **agent: Any) -> AsyncIterator[tuple[Database, str]]:
    """Yield a database with a turn that a process left as it was when nothing went on, and the turn's id."""
    async with in_memory() as database:
        async with running(script, tools=tools, database=database) as one:
            await one.agent(**agent)
            turn_id = await one.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        yield database, turn_id
