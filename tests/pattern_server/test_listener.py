"""The listener over real sockets: serving, keep-alive, broken clients, and an end that always comes."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from pattern_server import listener
from pattern_server.http import ABORT, GONE, KEEP
from pattern_server.listener import ListenFailed, listen

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})


@asynccontextmanager
async def listening(app: Callable[..., Any], **options: Any) -> AsyncIterator[tuple[str, trio.Event]]:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(listen, app, host="127.0.0.1", port=0, stop=stop, **options)), stop
        stop.set()


async def connect(url: str, sent: bytes = b"") -> trio.SocketStream:
    """A connection on which this was sent."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rsplit(":", 1)[1]))
    await stream.send_all(sent)
    return stream


async def test_serves_on_a_free_port_without_saying_what_it_is() -> None:
    async with listening(hello) as (url, _stop), httpx2.AsyncClient(timeout=60) as client:
        for _ in range(3):
            answer = await client.get(url)
            assert answer.text == "hello"
            assert "server" not in answer.headers


async def test_idle_connections_do_not_delay_the_end() -> None:
    async with httpx2.AsyncClient(timeout=60) as client:
        async with listening(hello, grace_s=120) as (url, stop):
            await client.get(url)
            began = trio.current_time()
            stop.set()
        assert trio.current_time() - began < 60


async def test_requests_under_way_are_finished() -> None:
    async with httpx2.AsyncClient(timeout=60) as client, trio.open_nursery() as nursery:
        answers: list[httpx2.Response] = []
        begun, answered = trio.Event(), trio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await trio.sleep(0.2)
            await hello(scope, receive, send)

        async def ask(url: str) -> None:
            answers.append(await client.get(url))
            answered.set()

        async with listening(slow, grace_s=120) as (url, stop):
            nursery.start_soon(ask, url)
            await begun.wait()
            stop.set()
        await answered.wait()
        assert [answer.text for answer in answers] == ["hello"]


async def test_a_client_that_does_not_read_cannot_hold_the_end() -> None:
    async with listening(endless, grace_s=0.2) as (url, stop):
        stream = await connect(url, ASK)
        await trio.sleep(0.1)
        began = trio.current_time()
        stop.set()
        async with stream:
            with trio.fail_after(60):
                with pytest.raises(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
                    raise trio.BrokenResourceError  # a clean end is as good
    assert trio.current_time() - began < 60


async def test_cancelling_ends_it_at_once() -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(partial(listen, endless, host="127.0.0.1", port=0, stop=trio.Event()))
            stream = await connect(url, ASK)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        await stream.aclose()


@pytest.mark.parametrize("reads_bytes", [0, 1], ids=["not at all", "a byte now and then"])
async def test_a_client_that_does_not_read_is_dropped_after_a_while(
    reads_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "WRITE_TIMEOUT_S", 0.1)
    ended = trio.Event()

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endless, scope, receive, send)
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()
        ended.set()

    async with listening(watched, grace_s=0.1) as (url, _stop), await connect(url, ASK) as stream:
        with trio.fail_after(60):
            while not ended.is_set():
                with trio.move_on_after(0.02):
                    await ended.wait()
                if reads_bytes:
                    with suppress(trio.BrokenResourceError):
                        await stream.receive_some(reads_bytes)


async def test_the_application_can_close_its_connection() -> None:
    async def abrupt(scope: Any, receive: Any, send: Any) -> None:
        scope["state"][ABORT]()

    async with listening(abrupt) as (url, _stop), httpx2.AsyncClient(timeout=60) as client:
        with pytest.raises(httpx2.TransportError):
            await client.get(url)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_broken_clients_break_only_their_connection(sent: bytes) -> None:
    async with listening(hello, grace_s=0.1) as (url, _stop):
        async with await connect(url, sent) as stream:
            with trio.move_on_after(0.2):
                try:
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
        async with httpx2.AsyncClient(timeout=60) as client:
            assert (await client.get(url)).text == "hello"


async def all_of(stream: trio.SocketStream) -> bytes:
    """What the server sends until it closes."""
    received = b""
    with trio.fail_after(60):
        while piece := await stream.receive_some():
            received += piece
    return received


async def test_http_2_is_not_spoken() -> None:
    window_of_nothing = b"\0\0\6\4\0\0\0\0\0\0\4\0\0\0\0"
    prior_knowledge = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + window_of_nothing
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAAAAAAIAAAAA\r\n\r\n"
    )
    async with listening(hello) as (url, _stop):
        async with await connect(url, prior_knowledge) as stream:
            assert (await all_of(stream)).startswith(b"HTTP/1.1 505 ")
        async with await connect(url, upgrade) as stream:
            answer = await all_of(stream)
            assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"hello")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHo",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab",
        ASK,
    ],
    ids=["idle", "in the headers", "in the body", "answered"],
)
async def test_what_a_client_closes_is_released_at_once(sent: bytes) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with listening(hello) as (url, _stop):
        before = descriptors()
        streams = [await connect(url, sent) for _ in range(20)]
        await trio.sleep(0.05)
        for stream in streams:
            await stream.aclose()
        with trio.fail_after(10):  # the engine's idle timeout is far longer
            while descriptors() > before:
                await trio.sleep(0.01)


async def test_connections_closed_before_they_are_accepted_start_no_task() -> None:
    class Count(trio.abc.Instrument):
        spawned = 0

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.spawned += 1

    async with listening(hello) as (url, _stop):
        address, count = ("127.0.0.1", int(url.rsplit(":", 1)[1])), Count()
        trio.lowlevel.add_instrument(count)
        for _ in range(100):  # nothing else runs meanwhile
            socket.create_connection(address).close()
        with socket.create_connection(address) as reset:  # closed with a reset, not with an end
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with socket.create_connection(address) as client:
            client.sendall(ASK)
            client.setblocking(False)
            await trio.lowlevel.wait_readable(client)
            assert client.recv(1_000).endswith(b"hello")
        trio.lowlevel.remove_instrument(count)
    assert count.spawned == 2, "the tasks of the one that asked"


async def test_a_request_whose_client_left_can_be_cancelled() -> None:
    begun, ended = trio.Event(), trio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        with scope["state"][GONE]:
            await trio.sleep(3600)
        ended.set()

    async with listening(slow) as (url, _stop):
        stream = await connect(url, ASK)
        await begun.wait()
        await stream.aclose()
        with trio.fail_after(60):
            await ended.wait()


async def test_a_connection_is_kept_where_there_was_no_body_to_read() -> None:
    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with listening(deaf) as (url, _stop), await connect(url) as stream:
        for _ in range(3):
            await stream.send_all(ASK)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 204 ")
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert (await all_of(stream)).startswith(b"HTTP/1.1 204 ")


async def test_headers_that_do_not_come_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "FIRST_TIMEOUT_S", 0.05)
    async with listening(hello) as (url, _stop), await connect(url, b"GET / HTTP/1.1\r\nHost: x\r\n") as stream:
        assert await all_of(stream) == b""


async def test_a_body_is_read_as_the_application_asks_for_it() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["more_body"]:
            body += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    expecting = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    async with listening(echo) as (url, _stop), await connect(url, expecting) as stream:
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        pipelined = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n"
        await stream.send_all(b"abc" + pipelined + b"HEAD / HTTP/1.0\r\n\r\n")
        first, second, third = (await all_of(stream)).split(b"HTTP/1.1 200 \r\n")[1:]
        assert b"\r\n3\r\nabc\r\n" in first and b"\r\n2\r\nde\r\n" in second
        assert third.endswith(b"\r\n\r\n")


async def test_an_application_that_says_less_than_it_announced_breaks_only_its_connection() -> None:
    async def short(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"50")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async with listening(short) as (url, _stop), httpx2.AsyncClient(timeout=60) as client:
        for _ in range(3):
            with pytest.raises(httpx2.TransportError):
                await client.get(url)


class Doorkeeper:
    """An application that answers at once, or with `known` in the path when `gate` is set, to a client it knows."""

    def __init__(self) -> None:
        self.gate = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "known" in scope["path"]:
            scope["state"][KEEP]()
            await self.gate.wait()
        await hello(scope, receive, send)


async def is_closed(stream: trio.SocketStream) -> bool:
    """Whether the server has closed the connection, or does within a moment."""
    with trio.move_on_after(0.1):
        try:
            return not await stream.receive_some()
        except trio.BrokenResourceError:
            return True
    return False


@pytest.mark.parametrize("bounds", [(3, 99), (99, 3)], ids=["all", "of one address"])
async def test_new_connections_replace_those_that_can_be_spared(bounds: tuple[int, int]) -> None:
    app = Doorkeeper()
    most, of_address = bounds
    async with (
        listening(app, connections_max=most, connections_per_address_max=of_address) as (url, _stop),
        AsyncExitStack() as open_ones,
    ):

        async def another(sent: bytes = b"") -> trio.SocketStream:
            stream = await open_ones.enter_async_context(await connect(url, sent))
            await trio.testing.wait_all_tasks_blocked(0.02)
            return stream

        known = ASK.replace(b"/ ", b"/known ")
        at_work = await another(known)
        silent = await another()
        asking = await another(ASK)
        assert (await asking.receive_some()).endswith(b"hello")
        last = await another(b"GET / HT")
        assert [await is_closed(each) for each in (at_work, silent, asking)] == [False, True, False]
        latest = await another()
        assert [await is_closed(each) for each in (at_work, asking, last)] == [False, True, False]

        app.gate.set()
        assert (await at_work.receive_some()).endswith(b"hello")
        for _ in range(5):
            latest = await another()
        assert not await is_closed(at_work), "a stranger never takes its place while there are strangers"
        app.gate = trio.Event()
        await at_work.send_all(known)
        await trio.testing.wait_all_tasks_blocked(0.02)
        both = [await another(known), await another(known)]
        assert await is_closed(latest)
        assert await is_closed(await another()), "all are at work for clients that are known"
        assert [await is_closed(each) for each in (at_work, *both)] == [False] * 3

        app.gate.set()
        for each in (at_work, *both):
            assert (await each.receive_some()).endswith(b"hello")
        await another()
        assert [await is_closed(each) for each in (at_work, *both)].count(True) == 1, "one of those at rest goes"


async def test_without_descriptors_others_are_closed_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with listening(hello) as (url, _stop), AsyncExitStack() as held:
        strangers = [await held.enter_async_context(await connect(url)) for _ in range(2)]
        clients = [held.enter_context(trio.socket.socket()) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked(0.02)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with suppress(OSError):
            while True:
                held.callback(os.close, os.dup(0))
        for client, stranger in zip(clients, strangers, strict=True):
            await client.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
            await client.send(ASK)
            with trio.fail_after(60):
                assert (await client.recv(1_000)).endswith(b"hello")
            assert await is_closed(stranger), "its descriptor is needed"
    (line,) = [record for record in caplog.records if record.name == "pattern.listener"]
    assert line.exc_info is None
    assert "ulimit -n" in str(line.args)


async def test_a_taken_port_is_an_error() -> None:
    async with listening(hello) as (url, _stop):
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(ListenFailed, match=r"in use.*--port"):
            await listen(hello, host="127.0.0.1", port=port, stop=trio.Event())
    with pytest.raises(ListenFailed):
        await listen(hello, host="no.such.host.invalid", port=0, stop=trio.Event())
