"""Servers made with the official library, in both of its protocols, over both transports.

What comes back from an address has bounds, and the keys go nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.mcp_servers import servers
from pattern_core.mcp_servers.connection import ANSWER_BYTES_MAX
from pattern_core.mcp_settings import McpSettings, Protocol, Stdio, Streamable
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire import Play, WireServer
from tests.pattern_core.mcp_servers.library_server import Library, served
from tests.pattern_core.mcp_servers.rig import PATIENCE_S, Owned, owned

# The library leaves an answer's stream when it has read the answer, and its generators to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
with_the_library = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its server may use what is deprecated
ROOT = Path(__file__).parents[3]
LONG = Play(chunks=(b"x" * 1_000_000,) * 9, headers={"content-type": "application/json"})
PACKED = Play(chunks=(b"x",), headers={"content-type": "application/json", "content-encoding": "gzip"})


def over_http(url: str, protocol: Protocol) -> McpSettings:
    reach = Streamable(url=url, headers={"Authorization": Secret("Bearer sesame")})
    return McpSettings(reach=reach, protocol=protocol, call_timeout_s=60)


async def _call_and_leave(it: Owned, is_begun: Callable[[], bool]) -> None:
    """Call the tool that waits, and leave once it does."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.call, "lib__wait")
        while not is_begun():
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


@with_the_library
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_over_http(protocol: Protocol) -> None:
    library = Library()
    async with served(library) as url, owned({"lib": over_http(url, protocol)}) as it:
        assert await it.call("lib__add", a=1, b=2) == "3"
        with pytest.raises(InvalidInput, match=r"(?s)the tool failed, as the MCP server lib says: .*Field required"):
            await it.call("lib__add", a=1)
        await _call_and_leave(it, library.begun.is_set)
        await library.cancelled.wait()
    assert library.keys == {"Bearer sesame"}


@with_the_library
async def test_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "READY_WAIT_S", PATIENCE_S)  # Python and the library start slowly on a busy machine
    environment = {"PATH": Secret(os.environ["PATH"]), "PYTHONPATH": Secret(str(ROOT))}
    program = Path(__file__).with_name("library_server.py")
    reach = Stdio(command=sys.executable, args=(str(program),), environment=environment, cwd=ROOT)
    async with owned({"lib": McpSettings(reach=reach)}) as it:
        assert await it.call("lib__add", a=1, b=2) == "3"


@with_the_library
async def test_an_address_without_a_server_or_without_an_answer() -> None:
    async with served(Library()) as url:
        pass
    async with WireServer(otherwise=Play(never_answers=True)) as silent:
        hanging = McpSettings(reach=Streamable(url=silent.url), start_timeout_s=0.3)
        async with owned({"lib": over_http(url, "auto"), "silent": hanging}) as it:
            server = await it.servers.tried("lib")
            assert (server.state, server.tools) == ("failed", None)
            assert "connect" in str(server.last_error).lower()
            assert (await it.servers.tried("silent")).last_error == "it did not start within 0.3 s"


def at(url: str) -> McpSettings:
    return McpSettings(reach=Streamable(url=url, headers={"X-Key": Secret("sesame")}), protocol="legacy")


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (LONG, f"the answer is longer than {ANSWER_BYTES_MAX} bytes"),
        (PACKED, "the answer is packed"),
        (Play(chunks=(b"{}",), status=500, headers={"content-type": "text/plain"}), "error response"),
        (Play(status=401), "does not accept the key that it was sent (HTTP status 401)"),
        (Play(status=403), "HTTP status 403"),
        (Play(status=302, headers={"location": "http://127.0.0.1:9/elsewhere"}), "Redirect to http://127.0.0.1:9"),
        (Play(chunks=(b"<html>",), headers={"content-type": "text/html"}), "text/html"),
    ],
)
async def test_an_address_that_is_no_mcp_server(play: Play, words: str) -> None:
    async with WireServer(otherwise=play) as server, owned({"x": at(server.url)}) as it:
        server_x = await it.servers.tried("x")
        assert server_x.state == "failed"
        assert {request.headers["x-key"] for request in server.requests} == {"sesame"}
        assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}
    assert words in str(server_x.last_error)
    assert "sesame" not in str(server_x.last_error)
