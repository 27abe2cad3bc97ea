"""The tour's checks after a kill see what they are there to see: a lost note, a doubled one, a gap in the stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pattern_server.cli import demo_kill
from pattern_server.cli.client import ServerEvent
from pattern_server.cli.demo import ClaimFailed, claim
from pattern_server.cli.demo_kill import DAYS, Watch
from pattern_server.cli.output import Output

NOTES = [demo_kill._note(day) for day in range(1, DAYS + 1)]


class Server:
    """Stands for the API of a server that holds `notes`, in its history and in memory, and `events`."""

    def __init__(self, notes: list[str], written: list[str], events: list[int]) -> None:
        self.notes, self.written, self.numbers = notes, written, events

    async def pages(self, _where: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": note} for note in reversed(self.notes)]

    async def get(self, _where: str) -> dict[str, str]:
        return {"content": "\n".join(self.written)}

    def events(self, _where: str, *, after: int) -> Server:
        assert after == 0
        self.left = iter(self.numbers)
        return self

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __aiter__(self) -> Server:
        return self

    async def __anext__(self) -> ServerEvent:
        for number in self.left:
            return event(number)
        raise StopAsyncIteration


def event(number: int) -> ServerEvent:
    return ServerEvent(seq=number, name="turn.completed", data={"turn_id": f"turn_{number}"})


async def check(server: Server, seen: list[int]) -> None:
    watch = Watch(seen=[event(number) for number in seen])
    await demo_kill._check(server, Output(), watch, claim)  # type: ignore[arg-type]  # a stand-in for the API


async def test_a_server_that_keeps_its_word() -> None:
    await check(Server(NOTES, NOTES, [1, 2, 3]), [1, 2, 3])


@pytest.mark.parametrize(
    ("notes", "written", "seen", "words"),
    [
        (NOTES[:-1], NOTES, [1, 2, 3], "stored once"),
        ([*NOTES, NOTES[0]], NOTES, [1, 2, 3], "stored once"),
        (NOTES[::-1], NOTES, [1, 2, 3], "in order"),
        (NOTES, NOTES[1:], [1, 2, 3], "exactly once"),
        (NOTES, [*NOTES, NOTES[3]], [1, 2, 3], "exactly once"),
        (NOTES, NOTES, [1, 3], "missed"),
        (NOTES, NOTES, [1, 2, 2, 3], "repeated nothing"),
    ],
)
async def test_a_server_that_does_not(notes: list[str], written: list[str], seen: list[int], words: str) -> None:
    with pytest.raises(ClaimFailed, match=words):
        await check(Server(notes, written, [1, 2, 3]), seen)


def test_a_watch_knows_where_it_is() -> None:
    assert Watch().latest == 0
    assert Watch(seen=[event(4), event(7)]).latest == 7
    assert Watch(seen=[event(4)]).ended() == ["turn_4"]


class Child:
    """Stands for a server's process: it takes every message, and notes how many it had when it was killed."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.kills: list[int] = []

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Child]:
        yield self

    async def call(self, _method: str, _where: str, *, headers: dict[str, str], **_given: object) -> dict[str, str]:
        self.keys.append(headers["Idempotency-Key"])
        return {"turn_id": f"turn_{self.keys[-1]}"}

    async def kill(self) -> None:
        self.kills.append(len(self.keys))


async def test_a_server_that_was_too_fast_is_killed_once_more() -> None:
    child, accepted = Child(), dict[int, str]()
    for count in (3, 6):
        await demo_kill._send_until_killed(child, accepted, count)  # type: ignore[arg-type]  # a stand-in
    assert child.keys == [f"demo-day-{day:02d}" for day in range(1, 8)], "nothing that was accepted is sent again"
    assert child.kills == [4, 7]
    assert sorted(accepted) == list(range(1, 8))
    assert max(demo_kill.KILLED_AFTER) < DAYS
