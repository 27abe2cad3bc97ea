"""What comes back from an address has bounds, and the keys go nowhere else."""

from __future__ import annotations

import httpx2
import pytest

from pattern_core.mcp_servers.settings import McpSettings, Streamable
from pattern_core.mcp_servers.streamable import ANSWER_BYTES_MAX, http_client
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire import Play, events, serve_wire
from tests.pattern_core.mcp_servers.rig import owned

# What is left in the middle leaves the HTTP library's generators to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")

LONG = Play(chunks=(b"x" * 1_000_000,) * 9, headers={"content-type": "application/json"})
PACKED = Play(chunks=(b"x",), headers={"content-type": "application/json", "content-encoding": "gzip"})


def at(url: str) -> McpSettings:
    return McpSettings(reach=Streamable(url=url, headers={"X-Key": Secret("sesame")}), protocol="legacy")


async def test_a_document_has_a_bound_and_a_stream_of_events_has_none() -> None:
    short, flow = Play(chunks=(b"short",)), events("y" * 1000)
    async with serve_wire([short, flow, LONG, PACKED]) as server:
        settings = at(server.url)
        assert isinstance(settings.reach, Streamable)
        async with http_client(settings.reach, settings) as client:
            assert (await client.post(server.url)).text == "short"
            assert "yyy" in (await client.post(server.url)).text
            with pytest.raises(httpx2.ReadError, match=f"longer than {ANSWER_BYTES_MAX} bytes"):
                await client.post(server.url)
            with pytest.raises(httpx2.ReadError, match="packed"):
                await client.post(server.url)
        assert {request.headers["x-key"] for request in server.requests} == {"sesame"}
        assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (LONG, "longer than"),
        (Play(chunks=(b"{}",), status=500, headers={"content-type": "text/plain"}), "error response"),
        (Play(status=401), "does not accept the key that it was sent (HTTP status 401)"),
        (Play(status=403), "HTTP status 403"),
        (Play(status=302, headers={"location": "http://127.0.0.1:9/elsewhere"}), "Redirect to http://127.0.0.1:9"),
        (Play(chunks=(b"<html>",), headers={"content-type": "text/html"}), "text/html"),
    ],
)
async def test_an_address_that_is_no_mcp_server(play: Play, words: str) -> None:
    async with serve_wire(otherwise=play) as server, owned({"x": at(server.url)}) as it:
        told = await it.servers.tried("x")
    assert told.state == "failed"
    assert words in str(told.last_error)
    assert "sesame" not in str(told.last_error)


async def test_an_address_that_never_answers_is_given_up() -> None:
    async with serve_wire(otherwise=Play(never_answers=True)) as server:
        settings = McpSettings(reach=Streamable(url=server.url), start_timeout_s=0.3)
        async with owned({"x": settings}) as it:
            assert (await it.servers.tried("x")).last_error == "it did not start within 0.3 s"
