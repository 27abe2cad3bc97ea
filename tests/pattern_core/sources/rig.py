"""A constellation with an agent, and a loopback service that one of its sources asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio

from pattern_core.errors import Overloaded, PatternError
from pattern_core.ids import Clock, SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.sources.source import Arrivals, Receive, SourceAccount, SourceEvent, SourceKind
from pattern_core.testing.channels import TOKEN, TelegramServer
from pattern_core.testing.model import says
from pattern_core.testing.wire import WireServer
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.enums import PersonStatus
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sources import SourceRow
from tests.support import USER, Running, rows, running, until

ANNA = "1"  # who writes, by the stand-in's default


def settings(server: WireServer | None = None, **fields: Any) -> SourceSettings:
    """Settings by which a server on loopback may be reached."""
    secrets = {"bot": SecretSource(value=Secret(TOKEN)), "hook": SecretSource(value=Secret("a secret"))}
    port = 80 if server is None else server.port
    reach = {"ports": (port,), "allow_private": True, "services": (f"http://127.0.0.1:{port}",), "timeout_s": 2.0}
    return SourceSettings(**{**reach, "secrets": secrets, **fields})


@dataclass
class Talking:
    """A running constellation with the channel `phone`, and the service that it is of."""

    world: Running
    server: TelegramServer

    @property
    def channels(self) -> Any:
        return self.world.constellation.channels

    async def lets_in(self, status: PersonStatus = PersonStatus.ALLOWED, person: str = ANNA) -> None:
        """Let a person talk without a code."""
        await self.channels.decide("phone", person, status, by=USER)

    async def sent(self, count: int) -> list[str]:
        """Wait until the bot sent so many messages in all; return their words."""
        await until(lambda: len(self.server.sent) >= count)
        return self.server.texts

    async def deliveries(self) -> list[OutboxRow]:
        """All that was and is to be delivered, newest first."""
        row = await self.world.constellation.sources.get("phone")
        return await self.world.constellation.sources.deliveries(row.id, 500)

    async def idle(self) -> None:
        """Wait until nothing is to be done any more."""
        while True:
            await until(lambda: self.world.constellation.is_idle)
            if all(one.status != "pending" for one in await self.deliveries()):
                return
            await trio.sleep(0.01)

    async def turns(self) -> list[tuple[object, ...]]:
        """The senders and sessions of all turns, in order."""
        return await self.world.database.read(rows, "SELECT sender, session_id FROM turn ORDER BY key")


class Account:
    """An account of a kind that keeps a connection, and what it stored."""

    def __init__(self, kind: SourceKind, row: SourceRow, settings: SourceSettings, clock: Clock | None = None) -> None:
        self.kind, self.row, self.settings, self.clock = kind, row, settings, clock or SystemClock()
        self.events: list[SourceEvent] = []
        self.refuses = 0  # batches that cannot be stored
        self.batches: list[int] = []  # how many events each had
        self.waits: list[float] = []
        self.failures: list[PatternError] = []

    @property
    def account(self) -> SourceAccount:
        """The account with what is stored."""
        return SourceAccount(row=self.row, settings=self.settings, clock=self.clock)

    @property
    def cursor(self) -> dict[str, Any]:
        """What is stored of its place."""
        return dict(self.row.sync_cursor or {})

    @property
    def texts(self) -> list[str]:
        """What was said, in order."""
        return [one.text for one in self.events]

    async def receive(self, arrived: Arrivals) -> None:
        """Store what arrived, once, as a constellation does."""
        if self.refuses and arrived.events:
            self.refuses -= 1
            raise Overloaded("too many wait", retry_after_s=0.01)
        self.batches.append(len(arrived.events))
        for one in arrived.events:
            if one.native not in [known.native for known in self.events]:
                self.events.append(one.bounded)
        self.row = replace(self.row, sync_cursor=json.loads(json.dumps(dict(arrived.cursor))))

    async def once(self) -> float:
        """Listen until the connection ends."""
        return await self.account.call(self.kind.listen, self.receive)

    async def listens(self) -> None:
        """Listen as the server does, until cancelled."""
        while True:
            try:
                self.waits.append(await self.once())
            except PatternError as error:
                self.failures.append(error)
                await trio.sleep(0.02)

    async def heard(self, *texts: str) -> None:
        """Wait until so much was said, and nothing else."""
        await until(lambda: len(self.events) >= len(texts))
        assert tuple(self.texts) == texts


@asynccontextmanager
async def listening(
    kind: str, server: Any, config: dict[str, Any], sources: SourceSettings, *script: Any, **options: Any
) -> AsyncIterator[Any]:
    """Start a constellation with a channel `phone` that keeps a connection to a stand-in, followed as the server does;
    yield it as `talking` does.
    """
    options = {"otherwise": says("Hello."), "clock": SystemClock(), **options}
    async with running(script, sources=sources, **options) as world, trio.open_nursery() as nursery:
        await world.agent()
        await world.constellation.sources.create(name="phone", kind=kind, config=config, agent="ada")
        nursery.start_soon(follows, world)
        await until(lambda: server.begun)
        yield Talking(world, server)
        nursery.cancel_scope.cancel()


async def follows(
    world: Running, source: str = "phone", receive: Receive | None = None, *, pause_s: float = 0.02
) -> None:
    """Listen to a source again and again, as the server does, but with short pauses; `receive` stores what came."""
    sources = world.constellation.sources

    async def stores(arrived: Arrivals) -> None:
        await sources.receive(account.row.id, arrived)

    while True:
        try:
            kind, account = await sources.account(source)
            wait_s = await account.call(kind.listen, receive or stores)
            await trio.sleep(min(wait_s, pause_s))
        except PatternError:
            await trio.sleep(pause_s)


@asynccontextmanager
async def talking(
    *script: Any, server: TelegramServer | None = None, is_new: bool = True, **options: Any
) -> AsyncIterator[Talking]:
    """Start a constellation with a Telegram channel, whose server may outlive it."""
    if server is None:
        async with TelegramServer() as made, talking(*script, server=made, **options) as one:
            yield one
        return
    options = {"otherwise": says("Hello."), "clock": SystemClock(), **options}
    async with running(script, sources=settings(server), **options) as world:
        if is_new:
            await world.agent()
            config = {"token": "bot", "base_url": server.url}
            await world.constellation.sources.create(name="phone", kind="telegram", config=config, agent="ada")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follows, world)
            yield Talking(world, server)
            nursery.cancel_scope.cancel()
