"""WebSocket connections: messages in pieces, pings, codes, and ends that no one announced."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, Ping, TextMessage

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied, Unavailable
from pattern_core.web.download import Downloader
from pattern_core.web.policy import WebPolicy
from pattern_core.web.websocket import LOST, TOO_BIG, WebSocket, WebSocketClosed, follow, json_object, open_websocket
from tests.pattern_core.web.certificate import CERTIFICATE
from tests.pattern_core.web.rig import Names
from tests.pattern_core.web.test_download import serve_tls

Handle = Callable[[WebSocket], Awaitable[None]]


@asynccontextmanager
async def serving(handle: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[tuple[WebPolicy, str]]:
    """A server on loopback; yields a policy that allows it, and its address."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    async def handles(stream: trio.SocketStream) -> None:
        async with stream:
            await handle(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, handles, listeners))
        yield WebPolicy(ports=(port,), allow_private=True), f"ws://127.0.0.1:{port}/where?v=1"
        nursery.cancel_scope.cancel()


def speaking(handle: Handle) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def handles(stream: trio.SocketStream) -> None:
        socket = WebSocket(stream, is_client=False, bytes_max=1000)
        assert await socket.accept() == "/where?v=1"
        with suppress(WebSocketClosed):
            await handle(socket)

    return handles


connect = partial(open_websocket, timeout_s=5.0, bytes_max=1000)


async def test_messages_go_both_ways_and_an_end_has_its_code() -> None:
    async def echo(socket: WebSocket) -> None:
        for _ in range(2):
            await socket.send(f"{await socket.receive()}!")
        await socket.close(4004, "no such token")
        await socket.receive()

    async with serving(speaking(echo)) as (policy, url), await connect(policy, url) as socket:
        for text in ("a", "ä" * 300):
            await socket.send(text)
            assert await socket.receive() == f"{text}!"
        with pytest.raises(WebSocketClosed, match="code 4004: no such token") as closed:
            await socket.receive()
        assert closed.value.code == 4004
        with pytest.raises(WebSocketClosed):
            await socket.send("too late")


async def test_pieces_bytes_and_pings_between_them_are_one_message() -> None:
    async def pieces(stream: trio.SocketStream) -> None:
        frames = WSConnection(ConnectionType.SERVER)
        plain = WebSocket(stream, is_client=False, bytes_max=1000)
        plain._frames = frames  # so that single frames can be sent over the same connection
        await plain.accept()
        for event in (
            TextMessage(data="one ", message_finished=False),
            Ping(payload=b"?"),
            TextMessage(data="two"),
            BytesMessage(data=b"\xff"),
        ):
            await stream.send_all(frames.send(event))
        for _ in range(2):
            await stream.receive_some()

    async with serving(pieces) as (policy, url), await connect(policy, url) as socket:
        assert [await socket.receive(), await socket.receive()] == ["one two", "\ufffd"]


async def test_what_is_too_long_or_ends_without_a_word_closes_the_connection() -> None:
    async def long(socket: WebSocket) -> None:
        await socket.send("x" * 1001)

    async def ends(_socket: WebSocket) -> None:
        pass

    async def nonsense(socket: WebSocket) -> None:
        await socket._stream.send_all(b"\xff\xff\xff")

    for handle, code in ((long, TOO_BIG), (ends, LOST), (nonsense, 1002)):
        async with serving(speaking(handle)) as (policy, url), await connect(policy, url) as socket:
            with pytest.raises(WebSocketClosed) as closed:
                await socket.receive()
            assert closed.value.code == code


async def test_a_connection_on_which_nothing_comes_is_at_its_end_and_pings_keep_it() -> None:
    async def answers_pings(socket: WebSocket) -> None:
        await socket.receive()

    async def pings(socket: WebSocket) -> None:
        for _ in range(10):
            await socket.ping()
            await trio.sleep(0.05)

    async with (
        serving(speaking(answers_pings)) as (policy, url),
        await connect(policy, url, silent_s=0.3) as socket,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(pings, socket)
        start = trio.current_time()
        with pytest.raises(WebSocketClosed, match=r"nothing came for 0\.3 s"):
            await socket.receive()
        assert trio.current_time() - start > 0.6


async def test_what_is_followed_is_stored_together_before_the_end_of_the_connection_is_raised() -> None:
    async def sends(socket: WebSocket) -> None:
        for text in ('{"n": 1}', "[]", "no", '{"n": 2}', '{"skip": 1}', '{"n": 3}'):
            await socket.send(text)
        await socket.close(4000)

    batches: list[list[object]] = []

    async def hear(found: Mapping[str, Any]) -> bool:
        return "skip" not in found

    async def store(batch: Sequence[Mapping[str, Any]]) -> None:
        batches.append([one.get("n") for one in batch])
        await trio.sleep(0.1)  # so that the others wait together

    async def fails(_batch: Sequence[Mapping[str, Any]]) -> None:
        raise Unavailable("the disk is full")

    async with serving(speaking(sends)) as (policy, url):
        async with await connect(policy, url) as socket:
            with pytest.raises(WebSocketClosed, match="4000"):
                await follow(socket, hear, store)
        assert [one for batch in batches for one in batch] == [1, None, None, 2, 3] and len(batches) == 2
        async with await connect(policy, url) as socket:
            with pytest.raises(Unavailable, match="disk"):
                await follow(socket, hear, fails)


async def test_a_server_that_does_not_speak_it_is_an_error_in_words() -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await trio.sleep_forever()

    async def page(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    async def gone(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    for handle, words in ((page, "refused a WebSocket"), (gone, "code 1006")):
        async with serving(handle) as (policy, url):
            with pytest.raises(Unavailable, match=words):
                await connect(policy, url)
    async with serving(silent) as (policy, url):
        with pytest.raises(Unavailable, match=r"within 0\.1 s"):
            await open_websocket(policy, url, timeout_s=0.1, bytes_max=10)


async def test_only_what_the_policy_allows_is_connected_to() -> None:
    async with serving(speaking(WebSocket.abort)) as (policy, url):
        with pytest.raises(PermissionDenied, match="private network"):
            await connect(WebPolicy(ports=policy.ports), url)
        with pytest.raises(PermissionDenied, match="port"):
            await connect(WebPolicy(allow_private=True), url)
        with pytest.raises(InvalidInput, match="http"):
            await connect(policy, "ftp://127.0.0.1/")
    with pytest.raises(Unavailable, match="accepts no connection"):
        await connect(policy, url)


async def test_a_connection_to_an_address_has_the_certificate_of_the_name(tmp_path: Path) -> None:
    names: list[str | None] = []
    async with serve_tls(tmp_path, names) as port:
        policy = WebPolicy(ports=(port,), allow_private=True)
        looked = Names({"nowhere.example": [[]]})
        trusting = Downloader(policy, resolve=looked, tls=ssl.create_default_context(cadata=CERTIFICATE))
        stream, target = await trusting.connect(f"https://example.org:{port}/")
        async with stream:
            await stream.send_all(b"x")
            assert (await stream.receive_some()).endswith(b"tea")
        assert (names, looked.asked, target.host) == (["example.org"], ["example.org"], "example.org")
        with pytest.raises(Unavailable, match=r"certificate is not valid for 'other\.example'"):
            await trusting.connect(f"https://other.example:{port}/")
        with pytest.raises(NotFound, match="no host"):
            await trusting.connect(f"https://nowhere.example:{port}/")


def test_what_is_no_object_is_an_empty_one() -> None:
    assert json_object('{"a": 1}') == {"a": 1}
    assert [json_object(text) for text in ("[1]", "no", "[" * 100_000, '{"a":')] == [{}] * 4
