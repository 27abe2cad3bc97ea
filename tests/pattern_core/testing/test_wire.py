from __future__ import annotations

from contextlib import suppress

import httpx2
import pytest
import trio

from pattern_core.testing.wire import Entry, Play, WireServer, document, events

pytestmark = pytest.mark.filterwarnings("error")


async def test_plays_its_script_over_one_connection_then_the_rest() -> None:
    script: list[Entry] = [events({"a": 1}, "[DONE]"), lambda request: document({"path": request.path}, status=503)]
    async with (
        WireServer(script, otherwise=Play(chunks=(b"more",))) as server,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        first = await client.post(f"{server.url}/one", json={"q": "ż"})
        assert (first.text, first.headers["content-type"]) == (
            'data: {"a": 1}\n\ndata: [DONE]\n\n',
            "text/event-stream",
        )
        second = await client.get(f"{server.url}/two")
        assert (second.status_code, second.json()) == (503, {"path": "/two"})
        assert [(await client.get(server.url)).text for _ in range(2)] == ["more", "more"]
        assert server.requests[0].json() == {"q": "ż"}
        assert (server.requests[0].method, server.requests[1].method) == ("POST", "GET")
        assert server.connections == server.open_connections == 1
        for exchange in server.exchanges:
            await exchange.finished.wait()
            assert not exchange.client_gone.is_set()
        with pytest.raises(ValueError, match=r"JSON|Expecting"):
            server.requests[1].json()


async def test_stops_in_the_middle_of_the_body() -> None:
    async with (
        WireServer([Play(chunks=(b"abc", b"def"), stops_after=4)]) as server,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        received = b""
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream("GET", server.url) as response:
                async for piece in response.aiter_bytes():
                    received += piece
        assert received == b"abcd"


@pytest.mark.parametrize("play", [Play(never_answers=True), Play(chunks=(b"abc",), never_ends=True)])
async def test_tells_when_the_client_goes(play: Play) -> None:
    async with WireServer([play]) as server, httpx2.AsyncClient(timeout=60) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.get, server.url)
            exchange = await server.arrived()
            assert not exchange.client_gone.is_set()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await exchange.client_gone.wait()
        assert not exchange.finished.is_set()


async def test_closes_its_connections_at_the_end() -> None:
    async with WireServer([Play(never_answers=True)]) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await server.arrived()
    with trio.fail_after(60):
        with suppress(trio.BrokenResourceError):
            assert await stream.receive_some(1) == b""
    await stream.aclose()
    assert server.open_connections == 0


async def test_errors_of_the_context_come_out_bare() -> None:
    with pytest.raises(KeyError):
        async with WireServer():
            raise KeyError
    with trio.move_on_after(0.01) as scope:
        async with WireServer():
            await trio.sleep_forever()
    assert scope.cancelled_caught
