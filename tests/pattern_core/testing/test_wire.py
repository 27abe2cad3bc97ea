from __future__ import annotations

from contextlib import suppress

import httpx2
import pytest
import trio

from pattern_core.testing.wire import Play, WireServer, document

pytestmark = pytest.mark.filterwarnings("error")


async def test_it_plays_its_script_and_then_the_rest() -> None:
    async with (
        WireServer(
            [lambda request: document({"path": request.path}, status=503)], otherwise=Play(chunks=(b"more",))
        ) as server,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        first = await client.post(f"{server.url}/one", json={"q": "ż"})
        assert (first.status_code, first.json()) == (503, {"path": "/one"})
        assert [(await client.get(server.url)).text for _ in range(2)] == ["more", "more"]
        assert server.requests[0].json() == {"q": "ż"}
        assert [request.method for request in server.requests] == ["POST", "GET", "GET"]
        for exchange in server.exchanges:
            await exchange.finished.wait()
            assert not exchange.client_gone.is_set()


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
