"""The form of event streams, and that they hold nothing and nobody up."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
import trio
from starlette.types import Message

from pattern_core.errors import InvalidInput
from pattern_core.events import Event
from pattern_core.testing.model import ScriptedProvider, says
from pattern_db.columns import iso
from pattern_db.connection import open_connection
from pattern_db.tables import users
from pattern_server import accounts
from pattern_server.http import REAUTHENTICATE, STREAM, sse
from pattern_server.http.sse import EventStream, encode, place_of
from tests.pattern_server.place import Place, client_of, read_events
from tests.support import until


def test_an_event_is_one_frame() -> None:
    event = Event(seq=7, name="text.delta", turn_id="turn_1", data={"text": "é\n\nid: 9\r\n\u2028"}, created_at="now")
    frame = encode(event).decode()
    number, name, data, *end = frame.split("\n")
    assert (number, name, end) == ("id: 7", "event: text.delta", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {
        "seq": 7,
        "turn_id": "turn_1",
        "created_at": "now",
        "text": "é\n\nid: 9\r\n\u2028",
    }


@pytest.mark.parametrize(
    ("header", "after", "place"), [(None, None, 0), (None, 4, 4), ("7", 4, 7), ("", 4, 4), (" 7 ", None, 7)]
)
def test_where_to_begin(header: str | None, after: int | None, place: int) -> None:
    assert place_of(header, after) == place


@pytest.mark.parametrize("header", ["x", "-3", "1e3", "7.0", "0_1", "+7", "٣", "9" * 5_000])
def test_what_is_no_place(header: str) -> None:
    with pytest.raises(InvalidInput, match="Last-Event-ID"):
        place_of(header, None)


async def test_a_quiet_stream_shows_that_it_lives(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.05)
    await place.constellation()
    async with place.admin.stream("GET", "/constellations/home/events?after=0") as answer:
        lines = answer.aiter_lines()
        found = [await anext(lines) for _ in range(40)]
        assert place.parts.state.metrics._streams["sse"] == 1
    assert found[0] == "retry: 1000"
    assert ": still here" in found
    assert answer.headers["cache-control"] == "no-store"


async def test_a_reader_that_does_not_read_delays_no_turn(place: Place, scripted: ScriptedProvider) -> None:
    scripted._otherwise = says("".join(map(str, range(40_000))))
    await place.constellation()
    port = int(place.url.rsplit(":", 1)[1])
    secret = place.parts.local_token
    async with await trio.open_tcp_stream("127.0.0.1", port) as lazy:
        path = "/api/v1/constellations/home/events"
        await lazy.send_all(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
        with trio.fail_after(60):
            for number in range(20):
                assert (await place.say(f"Message {number}")).status_code == 200


async def test_a_long_turn_that_has_ended_is_read_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "READ_MAX", 3)  # what is read has as many, so it is read on
    await place.constellation()
    turn = (await place.say("Hello")).json()["turn_id"]
    events = await place.events(f"/constellations/home/turns/{turn}/events")
    ids = [event["id"] for event in events]
    assert len(ids) > 3 and ids == sorted(set(ids))
    assert events[-1]["event"] == "turn.completed"


async def test_a_stream_ends_with_its_constellation_and_is_resumed(place: Place) -> None:
    c = await place.constellation()
    await place.say("Hello")
    seen: list[int] = []
    begun = trio.Event()
    async with place.admin.stream("GET", "/constellations/home/events") as answer, trio.open_nursery() as nursery:

        async def stop() -> None:
            await begun.wait()
            async with place.parts.state.supervisor.aside(c):
                pass

        nursery.start_soon(stop)
        seen += [event["id"] for event in await read_events(answer, begun=begun)]  # to its end, which is a clean one
    assert seen == list(range(1, len(seen) + 1))
    metrics = place.parts.state.metrics
    assert (metrics._streams["sse"], metrics._dropped[("sse",)]) == (0, 1)
    await place.say("Hello again")
    resumed = await place.events("/constellations/home/events", after=seen[-1], most=3)
    assert all(event["id"] > seen[-1] for event in resumed)


@pytest.mark.parametrize("cut", range(3, 10))
async def test_what_is_resumed_lacks_only_pieces_of_stored_messages(place: Place, cut: int) -> None:
    """A stream that ends anywhere in a turn, and is resumed when only the file knows what happened."""
    c = await place.constellation()
    await place.say("Hello")
    live = await place.events("/constellations/home/events", after=0, most=9)
    assert [event["id"] for event in live] == [*range(1, 10)]
    seen = [event["id"] for event in await place.events("/constellations/home/events", after=0, most=cut)]
    async with place.parts.state.supervisor.aside(c):
        pass
    await place.say("Hello again")
    resumed = await place.events("/constellations/home/events", after=seen[-1], most=3)
    ids = [event["id"] for event in resumed]
    assert ids == sorted(set(ids))
    pieces = {event["id"] for event in live if event["event"] == "text.delta"}
    assert set(range(seen[-1] + 1, ids[-1])) - set(ids) <= pieces
    assert [event for event in live if event["id"] in ids] == [event for event in resumed if event["id"] <= 9]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ("UPDATE tokens SET revoked_at = created_at", 401),
        ("UPDATE tokens SET expires_at = created_at", 401),
        ("UPDATE users SET disabled_at = created_at WHERE username = 'admin-2'", 401),
        ("UPDATE users SET is_admin = 0", 404),
        ("UPDATE tokens SET scopes = '[]'", 403),
    ],
    ids=["revoked", "expired", "disabled", "demoted", "without scopes"],
)
async def test_a_stream_ends_with_its_callers_rights(
    place: Place, change: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another process ended it, in global.db."""
    monkeypatch.setattr(accounts, "RECHECK_S", 0.02)
    monkeypatch.setattr(sse, "RECHECK_S", 0.02)
    await place.constellation()
    ann = await place.client("admin-2", "admin")
    await place.parts.state.accounts.database.write(lambda each: each.execute("UPDATE users SET is_admin = 1"))
    begun = trio.Event()
    seen: list[dict[str, Any]] = []

    async def watch() -> None:
        async with ann.stream("GET", "/constellations/home/events?after=0") as answer:
            assert answer.status_code == 200
            seen.extend(await read_events(answer, begun=begun))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await begun.wait()
            other = open_connection(place.parts.state.config.data_dir / "global.db")
            other.execute(change)
            other.close()
    assert (await ann.get("/constellations/home/agents")).status_code == status
    before = len(seen)
    await place.say("Not for her")
    assert before == len(seen) > 0


async def test_nothing_is_sent_after_the_token_has_expired(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the stream looks for it again."""
    monkeypatch.setattr(sse, "RECHECK_S", 3600)
    monkeypatch.setattr(accounts, "RECHECK_S", 3600)
    await place.constellation()
    clock, known = place.parts.state.runtime.clock, place.parts.state.accounts
    (admin,) = await known.database.read(users.list_all)
    expires_ms = clock.now_ms() + 500
    _, brief = await known.create_token(admin, name="brief", scopes=["read"], expires_at=iso(expires_ms))
    begun = trio.Event()
    seen: list[dict[str, Any]] = []

    async def watch() -> None:
        async with (
            client_of(place.url, brief) as client,
            client.stream("GET", "/constellations/home/events?after=0") as answer,
        ):
            seen.extend(await read_events(answer, begun=begun))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await begun.wait()
            while clock.now_ms() <= expires_ms:
                await trio.sleep(0.01)
            await place.say("Not for this one")
    assert {event["event"] for event in seen} == {"agent.created", "memory.changed"}


def test_within_which_time_a_stream_ends() -> None:
    assert 2 * accounts.RECHECK_S <= 5


async def test_a_new_turn_may_end_before_its_stream_begins(place: Place) -> None:
    c = await place.constellation()
    use = partial(place.parts.state.supervisor.use, c)
    async with use() as constellation:
        seen = constellation.events.latest
    turn_id = (await place.say("Hello")).json()["turn_id"]
    sent: list[Message] = []
    again = partial(place.parts.state.accounts.authenticate, place.parts.local_token)
    scope: dict[str, Any] = {"type": "http", "state": {REAUTHENTICATE: again}}

    async def receive() -> Message:
        raise AssertionError("a stream asks for nothing")

    async def send(message: Message) -> None:
        sent.append(message)

    with trio.fail_after(60):
        await EventStream(use, after=seen, turn_id=turn_id, is_new=True)(scope, receive, send)
        assert not sent, "the framework returns first, else its frames would stay in memory"
        await scope["state"][STREAM](send, lambda: None)
    frames = b"".join(message.get("body", b"") for message in sent).decode()
    names = re.findall(r"^event: (.+)$", frames, re.MULTILINE)
    assert (names[0], names[-1]) == ("turn.queued", "turn.completed")
    assert not sent[-1]["more_body"]


async def test_a_place_before_the_events_that_are_kept_is_refused_with_the_one_to_begin_at(place: Place) -> None:
    c = await place.constellation()
    await place.say("Hello")
    async with place.parts.state.supervisor.use(c) as constellation:
        await constellation.prune(0)
    async with place.admin.stream("GET", "/constellations/home/events?after=1") as answer:
        assert answer.status_code == 410
        problem = json.loads(await answer.aread())
    assert problem["code"] == "events_pruned"
    assert problem["after"] > 1


async def test_readers_that_leave_leave_nothing_behind(place: Place) -> None:
    c = await place.constellation()
    for _ in range(3):
        await place.events("/constellations/home/events", most=1)
    slot = place.parts.state.supervisor._slots[c]
    await until(lambda: not slot.users)
