"""A process with a channel that keeps a connection, to be killed: `python -m tests.pattern_core.sources.listen_worker
KIND FILE URL PORTS VARIANT CHATS`.

Variants: `sound`; `early` lets the service know of a place before what is there is stored.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from pattern_core.errors import PatternError
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.sources.source import Arrivals, SourceAccount
from pattern_core.testing import discord_server, slack_server
from pattern_core.web.policy import SecretSource
from pattern_db.enums import PersonStatus
from tests.pattern_core.sources.rig import settings
from tests.pattern_core.sources.worker import repeats
from tests.support import USER, Running, running

PATHS = {"discord": discord_server.REST, "slack": ""}  # of the API
PEOPLE = {"discord": "", "slack": "U"}  # before a person's number
TOKENS = {
    "discord": {"token": discord_server.TOKEN},
    "slack": {"token": slack_server.TOKEN, "app_token": slack_server.APP_TOKEN},
}


async def asks(world: Running, variant: str) -> None:
    """Listen again and again, as the server does."""
    sources = world.constellation.sources

    async def receive(arrived: Arrivals) -> None:
        if variant == "early":
            await sources.receive(account.row.id, replace(arrived, events=()))
            await trio.sleep(0.2)
        await sources.receive(account.row.id, arrived)

    account: SourceAccount
    while True:
        kind, account = await sources.account("phone")
        try:
            await account.call(kind.listen, receive)
        except PatternError:
            await trio.sleep(0.02)


async def live(kind: str, path: Path, url: str, ports: str, variant: str, chats: int) -> None:
    """Serve until killed."""
    base_url, allowed = f"{url}{PATHS[kind]}", tuple(map(int, ports.split(",")))
    secrets = {name: SecretSource(value=Secret(value)) for name, value in TOKENS[kind].items()}
    reach = settings(ports=allowed, secrets=secrets, services=(base_url,))
    is_new = not await trio.Path(path).exists()
    options: dict[str, Any] = {"path": path, "sources": reach, "clock": SystemClock(), "otherwise": repeats}
    async with running(**options) as world:
        if is_new:
            await world.agent()
            config = {name: name for name in secrets} | {"base_url": base_url}
            await world.constellation.sources.create(name="phone", kind=kind, config=config, agent="ada")
        for person in range(1, chats + 1):
            native = f"{PEOPLE[kind]}{person}"
            await world.constellation.channels.decide("phone", native, PersonStatus.ALLOWED, by=USER)
        await asks(world, variant)


if __name__ == "__main__":
    kind_, path_, url_, ports_, variant_, chats_ = sys.argv[1:]
    trio.run(live, kind_, Path(path_), url_, ports_, variant_, int(chats_))
