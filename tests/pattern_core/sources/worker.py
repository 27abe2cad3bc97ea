"""A process with a Telegram channel, to be killed: `python -m tests.pattern_core.sources.worker FILE URL VARIANT`.

Variants: `sound`; `early` acknowledges what came before it is stored; `guess` sends answers where the newest message
came from, and not to the address that is stored with the turn.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from pattern_core.errors import PatternError
from pattern_core.ids import SystemClock
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.sources.source import Outgoing, SourceAccount
from pattern_core.testing.model import says
from pattern_core.web.policy import SourceSettings
from pattern_db.enums import PersonStatus
from tests.pattern_core.sources.rig import settings
from tests.support import USER, Running, last_words, running

NUMBERED = re.compile(r"m\d+-\d+")  # `m{chat}-{number}`


def repeats(request: ModelRequest) -> ModelReply:
    """Answer with the numbers of the messages that are answered."""
    return says(" ".join(NUMBERED.findall(last_words(request))) or "nothing")


async def asks(world: Running, variant: str) -> None:
    """Ask again and again, as the server does."""
    kind, account = await world.constellation.sources.account("phone")
    newest = ""

    async def guesses(to: SourceAccount, _chat: str, said: Outgoing, send_id: str) -> None:
        await send(to, newest or "1", said, send_id)

    send = kind.send
    if variant == "guess":
        kind.send = guesses  # type: ignore[method-assign,assignment]  # broken
    while True:
        try:
            arrived = await account.call(kind.poll)
            newest = next((event.chat or "" for event in reversed(arrived.events)), newest)
            if variant == "early":
                account = replace(account, row=replace(account.row, sync_cursor=arrived.cursor))
                with trio.move_on_after(0.2):
                    await account.call(kind.poll)
            await world.constellation.sources.receive(account.row.id, arrived)
            account = (await world.constellation.sources.account("phone"))[1]
        except PatternError:
            await trio.sleep(0.02)


async def live(path: Path, url: str, variant: str, chats: int) -> None:
    """Serve until killed."""
    port = int(url.rpartition(":")[2])
    reach: SourceSettings = replace(settings(), ports=(port,), services=(url,))
    is_new = not await trio.Path(path).exists()
    options: dict[str, Any] = {"path": path, "sources": reach, "clock": SystemClock(), "otherwise": repeats}
    async with running(**options) as world:
        if is_new:
            await world.agent()
            config = {"token": "bot", "base_url": url}
            await world.constellation.sources.create(name="phone", kind="telegram", config=config, agent="ada")
        for person in range(1, chats + 1):
            await world.constellation.channels.decide("phone", str(person), PersonStatus.ALLOWED, by=USER)
        await asks(world, variant)


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
