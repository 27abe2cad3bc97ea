"""The MCP servers of one constellation: their tasks, how many run at once, and what is to be seen of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from pattern_core.errors import NotFound
from pattern_core.mcp_servers.server import McpServer, State
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.mcp_servers.tools import enables, server_of
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool

RUNNING_MAX = 16  # servers of one constellation at once; who is needed least makes room for the next
READY_WAIT_S = 20.0  # of a turn, for servers that are about to say what they offer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """A server as people see it. `tools` are those of its last list; None if there was none yet."""

    name: str
    place: str
    state: State
    last_error: str | None
    tools: Sequence[Tool] | None


class McpServers:
    """All servers that the operator configured, for one constellation; their tools are kept in its `registry`."""

    def __init__(
        self, settings: Mapping[str, McpSettings], registry: ToolRegistry, *, running_max: int = RUNNING_MAX
    ) -> None:
        self._servers = {name: McpServer(name, settings[name], registry, self._room) for name in sorted(settings)}
        self._free = trio.Semaphore(running_max)

    async def run(self) -> None:
        """Own the servers until cancelled; none of their processes survives this."""
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.run, name=f"MCP server {server.name}")

    def pending(self, enabled: Sequence[str]) -> list[McpServer]:
        """Return the servers that an agent with these names uses and that have not said yet what they offer."""
        return [server for server in self._servers.values() if server.tools is None and enables(enabled, server.name)]

    async def ready(self, enabled: Sequence[str]) -> None:
        """Wait until the tools are known of all servers that an agent with these names uses, as far as they can be.

        It starts those that nobody needed before. Who does not answer within `READY_WAIT_S` is left out.
        """
        waited_for = self.pending(enabled)
        if not waited_for:
            return
        with trio.move_on_after(READY_WAIT_S):
            async with trio.open_nursery() as nursery:
                for server in waited_for:
                    nursery.start_soon(server.known)

    def views(self) -> list[ServerView]:
        """All servers, by name."""
        return [_view(server) for server in self._servers.values()]

    async def tried(self, name: str) -> ServerView:
        """Start a server now, unless it runs, and tell how that went.

        Raises:
            NotFound: no server of this name is configured.
        """
        server = self._servers.get(name)
        if server is None:
            raise NotFound(f"there is no MCP server {name!r}; it needs a section [mcp.{name}] in the configuration")
        await server.tried()
        return _view(server)

    @asynccontextmanager
    async def _room(self, server: McpServer) -> AsyncIterator[None]:
        """While a server runs. If too many do, the one that has been idle longest is asked to rest."""
        idle = [other for other in self._servers.values() if other.is_idle and other is not server]
        if self._free.value == 0 and idle:
            min(idle, key=lambda other: other.last_used).rest()
        async with self._free:
            yield


def missing(view: ServerView, enabled: Iterable[str]) -> list[str]:
    """Which enabled names are of this server and yet not offered by it; none as long as its tools are unknown."""
    offered = {tool.name for tool in view.tools or ()}
    mine = {name for name in enabled if server_of(name) == view.name and not name.endswith("*")}
    return [] if view.tools is None else sorted(mine - offered)


def _view(server: McpServer) -> ServerView:
    return ServerView(
        name=server.name,
        place=server.settings.place,
        state=server.state,
        last_error=server.last_error,
        tools=server.tools,
    )
