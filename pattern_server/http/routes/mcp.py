"""MCP servers: what they offer to the agents of a constellation, and how they are."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pattern_core.constellation import Constellation
from pattern_core.mcp_servers.servers import ServerView, missing
from pattern_db.enums import EffectClass
from pattern_server.http.bodies import answer_of, items_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/mcp", tags=["mcp"])


class McpToolResponse(BaseModel):
    """A tool of a server, by the name that agents know it by."""

    name: str
    description: str
    effect: EffectClass
    parameters: dict[str, Any]


# `tools` are null until it was asked for the first time; `missing` are names that agents have enabled and that it does
# not offer.
SERVER = answer_of(
    ServerView,
    "name place state last_error tools missing",
    tools=list[McpToolResponse] | None,
    missing=list[str],
)


@router.get("", response_model=items_of(SERVER))
async def list_all(home: ToRead) -> object:
    """The servers as they are now; asking starts none of them."""
    return {"items": [await _told(home.constellation, view) for view in home.constellation.mcp.views()]}


@router.post("/{name}/test", response_model=SERVER)
async def test(name: str, home: ToWrite) -> object:
    """Start a server, unless it runs, and tell how that went."""
    return await _told(home.constellation, await home.constellation.mcp.tried(name))


async def _told(constellation: Constellation, view: ServerView) -> dict[str, Any]:
    enabled = {name for agent in await constellation.roster.all() for name in agent.enabled_tools}
    shown: dict[str, Any] = {name: getattr(view, name) for name in ("name", "place", "state", "last_error")}
    tools = (
        None
        if view.tools is None
        else [
            McpToolResponse(
                name=tool.name, description=tool.description, effect=tool.effect, parameters=dict(tool.arguments.schema)
            )
            for tool in view.tools
        ]
    )
    return {**shown, "tools": tools, "missing": missing(view, enabled)}
