"""One life of a constellation: opened on a world's file, used by clients and a subscriber, until it is ended."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from pattern_core.agents import AgentSpec
from pattern_core.budgets.budget import Budget
from pattern_core.constellation import Constellation
from pattern_core.errors import Conflict
from pattern_core.ids import seeded_randomness
from pattern_core.limits import Limits, TurnLimits
from pattern_core.memory.block import NewBlock
from pattern_core.models.client import ModelClient
from pattern_core.models.throttle import RetryPolicy
from pattern_core.runtime import Runtime
from pattern_core.testing import START_MS
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool
from pattern_core.turns.admission import IncomingMessage
from pattern_db import template
from pattern_db.columns import iso
from pattern_db.connection import Connection, open_connection
from pattern_db.database import DatabaseThreads
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_db.migrate import migrations_of
from pattern_db.tables import meta
from tests.crash.moments import POINTS, Trigger, TriggerDisk, WatchedDatabase, line_of
from tests.crash.outside import World
from tests.crash.script import (
    AGENTS,
    BLOCK,
    CONFIGS,
    PROVIDER,
    RULES,
    ScriptModel,
    Stage,
    answer_of,
    tools_of,
    write_plan,
)

LIFE_MS = 5_000  # how far apart the clocks of two lives begin
PATIENCE_S = 60.0
LOOK_S = 0.004  # between two looks whether a life is over; more often costs more than the rest of the harness
QUESTIONS_MAX = 100
REHEARSED = 4  # messages to each agent
MORE = 500  # between the number of a message and that of the one that follows it at once, to join its turn
STEERS = 0.15  # of the messages that are followed by another
USER = "user:crash"
# What a life writes to its standard error counts as a fault; that there is no room on the disk is none.
logging.getLogger("pattern.turns").addHandler(logging.NullHandler())
BUDGET = Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 10**12)  # so that every call is held for


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How lives are led: which database stands below, what the tools are, where lives are cut off, and how often the
    same step may be.
    """

    database: type[WatchedDatabase] = WatchedDatabase
    tools: Callable[[Stage], Sequence[Tool]] = tools_of
    points: Sequence[tuple[str, str]] = POINTS
    resumes_max: int = 3


class TickingClock:
    """A wall clock that moves by a millisecond each time it is read: the same in each run."""

    def __init__(self, start_ms: int) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        self._now_ms += 1
        return self._now_ms


def prepare(world: World) -> None:
    """Make the world's file."""
    world.folder.mkdir(parents=True, exist_ok=True)
    template.create(world.file, migrations_of("constellation"), now=iso(START_MS))


class Scene:
    """What all lives share, made once: the settings, and tools whose stage is set for each life."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stage = Stage(World(Path()), lambda _moment, _phase: None)
        self.tools = ToolRegistry(settings.tools(self.stage))


async def rehearse(folder: Path, scene: Scene) -> None:
    """Lead a life in memory and without threads, and leave nothing of it but what a process reads or makes only once.

    Forked lives then find that done: the model catalogue alone takes longer to read than most of them last.
    """
    world = World(folder)
    folder.mkdir()
    async with WatchedDatabase.in_memory(template.in_memory(migrations_of("constellation"), now=iso(START_MS))) as made:
        with trio.fail_after(PATIENCE_S):
            await Life(world, 0, Trigger(None), random.Random(0), scene).lead_on(made, messages=REHEARSED)
    shutil.rmtree(folder)


class Life:
    """Everything of one life; `number` counts the lives of the world from 0, `chance` decides what clients do."""

    def __init__(self, world: World, number: int, trigger: Trigger, chance: random.Random, scene: Scene) -> None:
        self._world = world
        self._number = number
        self._trigger = trigger
        self._chance = chance
        self._settings = scene.settings
        self._tools = scene.tools
        self._last_seen = 0
        self._asked = trio.Event()
        scene.stage.world, scene.stage.reached = world, trigger.reached

    async def lead(self, *, messages: int, vfs: str | None = None, pragmas: Sequence[str] = ()) -> None:
        """Recover what is there, send `messages` to each agent, wait until everything has ended, and close.

        `vfs` names the disk to use; `pragmas` are set on the connection first.

        Raises:
            StorageFailed: the disk failed.
            TooSlowError: something hangs.
        """
        with trio.fail_after(PATIENCE_S), DatabaseThreads(writers=1, readers=1) as threads:
            disk = None if vfs is not None else TriggerDisk(self._trigger)
            name = vfs if disk is None else disk.name
            async with await self._settings.database.open(self._world.file, threads, vfs=name) as database:
                for pragma in pragmas:
                    await database.run_alone(_set, pragma)
                await self.lead_on(database, messages=messages)
            if disk is not None:
                disk.unregister()

    async def lead_on(self, database: WatchedDatabase, *, messages: int) -> None:
        """As `lead`, on an open database."""
        database.watch_with(self._trigger, self._world.announced)
        await database.claim(meta.next_epoch)
        async with trio.open_nursery() as nursery:
            constellation = self._constellation(database)
            await nursery.start(constellation.run)
            await self._use(constellation, messages)
            nursery.cancel_scope.cancel()

    def _constellation(self, database: WatchedDatabase) -> Constellation:
        late_ms = -LIFE_MS // 2 if self._chance.random() < 0.1 else 0  # wall clocks are set back now and then
        limits = Limits(
            turn=TurnLimits(resumes_max=self._settings.resumes_max),
            delta_flush_s=0.0,
            room_wait_s=0.01,
            pair_cooldown_s=0.0,
        )
        runtime = Runtime(
            clock=TickingClock(START_MS + LIFE_MS * (self._number + 1) + late_ms),
            randomness=seeded_randomness(self._chance.getrandbits(64)),
            limits=limits,
            budgets=(BUDGET,),
        )
        provider = ScriptModel(self._trigger.reached, self._note_asked)
        return Constellation(
            id="cst_crash",
            database=database,
            models=ModelClient({PROVIDER: provider}, RetryPolicy(), limits.turn, runtime.randomness),
            tools=self._tools,
            runtime=runtime,
        )

    def _note_asked(self, cursor: str) -> None:
        """Note a model call whose step is not in the file."""
        if not self._world.file.exists():  # a rehearsal in memory
            return
        connection = open_connection(self._world.file, readonly=True)
        try:
            found = connection.execute("SELECT 1 FROM step WHERE status = 'open' AND cursor = ?", (cursor,)).fetchone()
        finally:
            connection.close()
        if found is None:
            self._world.unflushed.append({"cursor": cursor})

    async def _use(self, constellation: Constellation, messages: int) -> None:
        await self._hire(constellation)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, constellation)
            nursery.start_soon(self._answer, constellation)
            async with trio.open_nursery() as clients:
                for agent in AGENTS:
                    clients.start_soon(self._talk, constellation, agent, messages, self._chance.getrandbits(64))
            await _rest(constellation)
            await _until(lambda: self._last_seen >= constellation.events.latest)
            nursery.cancel_scope.cancel()

    async def _hire(self, constellation: Constellation) -> None:
        there = {agent.name for agent in await constellation.roster.all()}
        for name in AGENTS:
            if name not in there:
                await constellation.roster.create(
                    AgentSpec(
                        name=name,
                        model_provider=PROVIDER,
                        model_name="script-1",
                        enabled_tools=[*self._tools.names],
                        config=CONFIGS[name],
                        tool_rules=RULES[name],
                        memory=[NewBlock(label=BLOCK, char_limit=500_000)],
                    ),
                    author=USER,
                )

    async def _listen(self, constellation: Constellation) -> None:
        """A subscriber that comes back with the last event that it saw, and notes each one."""
        log = self._world.seen
        lines = log.lines()
        self._last_seen = int(str(lines[-1]["seq"])) if lines else 0
        stream = constellation.events.subscribe(after=self._last_seen)
        async for event in stream:
            log.append(line_of(event))
            self._last_seen = event.seq
            if event.name == "approval.requested":
                self._asked.set()

    async def _answer(self, constellation: Constellation) -> None:
        """A person who answers each question, also those of earlier lives."""
        while True:
            self._asked = trio.Event()
            for approval in await constellation.approvals.list(QUESTIONS_MAX):
                self._trigger.reached("decide", "before")
                with suppress(Conflict):  # its turn was cancelled meanwhile
                    await constellation.approvals.decide(approval.id, answer_of(approval))
                self._trigger.reached("decide", "after")
            await self._asked.wait()

    async def _talk(self, constellation: Constellation, agent: str, messages: int, seed: int) -> None:
        """A client that sends again what was not acknowledged, and now and then what was."""
        chance = random.Random(seed)
        send = partial(self._send, constellation)
        for wish in self._unanswered(agent):
            await send(wish)
        for index in range(messages):
            n = self._number * 1_000 + index
            key = f"key-{n}-{agent}" if chance.random() < 0.8 else None
            content = write_plan(f"{n}-{agent}", chance)
            wish = {"n": n, "agent": agent, "key": key, "content": content}
            self._world.wishes.append(wish)
            turn_id = await send(wish)
            if key is not None and chance.random() < 0.2:
                await send(wish)
            if self._trigger.moment == "join" or chance.random() < STEERS:
                await trio.sleep(chance.random() * 0.004)
                follows = {**wish, "n": n + MORE, "key": f"more-{n}-{agent}", "policy": "steer"}
                follows["content"] = write_plan(f"{n + MORE}-{agent}", chance)
                self._world.wishes.append(follows)
                await send(follows)
            if chance.random() < 0.08:
                await trio.sleep(chance.random() * 0.005)
                await constellation.cancel(turn_id, reason="the client changed its mind")
            if chance.random() < 0.6:
                await constellation.wait(turn_id)

    def _unanswered(self, agent: str) -> list[dict[str, object]]:
        """What may or may not have been accepted in an earlier life, and may be sent again."""
        answered = {(line["n"], line["agent"]) for line in self._world.acks.lines()}
        return [
            wish
            for wish in self._world.wishes.lines()
            if wish["agent"] == agent and wish["key"] is not None and (wish["n"], agent) not in answered
        ]

    async def _send(self, constellation: Constellation, wish: dict[str, object]) -> str:
        """Send a message and note the answer; the id of its turn."""
        self._trigger.reached("submit", "before")
        key = wish["key"]
        ticket = await constellation.submit(
            IncomingMessage(
                agent_id=str(wish["agent"]),
                content=str(wish["content"]),
                sender=USER,
                idempotency_key=None if key is None else str(key),
                policy="steer" if wish.get("policy") == "steer" else None,
            )
        )
        self._trigger.reached("submit", "after")
        self._trigger.reached("ack", "before")
        ack = {"n": wish["n"], "agent": wish["agent"], "turn": ticket.turn_id, "is_replay": ticket.is_replay}
        self._world.acks.append(ack)
        self._trigger.reached("ack", "after")
        return ticket.turn_id


def _set(connection: Connection, pragma: str) -> None:
    connection.execute(f"PRAGMA {pragma}").fetchall()


async def _rest(constellation: Constellation) -> None:
    """Wait until every turn has ended, also those that wait for a person."""
    while True:
        await _until(lambda: constellation.is_idle)
        if await constellation.database.read(_unfinished) == 0:
            return
        await trio.sleep(LOOK_S)


def _unfinished(connection: Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM turn WHERE ended_at IS NULL").get
    return count


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(LOOK_S)
