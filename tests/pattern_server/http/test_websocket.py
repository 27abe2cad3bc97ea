"""WebSockets: the same answers and events as over HTTP, for a client by other authors."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pattern_core.testing.model import Answer, Paced, ScriptedProvider, says
from pattern_db.connection import open_connection
from pattern_server import accounts
from pattern_server.http import websocket
from tests.pattern_server.place import API, Place

PATIENCE_S = 60


class Line:
    """One connection, in threads: the client waits for the server, which runs in this one."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client

    async def tell(self, **message: Any) -> None:
        """Send a message."""
        await trio.to_thread.run_sync(self.client.send, json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        """The next message."""
        heard = await trio.to_thread.run_sync(partial(self.client.recv, PATIENCE_S))
        found: dict[str, Any] = json.loads(heard)
        return found

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> dict[str, Any]:
        """The answer to a request, where nothing else is said at the same time."""
        await self.tell(type="request", id=path, method=method, path=path, body=body, **more)
        answer = await self.hear()
        assert (answer["type"], answer["id"]) == ("answer", path)
        return answer

    async def closed(self) -> tuple[int, str]:
        """Hear everything else; the code and reason with which the server closes."""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                await self.hear()
        frame = caught.value.rcvd
        assert frame is not None
        return frame.code, frame.reason


@asynccontextmanager
async def line_of(place: Place, token: str | None = None, *, c: str = "home", **more: Any) -> AsyncIterator[Line]:
    """A connection as the administrator, or with another token."""
    url = f"{place.url.replace('http', 'ws')}{API}/constellations/{c}/ws"
    headers = {"Authorization": f"Bearer {token or place.parts.local_token}"}
    opening = partial(connect, url, **{"additional_headers": headers, "open_timeout": PATIENCE_S, **more})
    manager = await trio.to_thread.run_sync(opening)
    client = await trio.to_thread.run_sync(manager.__enter__)
    try:
        yield Line(client)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(manager.__exit__, None, None, None)


async def token_of(place: Place, *scopes: str) -> str:
    return (await place.client("ann", *scopes)).headers["authorization"].partition(" ")[2]


async def test_requests_and_events_share_a_connection(home: Place) -> None:
    async with line_of(home) as line:
        await line.tell(type="subscribe", id="all", after=0)
        assert await line.hear() == {"type": "subscribed", "id": "all", "after": 0}
        assert home.parts.state.metrics._streams["websocket"] == 1
        await line.tell(type="request", id=7, method="POST", path="agents/ada/messages", body={"content": "Hello"})
        heard = [await line.hear()]
        while heard[-1].get("event") != "turn.completed" or not any(one["type"] == "answer" for one in heard):
            heard.append(await line.hear())
    [answer] = [one for one in heard if one["type"] == "answer"]
    assert (answer["id"], answer["status"]) == (7, 202)
    assert answer["headers"]["location"].endswith(answer["body"]["turn_id"])
    events = [one for one in heard if one["type"] == "event"]
    assert {one["id"] for one in events} == {"all"}
    streamed = await home.events("/constellations/home/events", after=0, most=len(events))
    shown = [{"id": one["data"]["seq"], "event": one["event"], "data": one["data"]} for one in events]
    assert shown == streamed


async def test_a_request_has_the_answer_that_it_has_over_http(home: Place) -> None:
    await home.say("Hello")
    place = "/constellations/home/"
    async with line_of(home) as line:
        for method, path, body in [
            ("GET", "agents", None),
            ("GET", "agents/ada/messages?limit=1", None),
            ("GET", "agents/n%C3%B6body", None),
            ("GET", "agents/../../../healthz", None),
            ("GET", "nothing", None),
            ("GET", "ws", None),
            ("PUT", "agents", {}),
            ("POST", "agents/ada/messages", {"text": "?"}),
        ]:
            plain = await home.admin.request(method, place + path.replace("..", "%2E%2E"), json=body)
            answer = await line.ask(method, path, body)
            assert (answer["status"], answer["body"]) == (plain.status_code, plain.json())
        block = await line.ask("GET", "agents/ada/memory/human")
        changed = {"op": "append", "content": "likes tea"}
        old = {"if-match": '"0"'}
        stale = await line.ask("POST", "agents/ada/memory/human/edits", changed, headers=old)
        assert stale["status"] in (404, 405, 412), (block, stale)
        for path in ("events?after=0", "agents/ada/messages?accept=1"):
            assert (await line.ask("GET", path))["status"] == 422
        assert (await line.ask("DELETE", "agents/ada"))["status"] == 204


async def test_a_repeated_request_is_the_same_turn(home: Place) -> None:
    said, key = {"content": "Once"}, {"idempotency-key": "k", "prefer": "wait=60"}
    async with line_of(home) as line:
        first = await line.ask("POST", "agents/ada/messages", said, headers=key)
        again = await line.ask("POST", "agents/ada/messages", said, headers=key)
    assert first["body"] == again["body"]
    assert first["body"]["status"] == "completed"


async def test_what_is_followed(home: Place, scripted: ScriptedProvider) -> None:
    await home.admin.post("/constellations/home/agents", json={"name": "bob"})
    group = {"name": "both", "pattern_type": "round_robin", "members": [{"agent_id": "ada"}, {"agent_id": "bob"}]}
    made = await home.admin.post("/constellations/home/groups", json=group)
    assert made.status_code == 201, made.text
    ada = (await home.say("To ada")).json()["turn_id"]
    bob = (await home.say("To bob", where="home/agents/bob")).json()["turn_id"]
    both = (await home.say("To both", where="home/groups/both")).json()["turn_id"]
    async with line_of(home) as line:
        for id_, wanted in enumerate([{"turn": ada}, {"turn": both}]):
            await line.tell(type="subscribe", id=id_, after=0, **wanted)
            heard = [await line.hear()]
            while heard[-1]["type"] != "ended":
                heard.append(await line.hear())
            assert [one["event"] for one in heard[1:-1]][-1] == "turn.completed"
            assert heard[-2]["data"]["turn_id"] == wanted["turn"]
        for id_, wanted in enumerate([{"agent": "bob"}, {"group": "both"}], start=2):
            await line.tell(type="subscribe", id=id_, after=0, **wanted)
            events = [await line.hear()]
            while not (events[-1].get("event") == "turn.completed" and events[-1]["data"]["turn_id"] in (both, bob)):
                events.append(await line.hear())
            turns = {one["data"]["turn_id"] for one in events[1:]}
            assert ada not in turns
            assert (bob in turns) is ("agent" in wanted)
            await line.tell(type="unsubscribe", id=id_)
            while events[-1]["type"] != "ended":
                events.append(await line.hear())
            assert (both in {one["data"]["turn_id"] for one in events[1:-1]}) is ("group" in wanted)
        await line.tell(type="subscribe", id="new")
        latest = (await line.hear())["after"]
        await line.ask("GET", "agents")
        assert latest == (await home.events("/constellations/home/events", after=0, most=latest))[-1]["id"]


async def test_after_any_drop_a_client_continues_without_loss_or_repetition(
    home: Place, scripted: ScriptedProvider
) -> None:
    """Only pieces of answers may be missing, which are deleted when their message is stored."""
    scripted._otherwise = says("".join(map(str, range(2_000))))
    chance, seen = random.Random(5), list[dict[str, Any]]()
    goal = len([await home.say(f"Message {number}") for number in range(3)])

    async def talk() -> None:
        for number in range(5):
            await home.say(f"Later {number}")

    def ended() -> int:
        return sum(event["event"] == "turn.completed" for event in seen)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            while ended() < goal + 5:
                async with line_of(home) as line:
                    await line.tell(type="subscribe", id=1, after=seen[-1]["data"]["seq"] if seen else 0)
                    assert (await line.hear())["type"] == "subscribed"
                    for _ in range(chance.randrange(30)):
                        if ended() < goal + 5:
                            seen.append(await line.hear())
                    if chance.random() < 0.5:
                        line.client.socket.shutdown(socket.SHUT_RDWR)
    assert [event["data"]["seq"] for event in seen] == sorted({event["data"]["seq"] for event in seen})
    live = {event["data"]["seq"]: event["data"] for event in seen}
    for turn in (await home.admin.get("/constellations/home/turns")).json()["items"]:
        for event in await home.events(f"/constellations/home/turns/{turn['turn_id']}/events"):
            assert live[event["id"]] == event["data"]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("{", 400),
        ("[]", 422),
        ('{"id": 1}', 422),
        ('{"type": "request", "id": 1}', 422),
        ('{"type": "request", "id": 1, "method": "TRACE", "path": "agents"}', 422),
        ('{"type": "request", "id": 1, "method": "GET", "path": "agents", "headers": {"authorization": "x"}}', 422),
        ('{"type": "subscribe", "id": 1, "after": -1}', 422),
        ('{"type": "subscribe", "id": 1, "after": 1000000}', 422),
        ('{"type": "subscribe", "id": 1, "turn": "turn_x"}', 404),
        ('{"type": "subscribe", "id": 1, "agent": "nobody"}', 404),
        ('{"type": "unsubscribe", "id": 1}', 422),
        ("[" * 100_000, 400),
    ],
)
async def test_a_wrong_message_has_an_answer_and_ends_nothing(home: Place, message: str, status: int) -> None:
    async with line_of(home) as line:
        await trio.to_thread.run_sync(line.client.send, message)
        answer = await line.hear()
        assert answer["status"] == status
        assert answer["body"]["status"] == status
        assert answer["id"] == (1 if '"id": 1' in message else None)
        assert (await line.ask("GET", "agents"))["status"] == 200


async def test_who_may_connect(home: Place) -> None:
    ann, reader = await token_of(home), await token_of(home, "read")
    for token, c, status in [("wrong", "home", 401), (ann, "home", 404), (None, "nowhere", 404)]:
        with pytest.raises(InvalidStatus) as refused:
            async with line_of(home, token, c=c):
                raise AssertionError("it is open")
        assert refused.value.response.status_code == status
    own = await home.client("ann")
    await own.post("/constellations", json={"name": "hers"})
    await own.post("/constellations/hers/agents", json={"name": "ada"})
    async with line_of(home, reader, c="hers") as line:
        assert (await line.ask("POST", "agents/ada/messages", {"content": "Hello"}))["status"] == 403
    offered: dict[str, Any] = {"additional_headers": {}, "subprotocols": ["pattern", f"bearer.{ann}"]}
    async with line_of(home, c="hers", **offered) as line:
        assert line.client.subprotocol == "pattern"
        assert (await line.ask("POST", "agents/ada/messages", {"content": "Hello"}))["status"] == 202


async def test_it_is_closed_when_the_token_is_revoked_elsewhere(home: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "RECHECK_S", 0.02)
    monkeypatch.setattr(websocket, "RECHECK_S", 0.02)
    own = await home.client("ann", "write", "chat")
    await own.post("/constellations", json={"name": "hers"})
    async with line_of(home, await token_of(home), c="hers") as line:
        await line.ask("GET", "agents")
        other = open_connection(home.parts.state.config.data_dir / "global.db")
        other.execute("UPDATE tokens SET revoked_at = created_at")
        other.close()
        code, reason = await line.closed()
    assert code == 1008
    assert "revoked" in reason


async def test_bounds_of_a_connection(home: Place, scripted: ScriptedProvider) -> None:
    script: list[Answer] = [Paced(answer=says("Never."), between_s=1e9)]
    scripted._script = iter(script)
    async with line_of(home) as line:
        for number in range(websocket.SUBSCRIPTIONS_MAX):
            await line.tell(type="subscribe", id=number)
            assert (await line.hear())["type"] == "subscribed"
        await line.tell(type="subscribe", id="more")
        assert (await line.hear())["status"] == 429
        await line.tell(type="subscribe", id=0)
        assert (await line.hear())["status"] == 422
    async with line_of(home) as line:
        for number in range(websocket.REQUESTS_MAX + 1):
            wait = {"prefer": "wait=600"}
            path, body = "agents/ada/messages", {"content": f"{number}"}
            await line.tell(type="request", id=number, method="POST", path=path, headers=wait, body=body)
        answer = await line.hear()
        assert (answer["id"], answer["status"]) == (websocket.REQUESTS_MAX, 429)


@pytest.mark.parametrize(
    ("sent", "code"),
    [(b"bytes", 1003), ("x" * (5 << 20), 1009)],
)
async def test_what_ends_a_connection(home: Place, sent: str | bytes, code: int) -> None:
    async with line_of(home) as line:
        with suppress(ConnectionClosed):
            await trio.to_thread.run_sync(line.client.send, sent)
        assert (await line.closed())[0] == code


@pytest.mark.parametrize(
    "frame", [b"\x81\x05hello", b"\x81\x82\0\0\0\0\xff\xfe", b"\xf1\x80\0\0\0\0", b"\x88\x81\0\0\0\0\0"]
)
async def test_a_broken_frame_closes_it(home: Place, frame: bytes) -> None:
    async with line_of(home) as line:
        await trio.to_thread.run_sync(line.client.socket.sendall, frame)
        assert (await line.closed())[0] in (1002, 1007)
    assert (await home.admin.get("/constellations")).status_code == 200


async def test_a_reader_that_lags_is_closed_with_the_place_to_continue(
    home: Place, scripted: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "LAG_MAX", 20)
    scripted._otherwise = says("".join(map(str, range(100_000))))
    async with line_of(home, max_queue=1) as line:
        await line.tell(type="subscribe", id=1)
        first = (await line.hear())["after"]
        for number in range(20):
            assert (await home.say(f"Message {number}")).status_code == 200
        heard = [await line.hear()]
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                heard.append(await line.hear())
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1013
    last = heard[-1]["data"]["seq"]
    assert caught.value.rcvd.reason.endswith(f"after={last}")
    assert first < last
    assert home.parts.state.metrics._dropped == {("websocket",): 1}


async def test_a_subscription_ends_between_frames(home: Place, scripted: ScriptedProvider) -> None:
    """Also while the client reads nothing, so that a frame is half sent."""
    scripted._otherwise = says("".join(map(str, range(100_000))))
    async with line_of(home, max_queue=1) as line:
        await line.tell(type="subscribe", id=1)
        await line.hear()
        for number in range(20):
            assert (await home.say(f"Message {number}")).status_code == 200
        await line.tell(type="unsubscribe", id=1)
        while (await line.hear())["type"] != "ended":
            pass
        assert (await line.ask("GET", "agents"))["status"] == 200


async def test_a_silent_client_is_closed(home: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_AFTER_S", 0.05)
    monkeypatch.setattr(websocket, "SILENCE_MAX_S", 0.6)
    monkeypatch.setattr(websocket, "RECHECK_S", 0.02)
    async with line_of(home) as line:  # its library answers
        await trio.sleep(1.2)
        assert (await line.ask("GET", "agents"))["status"] == 200
    port = int(home.url.rsplit(":", 1)[1])
    async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
        head = (
            f"GET {API}/constellations/home/ws HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {home.parts.local_token}\r\n"
            "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        frame = b"\x89\x80\0\0\0\0"  # a ping behind the request, in the same bytes
        await silent.send_all(head.encode() + frame)
        received = b""
        with trio.fail_after(PATIENCE_S):
            async for data in silent:
                received += data
    assert received.startswith(b"HTTP/1.1 101 ")
    frames = received.partition(b"\r\n\r\n")[2]
    assert frames.startswith(b"\x8a\x00")
    assert frames.endswith(b"\x89\x00")


@pytest.mark.parametrize(
    "change", [{"upgrade": "h2c"}, {"connection": "close"}, {"sec-websocket-version": "8"}, {"sec-websocket-key": ""}]
)
async def test_other_requests_are_refused(home: Place, change: dict[str, str]) -> None:
    headers = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    answer = await home.admin.get("/constellations/home/ws", headers={**headers, **change})
    assert answer.status_code == 426
    assert answer.json()["code"] == "upgrade_required"
    assert (answer.headers["upgrade"], answer.headers["sec-websocket-version"]) == ("websocket", "13")
    assert (await home.admin.get("/constellations")).status_code == 200
