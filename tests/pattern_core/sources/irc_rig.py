"""An account at the stand-in for IRC, followed as the server does; with or without a constellation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio

from pattern_core.errors import PatternError
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.sources.kinds import kind_of
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent
from pattern_core.testing.irc_server import PASSWORD, IrcServer
from pattern_core.testing.model import says
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import Talking, settings
from tests.support import START, Running, running, until


def reach(port: int) -> SourceSettings:
    """Settings by which the stand-in may be reached, and has the password."""
    secrets = {"irc": SecretSource(value=Secret(PASSWORD)), "wrong": SecretSource(value=Secret("another"))}
    return replace(settings(), ports=(port,), services=(f"http://127.0.0.1:{port}",), secrets=secrets)


def config(port: int, **fields: Any) -> dict[str, Any]:
    """The configuration of an account."""
    return {"server": f"127.0.0.1:{port}", "nick": "ada", "tls": False, "rooms": ["#garden"], **fields}


class Account:
    """An account, and what it stored; `refuses` says what stops each of the next batches."""

    def __init__(self, port: int, **fields: Any) -> None:
        self.kind = kind_of("irc")
        checked = self.kind.checked(config(port, **fields), reach(port))
        row = SourceRow("src_1", "phone", "irc", checked, START, START)
        self.account = SourceAccount(row=row, settings=reach(port), clock=SystemClock())
        self.events: list[SourceEvent] = []
        self.failures: list[PatternError] = []
        self.refuses: list[PatternError] = []

    async def receive(self, arrived: Arrivals) -> None:
        if self.refuses and arrived.events:
            raise self.refuses.pop(0)
        for event in arrived.events:
            if event.native not in [one.native for one in self.events]:
                self.events.append(event.bounded)

    async def once(self) -> float:
        return await self.account.call(self.kind.listen, self.receive)

    async def listens(self) -> None:
        while True:
            try:
                await self.once()
            except PatternError as error:
                self.failures.append(error)
                await trio.sleep(0.02)

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.events]

    async def heard(self, *texts: str) -> None:
        await until(lambda: len(self.events) >= len(texts))
        assert tuple(self.texts) == texts


@asynccontextmanager
async def following(server: IrcServer | None = None, **fields: Any) -> AsyncIterator[tuple[IrcServer, Account]]:
    """An account that is listened to, in its room."""
    async with server or IrcServer() as there, trio.open_nursery() as nursery:
        account = Account(there.port, **fields)
        nursery.start_soon(account.listens)
        await until(lambda: there.nick and len(there.rooms) == len(account.account.config["rooms"]))
        yield there, account
        nursery.cancel_scope.cancel()


async def follows(world: Running) -> None:
    """Listen again and again, as the server does."""
    sources = world.constellation.sources

    async def receive(arrived: Arrivals) -> None:
        await sources.receive(account.row.id, arrived)

    account: SourceAccount
    while True:
        kind, account = await sources.account("phone")
        try:
            await account.call(kind.listen, receive)
        except PatternError:
            await trio.sleep(0.02)


@dataclass
class Chatting(Talking):
    """A running constellation with the channel `phone`, which is of a network."""

    server: IrcServer  # type: ignore[assignment]  # another service than the rig's


@asynccontextmanager
async def talking(*script: Any, server: IrcServer | None = None, **options: Any) -> AsyncIterator[Chatting]:
    """A constellation with a channel of the stand-in, followed as the server does."""
    options.setdefault("otherwise", says("Hello."))
    async with server or IrcServer() as there:
        options |= {"sources": reach(there.port), "clock": SystemClock()}
        async with running(script, **options) as world, trio.open_nursery() as nursery:
            await world.agent()
            await world.constellation.sources.create(name="phone", kind="irc", config=config(there.port), agent="ada")
            nursery.start_soon(follows, world)
            await until(lambda: there.rooms)
            yield Chatting(world, there)
            nursery.cancel_scope.cancel()
