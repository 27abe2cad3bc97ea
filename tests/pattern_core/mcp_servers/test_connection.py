"""Servers made with the official library, in both of its protocols, over both transports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.mcp_servers.settings import McpSettings, Protocol, Stdio, Streamable
from pattern_core.models.providers.settings import Secret
from tests.pattern_core.mcp_servers.library_server import Library, served
from tests.pattern_core.mcp_servers.rig import Owned, owned

pytestmark = [
    # The library leaves an answer's stream when it has read the answer, and its generators to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_over_http(protocol: Protocol) -> None:
    library = Library()
    async with served(library) as url, owned({"lib": over_http(url, protocol)}) as it:
        assert await it.call("lib__add", a=1, b=2) == "3"
        with pytest.raises(InvalidInput, match="'b' is a required property"):
            await it.call("lib__add", a=1)
        await _call_and_leave(it, library.begun.is_set)
        await library.cancelled.wait()
        assert await it.call("lib__grow") == "grown"
        while "lib__plus" not in it.registry.names:
            await trio.sleep(0.01)
        assert await it.call("lib__plus", a=2, b=2) == "4"
    assert library.keys == {"Bearer sesame"}


async def test_over_stdio() -> None:
    environment = {"PATH": Secret(os.environ["PATH"]), "PYTHONPATH": Secret(str(ROOT))}
    program = Path(__file__).with_name("library_server.py")
    reach = Stdio(command=sys.executable, args=(str(program),), environment=environment, cwd=ROOT)
    async with owned({"lib": McpSettings(reach=reach)}) as it:
        assert await it.call("lib__add", a=1, b=2) == "3"
        assert await it.call("lib__grow") == "grown"
        while "lib__plus" not in it.registry.names:
            await trio.sleep(0.01)


async def test_an_address_where_nobody_is() -> None:
    async with served(Library()) as url:
        pass
    async with owned({"lib": over_http(url, "auto")}) as it:
        told = await it.servers.tried("lib")
    assert (told.state, told.tools) == ("failed", None)
    assert "connect" in str(told.last_error).lower()
