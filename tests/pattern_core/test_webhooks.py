"""Webhooks: each wanted event reaches its address at least once, under one id, signed; nothing else is reached."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied, Unavailable
from pattern_core.models.providers.settings import Secret
from pattern_core.outbox import FIRST_WAIT_S
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import says
from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_core.web.policy import SecretSource, WebhookSettings
from pattern_core.webhooks import CURSOR_STEP, SECRET_PREFIX
from pattern_db.columns import unix_ms
from pattern_db.database import Database
from pattern_db.enums import DeliveryStatus
from tests.pattern_core.groups.rig import DyingMeters, Killed
from tests.support import START, Running, in_memory, rows, running, until

KEY = b"a key of thirty-two bytes, or so"
SECRET = SecretSource(value=Secret(SECRET_PREFIX + base64.b64encode(KEY).decode()))
TAKEN = document({}, status=204)
DAY_S = 24 * 3600


def settings(server: WireServer, **fields: Any) -> WebhookSettings:
    """Settings by which the server on loopback may be reached."""
    given = {"ports": (server.port,), "allow_private": True, "secrets": {"pager": SECRET}, **fields}
    return WebhookSettings(**given)


def signature(key: bytes, request: WireRequest) -> str:
    """The signature of a request, by RFC 2104 alone."""
    block = key.ljust(64, b"\0")
    inner, outer = bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)
    head = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
    digest = hashlib.sha256(outer + hashlib.sha256(inner + head + request.body).digest()).digest()
    return "v1," + base64.b64encode(digest).decode()


@dataclass
class Sending:
    """A running constellation with an agent, the server that webhooks lead to, and the wall clock."""

    world: Running
    server: WireServer
    clock: StoppedClock

    async def hook(self, *events: str, name: str = "pager") -> None:
        """Create a webhook for these events."""
        url = f"http://127.0.0.1:{self.server.port}/hook"
        await self.world.constellation.webhooks.create(name=name, url=url, secret="pager", events=events)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is due be sent."""
        self.clock.advance(round(seconds * 1000))
        self.world.constellation.outbox.changed()

    async def sent(self, count: int) -> list[WireRequest]:
        """Wait until so many requests came, and what they were about is stored."""
        await until(lambda: len(self.server.requests) >= count and self.world.constellation.is_idle)
        return self.server.requests

    async def found(self) -> list[tuple[str, int]]:
        """The deliveries, oldest first: status and attempts."""
        newest = await self.world.constellation.outbox.newest("webhook:*", 99)
        return [(one.status.value, one.attempts) for one in reversed(newest)]


@asynccontextmanager
async def sending(script: Sequence[Play] = (), **fields: Any) -> AsyncIterator[Sending]:
    clock = StoppedClock()
    async with (
        WireServer(script, otherwise=TAKEN) as server,
        running(otherwise=says("Yes?"), clock=clock, webhooks=settings(server, **fields)) as world,
    ):
        await world.agent()
        yield Sending(world, server, clock)


async def test_a_wanted_event_is_sent_signed_and_nothing_else_is() -> None:
    async with sending() as here:
        await here.hook("turn.failed", name="early")
        await here.world.say("before")
        await here.hook("turn.comp*", "turn.failed")
        turn = await here.world.say("hello")
        [request] = await here.sent(1)
        assert (request.method, request.path) == ("POST", "/hook")
        assert request.headers["content-type"] == "application/json"
        assert request.headers["webhook-timestamp"] == str(unix_ms(START) // 1000)
        assert request.headers["webhook-signature"] == signature(KEY, request)
        body = request.json()
        assert (body["type"], body["timestamp"]) == ("turn.completed", START)
        data = body["data"]
        assert isinstance(data, dict)
        assert (data["turn_id"], data["text"]) == (turn.id, "Yes?")
        assert await here.found() == [("delivered", 1)]
        assert await here.world.database.read(rows, "SELECT DISTINCT after FROM webhook") == [(data["seq"],)]


async def test_the_secret_may_be_a_file_and_change_and_is_nowhere_stored(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("plain words\n")
    async with sending(secrets={"pager": SecretSource(file=file)}) as here:
        await here.hook("turn.completed")
        await here.world.say("hello")
        await here.sent(1)
        file.write_text("other words")
        await here.world.say("hello again")
        first, second = await here.sent(2)
        assert first.headers["webhook-signature"] == signature(b"plain words", first)
        assert second.headers["webhook-signature"] == signature(b"other words", second)
        [[dump]] = await here.world.database.read(rows, "SELECT group_concat(quote(payload) || target) FROM outbox")
        assert "words" not in str(dump)
        file.unlink()
        assert "cannot be read" in str(await here.world.constellation.webhooks.test("pager"))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (document({}, status=500), "HTTP status 500"),
        (document({}, status=404), "HTTP status 404"),
        (Play(status=302, headers={"location": "/elsewhere"}), "redirected"),
        (Play(never_answers=True), "was not there within"),
        (Play(chunks=(b"taken",), stops_after=2, headers={"content-length": "5"}), "broke off the answer"),
    ],
    ids=["500", "404", "redirect", "time-out", "dropped after it was taken"],
)
async def test_it_is_tried_again_under_the_same_id(fault: Play, error: str) -> None:
    async with sending([fault, fault], timeout_s=1.0 if fault.never_answers else 15.0) as here:
        await here.hook("turn.completed")
        await here.world.say("hello")
        await here.sent(1)
        [waiting] = await here.world.constellation.outbox.newest("webhook:*", 9)
        assert (waiting.status, waiting.attempts) == (DeliveryStatus.PENDING, 1)
        assert error in str(waiting.last_error)
        await here.pass_time(FIRST_WAIT_S / 2)
        await here.sent(1)
        for count in (2, 3):
            await here.pass_time(FIRST_WAIT_S * 10)
            await here.sent(count)
        requests = here.server.requests
        assert len({(one.headers["webhook-id"], one.body) for one in requests}) == 1
        assert [one.headers["webhook-signature"] for one in requests] == [signature(KEY, one) for one in requests]
        assert await here.found() == [("delivered", 3)]


async def test_a_server_that_names_a_time_is_not_asked_before_and_holds_up_no_other() -> None:
    async with sending([document({}, status=429, headers={"retry-after": "3600"})]) as here:
        await here.hook("turn.completed")
        await here.world.say("hello")
        await here.sent(1)
        await here.pass_time(3599)
        await here.hook("turn.completed", name="other")
        await here.world.say("hello")
        # The other one's, and the first one's second event.
        assert [one.json()["type"] for one in await here.sent(3)] == ["turn.completed"] * 3
        assert sorted(await here.found()) == [("delivered", 1), ("delivered", 1), ("pending", 1)]
        await here.pass_time(2)
        requests = await here.sent(4)
        assert requests[3].body == requests[0].body


async def test_it_is_dead_after_a_day_and_sent_again_by_a_person() -> None:
    async with sending([document({}, status=500)] * 8) as here:
        await here.hook("turn.completed")
        await here.world.say("hello")
        for count in range(1, 9):
            await here.sent(count)
            await here.pass_time(DAY_S)
        assert await here.found() == [("dead", 8)]
        [row] = await here.world.constellation.outbox.newest("webhook:*", 9)
        await here.world.constellation.outbox.retry(row)
        assert await here.found() == [("delivered", 9)]
        assert len({one.headers["webhook-id"] for one in here.server.requests}) == 1


async def test_private_addresses_and_other_ports_are_refused() -> None:
    async with sending(allow_private=False, ports=(80,)) as here:
        webhooks, port = here.world.constellation.webhooks, here.server.port
        with pytest.raises(PermissionDenied, match="may not be used"):
            await webhooks.create(name="a", url=f"http://127.0.0.1:{port}/", secret="pager")
    async with sending(allow_private=False) as here:
        await here.hook("turn.completed")
        await here.world.say("hello")
        await until(lambda: here.world.constellation.is_idle)
        await trio.testing.wait_all_tasks_blocked()
        [row] = await here.world.constellation.outbox.newest("webhook:*", 9)
        assert "private network" in str(row.last_error)
        assert "private network" in str(await here.world.constellation.webhooks.test("pager"))
        assert here.server.connections == 0


async def test_what_cannot_work_is_refused() -> None:
    async with sending() as here:
        webhooks, url = here.world.constellation.webhooks, f"http://127.0.0.1:{here.server.port}/"
        refused: list[tuple[dict[str, Any], str]] = [
            ({"name": ""}, "name"),
            ({"events": ()}, "events"),
            ({"events": ("turn failed",)}, "events"),
            ({"secret": "none"}, r"\[webhooks.secrets.none\]"),
            ({"url": "ftp://example.org/"}, "http"),
        ]
        for wrong, words in refused:
            with pytest.raises(InvalidInput, match=words):
                await webhooks.create(**{"name": "a", "url": url, "secret": "pager", **wrong})
        await here.hook("turn.completed")
        with pytest.raises(Conflict, match="taken"):
            await here.hook("turn.completed")
        assert await webhooks.test("pager") is None
        assert here.server.requests[0].json()["type"] == "webhook.test"
        await webhooks.delete("pager")
        for gone in (webhooks.get, webhooks.delete, webhooks.test):
            with pytest.raises(NotFound):
                await gone("pager")
        assert await webhooks.all() == []


async def test_what_waits_for_a_webhook_goes_with_it() -> None:
    async with sending([document({}, status=500)]) as here:
        await here.hook("turn.completed")
        await here.world.say("hello")
        await here.sent(1)
        await here.world.constellation.webhooks.delete("pager")
        told = "SELECT name FROM event WHERE name GLOB 'webhook.*' ORDER BY seq"
        assert await here.world.database.read(rows, told) == [("webhook.created",), ("webhook.deleted",)]
        assert await here.found() == []
        await here.pass_time(DAY_S)
        await until(lambda: here.world.constellation.is_idle)
        assert len(here.server.requests) == 1


async def live(database: Database, server: WireServer, *, kill_at: int, seed: int) -> int:
    """Say two things to a constellation that may die after a commit, a while after the last one lived; its commits."""
    clock, meters = StoppedClock(unix_ms(START) + seed * 60_000), DyingMeters(kill_at)
    options: dict[str, Any] = {"clock": clock, "webhooks": settings(server), "meters": meters, "seed": seed}
    try:
        async with running(otherwise=says("Yes?"), database=database, **options) as world:
            for number in range(2):
                await world.wait(await world.submit(f"hello {number}", key=str(number)))
            await until(lambda: world.constellation.is_idle)
    except* (Killed, Unavailable):
        pass
    return meters.commits


@asynccontextmanager
async def wanted(server: WireServer) -> AsyncIterator[Database]:
    """A constellation with an agent, and a webhook for two events of each turn. At the end four of them have come, each
    under an id of its own, however often.
    """
    async with in_memory() as database, server:
        async with running(otherwise=says("Yes?"), database=database, webhooks=settings(server)) as world:
            await world.agent()
            await Sending(world, server, StoppedClock()).hook("turn.queued", "turn.completed")
        yield database
        await live(database, server, kill_at=0, seed=3)
        stored = await database.read(rows, "SELECT seq FROM event WHERE name IN ('turn.queued', 'turn.completed')")
        data = [one.json()["data"] for one in server.requests]
        assert sorted({(one["seq"],) for one in data if isinstance(one, dict)}) == sorted(stored)
        seen = {(one.headers["webhook-id"], one.body) for one in server.requests}
        assert len({identity for identity, _body in seen}) == len(seen) == len(stored) == 4


async def test_a_kill_after_any_commit_loses_nothing() -> None:
    kill_at = commits = 0
    while kill_at <= commits:
        async with wanted(server := WireServer(otherwise=TAKEN)) as database:
            commits = max(commits, await live(database, server, kill_at=kill_at, seed=2))
        kill_at += 1
    assert commits >= 8


@pytest.mark.parametrize("number", range(1, 5))
async def test_what_was_taken_by_a_receiver_and_not_noted_is_sent_again_under_the_same_id(number: int) -> None:
    life = trio.CancelScope()

    def take(_request: WireRequest) -> Play:
        if len(server.requests) == number:
            life.cancel()
        return TAKEN

    async with wanted(server := WireServer(otherwise=take)) as database:
        with life:
            await live(database, server, kill_at=0, seed=2)
    assert life.cancelled_caught
    ids = [one.headers["webhook-id"] for one in server.requests]
    assert ids.count(ids[number - 1]) == 2


async def test_the_cursor_moves_also_past_what_is_not_wanted() -> None:
    async with sending() as here:
        await here.hook("turn.failed")
        for _ in range(CURSOR_STEP // 5):
            await here.world.say("hello")
        await until(lambda: here.world.constellation.is_idle)
        [[after]] = await here.world.database.read(rows, "SELECT after FROM webhook")
        [[latest]] = await here.world.database.read(rows, "SELECT max(seq) FROM event")
        assert isinstance(after, int)
        assert isinstance(latest, int)
        assert 0 < latest - after <= CURSOR_STEP < latest
