"""Sources and channels of all kinds in a process that is killed with SIGKILL at random times, while their services
repeat, reorder and break off.

Every event is in one message exactly, those of a chat in their order; every answer is in its own chat, and one that is
there twice was in doubt. A command's lines have such a test in `test_process.py`. The long run, of all kinds or some:
`python -m tests.pattern_core.sources.test_kinds_killed --events 10000 --kills 200 --seed 5 [KIND…]`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from subprocess import PIPE

import pytest
import trio
import trio.lowlevel

from pattern_db.connection import Connection, open_connection
from tests.pattern_core.sources.services import SERVICES, Service
from tests.pattern_core.sources.worker import numbers
from tests.sources import ROOT

LIFE_S = (0.1, 1.5)  # how long a process lives after its start
PATIENCE_S = 60.0  # without anything new; what was in doubt twice is left to a person
LOOK_S = 0.05
UNPLACED = ("irc", "jetstream", "rss")  # a place that is stored early loses nothing: what is recent comes again
WAITING_MAX = 200  # deliveries of a source, so that kills come in the middle of all


@dataclass
class Outcome:
    """What is wrong with a kind after a run, in words, and how many answers were sent twice or are in doubt."""

    wrong: list[str] = field(default_factory=list)
    twice: int = 0
    doubtful: int = 0
    ended_s: float = 0.0


@dataclass
class Followed:
    """A source that is followed from outside, by its service and by what is stored."""

    kind: str
    service: Service
    path: Path
    events: int
    sent: int = 0

    @cached_property
    def connection(self) -> Connection:
        """What is stored, as it is now."""
        return open_connection(self.path, readonly=True)

    def chat_of(self, at: int) -> int:
        """The chat of an event, by its place among all."""
        return at // self.service.burst % self.service.chats + 1

    def closes(self) -> None:
        """Let go of what is stored."""
        if "connection" in vars(self):
            self.connection.close()

    @property
    def has_begun(self) -> bool:
        """Whether what comes from now on is not old."""
        stored = "SELECT count(*) FROM data_sources WHERE sync_cursor IS NOT NULL"
        begun = self.service.has_begun
        return bool(self._count(stored)) if begun is None else begun

    @property
    def stored(self) -> int:
        """How many events are stored."""
        return self._count("SELECT count(*) FROM source_seen")

    @property
    def place(self) -> str:
        """The place that is stored."""
        stored: str = self.connection.execute("SELECT coalesce(sync_cursor, '') FROM data_sources").get
        return stored

    @property
    def chats(self) -> int:
        """How many chats are known."""
        return self._count("SELECT count(*) FROM source_chat")

    @property
    def waiting(self) -> int:
        """How many deliveries wait."""
        return self._count("SELECT count(*) FROM outbox WHERE status = 'pending'")

    def _count(self, query: str) -> int:
        count: int = self.connection.execute(query).get if self.path.exists() else 0
        return count

    async def stores(self, count: int, patience_s: float) -> None:
        """Wait until so many events are stored."""
        with trio.move_on_after(patience_s):
            while self.stored < count or self.waiting >= WAITING_MAX:
                await trio.sleep(LOOK_S)

    async def feed(self, share: int, patience_s: float) -> None:
        """Have events happen until there are so many, or those that must be stored before are not."""
        counts = Counter(self.chat_of(at) for at in range(self.sent))
        while self.sent < share:
            with trio.move_on_after(patience_s) as scope:
                while self.sent >= self.service.window and self.sent - self.stored >= self.service.window:
                    await trio.sleep(LOOK_S / 2)
            if scope.cancelled_caught:
                return
            chat = self.chat_of(self.sent)
            await self.service.says(chat, f"m{chat}-{counts[chat]}")
            counts[chat] += 1
            self.sent += 1
            await trio.lowlevel.checkpoint()

    def judge(self) -> Outcome:
        """Return what is wrong with what a run left, and with what was sent."""
        found, asked = Outcome(), defaultdict[int, list[str]](list)
        counts = Counter(self.chat_of(at) for at in range(self.events))
        wanted = {chat: [f"m{chat}-{at}" for at in range(count)] for chat, count in counts.items()}
        for (text,) in self.connection.execute("SELECT content FROM messages WHERE role = 'user' ORDER BY position"):
            for number in numbers(self.kind, text):
                asked[int(number[1:].partition("-")[0])].append(number)
        left = "SELECT payload FROM outbox WHERE status = 'dead' AND unclear > 0"
        doubtful = {one for (payload,) in self.connection.execute(left) for one in numbers("", payload)}
        found.doubtful = len(doubtful)
        found.wrong += [f"chat {chat} has {asked[chat]}" for chat, its in wanted.items() if asked[chat] != its]
        if self.service.is_channel:
            found.wrong += self._judge_answers(found, wanted, doubtful)
        return found

    def _judge_answers(
        self, found: Outcome, wanted: Mapping[int, Sequence[str]], doubtful: Container[str]
    ) -> Iterator[str]:
        said = [(chat, number) for chat, text in self.service.sent for number in numbers("", text)]
        for (chat, number), count in Counter(said).items():
            found.twice += count == 2
            if number not in wanted.get(chat, ()) or count > 1 + (not self.service.is_exact):
                yield f"{number} was answered {count} times in chat {chat}"
        missing = {(chat, number) for chat, its in wanted.items() for number in its} - {*said}
        unsaid = [one for one in sorted(missing) if one[1] not in doubtful]
        yield from (f"{number} was not answered in chat {chat}" for chat, number in unsaid)

    async def ends(self, patience_s: float) -> Outcome:
        """Return what is wrong when all is right, or nothing new has come for so long."""
        deadline, before = trio.current_time() + patience_s, (-1, -1)
        while trio.current_time() < deadline:
            if (now := (self.stored, len(self.service.sent))) != before:
                before, deadline = now, trio.current_time() + patience_s
            if self.sent == self.events and not self.waiting and not self.judge().wrong:
                break
            await trio.sleep(LOOK_S * 4)
        return self.judge()


async def _reads(process: trio.Process, send: trio.MemorySendChannel[int]) -> None:
    """Pass on the numbers of copies; that one ended by itself is an error."""
    assert process.stdout is not None
    rest = b""
    async with send:
        async for piece in process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                await send.send(int(line))


async def _are_early(followed: Sequence[Followed], places: Mapping[str, str], patience_s: float) -> None:
    """Wait until all stored another place: what is there may not be stored yet."""
    with trio.move_on_after(patience_s):
        while any(one.place == places.get(one.kind) for one in followed):
            await trio.sleep(LOOK_S)


async def run(
    folder: Path,
    kinds: Sequence[str] = tuple(SERVICES),
    *,
    events: Mapping[str, int],
    kills: int,
    seed: int,
    variant: str = "sound",
    patience_s: float = PATIENCE_S,
) -> dict[str, Outcome]:
    """Have so many events happen at each kind's service, kill so often, and judge what is left, by kind."""
    chance, found, began = random.Random(seed), dict[str, Outcome](), trio.current_time()
    async with AsyncExitStack() as stack:
        followed = []
        for kind in kinds:
            place = folder / kind / "pattern.db"
            place.parent.mkdir()
            service = SERVICES[kind](place, events[kind])
            await stack.enter_async_context(service.opened())
            followed.append(Followed(kind, service, place, events[kind]))
            stack.callback(followed[-1].closes)
        names = {one.kind: "nameless" if variant == "early" and one.kind in UNPLACED else variant for one in followed}
        jobs = json.dumps([asdict(one.service.job(one.kind, names[one.kind])) for one in followed])
        command = [sys.executable, "-m", "tests.pattern_core.sources.worker", jobs]
        nursery = await stack.enter_async_context(trio.open_nursery())
        process = await nursery.start(partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, cwd=ROOT))
        send, pids = trio.open_memory_channel[int](1)
        nursery.start_soon(_reads, process, send)
        victim = await pids.receive()
        try:
            with trio.fail_after(PATIENCE_S):
                while not all(one.has_begun for one in followed):
                    await trio.sleep(LOOK_S)
            for life in range(1, kills + 1):
                async with trio.open_nursery() as feeding:
                    for one in followed:
                        feeding.start_soon(one.feed, one.events * life // (kills + 1), patience_s)
                    places = {one.kind: one.place for one in followed if one.kind not in (*UNPLACED, "webhook")}
                    await trio.sleep(chance.uniform(*LIFE_S))
                    if variant != "sound":
                        await _are_early(followed, places, patience_s)
                        feeding.cancel_scope.cancel()
                    for one in followed:  # what came in the life before was stored in this one
                        feeding.start_soon(one.stores, one.events * (life - 1) // (kills + 1), patience_s)
                os.kill(victim, signal.SIGKILL)
                for one in followed:
                    await one.service.disturbs(one.chats)
                victim = await pids.receive()
            async with trio.open_nursery() as ending:

                async def ends(one: Followed) -> None:
                    await one.feed(one.events, patience_s)
                    found[one.kind] = replace(await one.ends(patience_s), ended_s=trio.current_time() - began)

                for one in followed:
                    ending.start_soon(ends, one)
            os.kill(victim, signal.SIGKILL)
        finally:
            nursery.cancel_scope.cancel()
    return found


@pytest.mark.slow
async def test_events_of_all_kinds_through_kills_are_in_one_message_and_answered_in_their_chat(tmp_path: Path) -> None:
    events = {kind: 500 if kind == "telegram" else 100 for kind in SERVICES}
    found = await run(tmp_path, events=events, kills=10, seed=1)
    assert {kind: one.wrong for kind, one in found.items() if one.wrong} == {}
    assert {*found} == {*SERVICES}


@pytest.mark.slow
async def test_what_is_acknowledged_before_it_is_stored_is_missed(tmp_path: Path) -> None:
    events = dict.fromkeys(SERVICES, 20)
    found = await run(tmp_path, events=events, kills=2, seed=2, variant="early", patience_s=5)
    assert [kind for kind, one in found.items() if not one.wrong] == []


@pytest.mark.slow
async def test_an_answer_to_where_something_was_said_last_is_noticed(tmp_path: Path) -> None:
    channels = [kind for kind, service in SERVICES.items() if service.is_channel]
    events = dict.fromkeys(channels, 20)
    found = await run(tmp_path, channels, events=events, kills=0, seed=2, variant="guess", patience_s=3)
    assert [kind for kind, one in found.items() if "answered" not in str(one.wrong)] == []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *SERVICES], default=[], metavar="KIND")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chosen = options.kinds or [*SERVICES]
    work = partial(run, kinds=chosen, events=dict.fromkeys(chosen, options.events), kills=options.kills)
    with tempfile.TemporaryDirectory() as place:
        outcomes = trio.run(lambda: work(Path(place), seed=options.seed))
    sys.stdout.write(f"{options.events:,} events of each kind, {options.kills} kills\n")
    for kind_, outcome in sorted(outcomes.items()):
        counts = f"{len(outcome.wrong)} violations, {outcome.twice} sent twice, {outcome.doubtful} in doubt"
        counts += f", after {outcome.ended_s:.0f} s"
        sys.stdout.write(f"{kind_}: {counts}\n" + "".join(f"  {one}\n"[:500] for one in outcome.wrong[:20]))
    sys.exit(any(one.wrong for one in outcomes.values()))
