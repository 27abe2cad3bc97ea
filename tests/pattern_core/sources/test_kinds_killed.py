"""Sources that compare what there is with what they knew, killed with SIGKILL at random times: each event comes once.

A command's lines and messages of IRC have such tests in `test_process.py` and `test_irc.py`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest
import trio

from pattern_core.testing.channels import FeedServer
from pattern_core.testing.jetstream_server import JetstreamServer
from pattern_db.connection import open_connection
from pattern_db.tables import sources
from tests.pattern_core.sources.test_calendar import calendar, entry
from tests.sources import ROOT

SHOWN = {"calendar": r"New: (m\d+-\d+)", "mcp": r"(m\d+-\d+) was added", "jetstream": r"\b(m\d+-\d+)"}
FAR_H = 24 * 365 * 50  # from the clock's beginning: nothing begins while the test runs
Shows = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def served(kind: str, folder: Path) -> AsyncIterator[tuple[str, Shows]]:
    """Where a source of this kind looks, and what has so many things be there."""
    if kind == "calendar":
        async with FeedServer(calendar()) as server:

            async def show(count: int) -> None:
                server.body = calendar(*(entry(f"m1-{at}", FAR_H) for at in range(count)))

            yield server.url, show
    elif kind == "jetstream":
        async with JetstreamServer() as sky:
            sky.repeats = sky.reorders = True

            async def write_post(count: int) -> None:
                sky.drops += count % 9 == 8
                sky.says(f"m1-{count - 1}")

            yield f"{sky.url} {sky.api.url}", write_post
    else:

        async def write(count: int) -> None:
            new = folder / "new"
            new.write_text(json.dumps({f"note:///m1-{at}": "text" for at in range(count)} | {"note:///other": ""}))
            new.rename(folder / "log.json")

        await write(0)
        yield str(folder / "log"), write


async def killed(kind: str, folder: Path, *, events: int, kills: int, variant: str) -> Counter[str]:
    """Have so many things appear, kill the process with the source so often; return how often the agent saw each."""
    chance, path = random.Random(1), folder / "pattern.db"
    async with served(kind, folder) as (place, show):
        command = [sys.executable, "-m", "tests.pattern_core.sources.kinds_worker", str(path), kind, place, variant]
        shown = 0
        for life in range(kills + 1):
            async with trio.open_nursery() as nursery:
                process = await nursery.start(partial(trio.run_process, command, check=False, cwd=ROOT))
                with trio.move_on_after(60):
                    while not _looked(path):
                        await trio.sleep(0.02)
                    while shown < events * (life + 1) // (kills + 1):
                        shown += 1
                        await show(shown)
                        await trio.sleep(0.05)
                    if life < kills:
                        await trio.sleep(chance.uniform(0, 1.0))
                    with trio.move_on_after(20 if life == kills and variant == "sound" else 5 * (life == kills)):
                        while len(_seen(path, kind)) < events:
                            await trio.sleep(0.05)
                process.kill()
    return _seen(path, kind)


def _looked(path: Path) -> bool:
    """Whether the source looked once, and stored that."""
    if not path.exists():
        return False
    with closing(open_connection(path, readonly=True)) as connection:
        return any(one.sync_cursor for one in sources.list_all(connection))


def _seen(path: Path, kind: str) -> Counter[str]:
    with closing(open_connection(path, readonly=True)) as connection:
        said = [text for (text,) in connection.execute("SELECT content FROM messages WHERE role = 'user'")]
    return Counter(name for text in said for name in re.findall(SHOWN[kind], text))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHOWN)
async def test_a_hundred_events_through_kills_come_once(kind: str, tmp_path: Path) -> None:
    found = await killed(kind, tmp_path, events=100, kills=4, variant="sound")
    assert found == Counter(f"m1-{at}" for at in range(100))


@pytest.mark.slow
async def test_a_source_that_stores_its_place_early_is_caught(tmp_path: Path) -> None:
    found = await killed("mcp", tmp_path, events=40, kills=4, variant="early")
    assert found != Counter(f"m1-{at}" for at in range(40))
