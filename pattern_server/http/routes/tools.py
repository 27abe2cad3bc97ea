"""The tools that agents can have, and the MCP servers that offer some of them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pattern_core.constellation import Constellation
from pattern_core.mcp_servers.servers import McpServer, State, missing
from pattern_core.tools.tool import Tool
from pattern_server.http.bodies import answer_of, items_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}", tags=["tools"])

TOOL = answer_of(Tool, "name description effect enabled_by_default brief")
MCP_TOOL = answer_of(Tool, "name description effect parameters", "McpTool")


class ToolList(BaseModel):
    """The tools that agents can have, and those that are switched off in the configuration."""

    items: list[TOOL]  # type: ignore[valid-type]  # made above
    off: dict[str, str]


class McpServerStatus(BaseModel):
    """A configured MCP server."""

    name: str
    place: str
    state: State
    last_error: str | None
    tools: list[MCP_TOOL] | None  # type: ignore[valid-type]  # made above
    missing: list[str]


@router.get("/tools", response_model=ToolList)
async def list_all(home: ToRead) -> object:
    """List tools.

    Return the tools that can be enabled for an agent. The profile `full` has those with `enabled_by_default`, the
    profile `small` those with a `brief` description; the default profile depends on the agent's model. Tools of an MCP
    server are listed after it was started once.
    """
    tools = home.constellation.tools
    return {"items": [tools.get(name, tools.names) for name in tools.names], "off": tools.off}


@router.get("/mcp", response_model=items_of(McpServerStatus))
async def list_mcp_servers(home: ToRead) -> object:
    """List the configured MCP servers with their state; none is started."""
    return {"items": [await _shown(home.constellation, server) for server in home.constellation.mcp.by_name.values()]}


@router.post("/mcp/{name}/test", response_model=McpServerStatus)
async def test_mcp_server(name: str, home: ToWrite) -> object:
    """Test an MCP server: start it if it is not running, and return its state."""
    return await _shown(home.constellation, await home.constellation.mcp.tried(name))


async def _shown(constellation: Constellation, server: McpServer) -> dict[str, Any]:
    enabled = {name for agent in await constellation.roster.all() for name in agent.enabled_tools}
    return {
        "name": server.name,
        "place": server.settings.place,
        "state": server.state,
        "last_error": server.last_error or "; ".join(server.settings.faults) or None,
        "tools": server.tools,
        "missing": missing(server, enabled),
    }
