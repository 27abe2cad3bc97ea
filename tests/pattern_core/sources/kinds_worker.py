"""A process with a source, to be killed: `python -m tests.pattern_core.sources.kinds_worker FILE KIND PLACE VARIANT`.

KIND is `irc` (PLACE: the stand-in's port), `calendar` (its address), `jetstream` (both its addresses) or `mcp` (its
log). Variants: `sound`; `early` stores a place before what is there; `nameless` gives each event another name whenever
it comes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from pattern_core.errors import PatternError
from pattern_core.ids import SystemClock
from pattern_core.sources.source import Arrivals, SourceAccount
from pattern_core.web.policy import SourceSettings
from pattern_db.enums import PersonStatus
from tests.pattern_core.mcp_servers.rig import program
from tests.pattern_core.sources.irc_rig import config, reach
from tests.pattern_core.sources.rig import settings
from tests.pattern_core.sources.worker import repeats
from tests.support import USER, Running, running

CHATS = 5


def person(number: int) -> str:
    """Who writes in a chat, by the stand-in's names."""
    return f"p{number}!~p{number}@home.example.org"


def made(kind: str, place: str) -> tuple[Mapping[str, Any], SourceSettings]:
    """Return the configuration of a source and what it may reach."""
    match kind:
        case "irc":
            return config(int(place)), reach(int(place))
        case "calendar":
            return {"url": f"{place}/a.ics"}, settings(None, ports=(int(place.rpartition(":")[2]),))
        case "jetstream":
            server, api = place.split()
            ports = tuple(int(one.rpartition(":")[2]) for one in (server, api))
            return {"endpoint": server, "base_url": api, "authors": ["anna.example"]}, settings(None, ports=ports)
        case _:
            return {"server": "it"}, SourceSettings(mcp={"it": program(Path(place))})


async def asks(world: Running, variant: str) -> None:
    """Listen again and again, as the server does; without its pauses."""
    sources = world.constellation.sources

    async def receive(arrived: Arrivals) -> None:
        if variant == "early" and arrived.events:
            await sources.receive(account.row.id, replace(arrived, events=()))
            await trio.sleep(0.2)
        if variant == "nameless":
            events = [replace(one, native=world.constellation.storage.ids.new("x")) for one in arrived.events]
            arrived = replace(arrived, events=events)
        await sources.receive(account.row.id, arrived)

    account: SourceAccount
    while True:
        kind, account = await sources.account("phone")
        try:
            await account.call(kind.listen, receive)
        except PatternError:
            await trio.sleep(0.02)


async def live(path: Path, kind: str, place: str, variant: str) -> None:
    """Serve until killed."""
    is_new, (given, allowed) = not path.exists(), made(kind, place)
    options: dict[str, Any] = {"path": path, "sources": allowed, "clock": SystemClock(), "otherwise": repeats}
    async with running(**options) as world:
        if is_new:
            await world.agent()
            await world.constellation.sources.create(name="phone", kind=kind, config=given, agent="ada")
        for number in range(1, CHATS + 1) if kind == "irc" else ():
            await world.constellation.channels.decide("phone", person(number), PersonStatus.ALLOWED, by=USER)
        await asks(world, variant)


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
