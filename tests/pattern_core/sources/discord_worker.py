"""A process with a Discord channel, to be killed: `python -m tests.pattern_core.sources.discord_worker FILE URL PORTS
VARIANT CHATS`.

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
from pattern_core.testing.discord_server import REST, TOKEN
from pattern_core.web.policy import SecretSource
from pattern_db.enums import PersonStatus
from tests.pattern_core.sources.rig import settings
from tests.pattern_core.sources.worker import repeats
from tests.support import USER, Running, running


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
            await account.listen(kind, receive)
        except PatternError:
            await trio.sleep(0.02)


async def live(path: Path, url: str, ports: str, variant: str, chats: int) -> None:
    """Serve until killed."""
    allowed = tuple(map(int, ports.split(",")))
    reach = settings(ports=allowed, secrets={"bot": SecretSource(value=Secret(TOKEN))}, services=(f"{url}{REST}",))
    is_new = not await trio.Path(path).exists()
    options: dict[str, Any] = {"path": path, "sources": reach, "clock": SystemClock(), "otherwise": repeats}
    async with running(**options) as world:
        if is_new:
            await world.agent()
            config = {"token": "bot", "base_url": f"{url}{REST}"}
            await world.constellation.sources.create(name="phone", kind="discord", config=config, agent="ada")
        for person in range(1, chats + 1):
            await world.constellation.channels.decide("phone", str(person), PersonStatus.ALLOWED, by=USER)
        await asks(world, variant)


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
