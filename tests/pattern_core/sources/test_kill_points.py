"""A channel in a process that is killed with SIGKILL at random times, while its service repeats and reorders updates.

Every message is in one turn exactly, those of a chat in their order; every answer goes to its own chat, and is there;
one that is there twice was in doubt. The long run:
`python -m tests.pattern_core.sources.test_kill_points --events 10000 --kills 200`.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.testing.channels import TelegramServer
from pattern_db.connection import open_connection
from tests.pattern_core.sources.worker import NUMBERED
from tests.sources import ROOT

LIFE_S = (0.01, 1.5)  # how long a process lives after its first question to the service
START_S = 30.0  # until that
PATIENCE_S = 15.0  # for another answer, after the last kill: what was in doubt twice is left to a person
PER_CHAT = 10
CHATS = 5  # of a service that keeps a connection


@dataclass
class Outcome:
    """What is wrong after a run, in words, and how many answers were sent twice or are in doubt."""

    wrong: list[str] = field(default_factory=list)
    twice: int = 0
    doubtful: int = 0


async def run(
    folder: Path, *, events: int, kills: int, seed: int, variant: str = "sound", patience_s: float = PATIENCE_S
) -> Outcome:
    """Send so many messages, kill so often, and judge what is left."""
    chance, path = random.Random(seed), folder / "pattern.db"
    chats = max(2, events // PER_CHAT)
    async with TelegramServer() as server:
        server.reorders, server.repeats = True, events // 20
        command = [
            sys.executable,
            "-m",
            "tests.pattern_core.sources.worker",
            str(path),
            server.url,
            variant,
            str(chats),
        ]
        sent = 0
        for life in range(kills + 1):
            share = events * (life + 1) // (kills + 1)
            while sent < share:
                chat = sent % chats + 1
                server.says(f"m{chat}-{sent // chats}", author=chat)
                sent += 1
            async with trio.open_nursery() as nursery:
                process = await nursery.start(partial(trio.run_process, command, check=False, cwd=ROOT))
                with trio.move_on_after(START_S):
                    await server.arrived(len(server.exchanges) + 1)
                with trio.move_on_after(math.inf if life == kills else chance.uniform(*LIFE_S)) as scope:
                    before = -1
                    while not (life == kills and _answered(server) >= events):
                        if life == kills and len(server.sent) != before:
                            before, scope.deadline = len(server.sent), trio.current_time() + patience_s
                        await trio.sleep(0.05)
                process.kill()
        return judge(path, [(one["chat_id"], one["text"]) for one in server.sent], events, chats)


async def run_listening(
    folder: Path,
    kind: str,
    server: Any,
    *,
    events: int,
    kills: int,
    patience_s: float,
    variant: str = "sound",
    when_killed: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """As `run`, for a service that keeps a connection. After a kill, `when_killed` is awaited with their number."""
    chance = random.Random(1)
    program = ["-m", "tests.pattern_core.sources.listen_worker", kind, str(folder / "pattern.db"), server.url]
    command = [sys.executable, *program, ",".join(map(str, server.ports)), variant, str(CHATS)]
    for life in range(kills + 1):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, check=False, cwd=ROOT))
            count = len(server.begun)
            with trio.move_on_after(patience_s):
                while len(server.begun) == count:
                    await trio.sleep(0.02)
                for at in range(events * life // (kills + 1), events * (life + 1) // (kills + 1)):
                    server.says(f"m{at % CHATS + 1}-{at // CHATS}", author=at % CHATS + 1)
                    await trio.sleep(0.01)
                if life < kills:
                    await trio.sleep(chance.uniform(0, 0.5))
                else:
                    while _answered(server) < events:
                        await trio.sleep(0.05)
            process.kill()
        if when_killed is not None:
            await when_killed(life + 1)


def _answered(server: Any) -> int:
    return len({number for text in server.texts for number in NUMBERED.findall(text)})


def judge(path: Path, sent: Sequence[tuple[int, str]], events: int, chats: int) -> Outcome:
    """Return what is wrong with what a run left, and with what was sent: chats and texts."""
    found = Outcome()
    wanted = {
        chat: [f"m{chat}-{at}" for at in range(len(range(chat - 1, events, chats)))] for chat in range(1, chats + 1)
    }
    asked: dict[int, list[str]] = defaultdict(list)
    with closing(open_connection(path, readonly=True)) as connection:
        for (text,) in connection.execute("SELECT content FROM messages WHERE role = 'user' ORDER BY position"):
            for number in NUMBERED.findall(text):
                asked[int(number[1:].partition("-")[0])].append(number)
        found.doubtful = connection.execute("SELECT count(*) FROM outbox WHERE unclear > 0").get
    for chat, numbers in wanted.items():
        if asked[chat] != numbers:
            found.wrong.append(f"chat {chat} has {asked[chat]}")
    answers = Counter((chat, number) for chat, text in sent for number in NUMBERED.findall(text))
    for (chat, number), count in answers.items():
        found.twice += count == 2
        if number not in wanted[chat] or count > 2:
            found.wrong.append(f"{number} was answered {count} times in chat {chat}")
    missing = {(chat, number) for chat, numbers in wanted.items() for number in numbers} - answers.keys()
    found.wrong += [f"{number} was not answered in chat {chat}" for chat, number in sorted(missing)[found.doubtful :]]
    return found


@pytest.mark.slow
async def test_every_message_once_and_every_answer_in_its_chat_through_kills(tmp_path: Path) -> None:
    found = await run(tmp_path, events=500, kills=10, seed=1)
    assert found.wrong == []
    assert found.twice <= 10 * 8  # those that were being sent when the process was killed


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["early", "guess"])
async def test_a_channel_that_acknowledges_early_or_guesses_the_address_is_caught(variant: str, tmp_path: Path) -> None:
    found = await run(tmp_path, events=60, kills=4 if variant == "early" else 0, seed=2, variant=variant, patience_s=4)
    assert found.wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        outcome = trio.run(lambda: run(Path(place), events=options.events, kills=options.kills, seed=options.seed))
    words = (
        f"{options.events:,} messages, {options.kills} kills: {outcome.twice} sent twice, {outcome.doubtful} in doubt"
    )
    sys.stdout.write(f"{words}, {len(outcome.wrong)} violations\n" + "".join(f"{one}\n" for one in outcome.wrong[:20]))
