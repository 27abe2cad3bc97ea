"""MCP servers: what they offer to the agents of a constellation, and how they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pattern_core.mcp_servers.servers import ServerView, State, missing
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass
from pattern_server.http.bodies import Told
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/mcp", tags=["mcp"])


class McpToolTold(Told):
    """A tool of a server, by the name that agents know it by."""

    name: str
    description: str
    effect: EffectClass
    parameters: Mapping[str, Any]


class McpServerTold(Told):
    """A server. `tools` are null until it was asked for the first time; `missing` are names that agents have enabled
    and that it does not offer.
    """

    name: str
    place: str
    state: State
    last_error: str | None
    tools: list[McpToolTold] | None
    missing: list[str]


class McpServersTold(Told):
    """All servers that are configured, by name."""

    items: list[McpServerTold]


@router.get("", response_model=McpServersTold)
async def list_all(c: str, server: Server, caller: MayRead) -> object:
    """The servers as they are now; asking starts none of them."""
    async with server.constellations.use(caller, c) as constellation:
        enabled = {name for agent in await constellation.roster.all() for name in agent.enabled_tools}
        return McpServersTold(items=[_told(view, enabled) for view in constellation.mcp.views()])


@router.post("/{name}/test", response_model=McpServerTold)
async def test(c: str, name: str, server: Server, caller: MayWrite) -> object:
    """Start a server, unless it runs, and tell how that went."""
    async with server.constellations.use(caller, c) as constellation:
        enabled = {name for agent in await constellation.roster.all() for name in agent.enabled_tools}
        return _told(await constellation.mcp.tried(name), enabled)


def _told(view: ServerView, enabled: Iterable[str]) -> McpServerTold:
    return McpServerTold(
        name=view.name,
        place=view.place,
        state=view.state,
        last_error=view.last_error,
        tools=None if view.tools is None else [_tool(tool) for tool in view.tools],
        missing=missing(view, enabled),
    )


def _tool(tool: Tool) -> McpToolTold:
    return McpToolTold(
        name=tool.name, description=tool.description, effect=tool.effect, parameters=tool.arguments.schema
    )
