"""All servers of a constellation."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from pattern_core.errors import NotFound
from pattern_core.mcp_servers.servers import missing
from tests.pattern_core.mcp_servers.rig import owned, program


async def test_only_those_that_an_agent_uses_are_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"b": program(log), "a": program(log)}) as it:
        assert [(view.name, view.state, view.tools) for view in it.servers.views()] == [
            ("a", "resting", None),
            ("b", "resting", None),
        ]
        names = ["block", "b__echo", "nobody__*"]
        assert [server.name for server in it.servers.pending(names)] == ["b"]
        await it.servers.ready(names)
        assert it.servers.pending(names) == []
        assert [view.state for view in it.servers.views()] == ["resting", "ready"]
        assert it.registry.accepts("a__whatever")
        assert not it.registry.accepts("nobody__whatever")
        with pytest.raises(NotFound, match="there is no MCP server 'c'"):
            await it.servers.tried("c")


async def test_who_was_idle_longest_makes_room(tmp_path: Path) -> None:
    servers = {name: program(tmp_path / name) for name in "abc"}
    async with owned(servers, running_max=2) as it:
        for name in "abac":
            assert await it.call(f"{name}__echo", text=name) == name
        assert [view.state for view in it.servers.views()] == ["ready", "resting", "ready"]
        assert await it.call("b__echo", text="b") == "b"


async def test_names_that_a_server_does_not_offer(tmp_path: Path) -> None:
    async with owned({"a": program(tmp_path / "log", tools=("echo",))}) as it:
        names = ["a__echo", "a__ecko", "a__*", "b__x", "search"]
        assert missing(it.servers.views()[0], names) == []
        await it.servers.ready(names)
        assert missing(it.servers.views()[0], names) == ["a__ecko"]
        assert it.registry.names == ("a__echo",)


async def test_the_end_does_not_wait_for_those_that_are_about_to_start(tmp_path: Path) -> None:
    began = trio.current_time()
    async with owned({"a": program(tmp_path / "log", "slow", lazy=False)}):
        await trio.sleep(0.1)
    assert trio.current_time() - began < 20  # not the half minute that a start may take
