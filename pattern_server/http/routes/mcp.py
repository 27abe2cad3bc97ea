"""The Model Context Protocol over HTTP, one address per constellation. `http/mcp.py` speaks it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import trio
from fastapi import Query, Request, Response
from starlette.types import Receive, Scope, Send

from pattern_server.http.routing import Router, ToReadOn

if TYPE_CHECKING:
    from pattern_server.http.mcp import McpSessions

router = Router(base="", prefix="/mcp", tags=["mcp"])

_OBJECT: dict[str, Any] = {"schema": {"type": "object"}}
_MESSAGE = {"application/json": _OBJECT}
_REFUSAL = {
    "description": "An error of the protocol, or a problem document.",
    "content": {**_MESSAGE, "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_REFUSALS: dict[int | str, dict[str, Any]] = {400: _REFUSAL, 404: _REFUSAL, 406: _REFUSAL}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    **_REFUSALS,
    200: {
        "description": "The answer, perhaps behind notifications.",
        "content": {**_MESSAGE, "text/event-stream": _OBJECT},
    },
    202: {"description": "A notification was accepted."},
}


class McpExchange(Response):
    """An answer that the protocol's library sends."""

    def __init__(self, sessions: McpSessions) -> None:
        super().__init__()
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. Called by the framework."""
        await self._sessions.serve(scope, receive, send)


# The tools of another program in place of ours, and the workspace that they are for: by id, name or folder.
Tools = Annotated[str | None, Query(description="`pattern`, `delta` or `lodestone`: which tools are offered.")]
Workspace = Annotated[str | None, Query(description="The workspace that these tools are for: id, name or a folder.")]


@router.post("/{c}", response_class=Response, responses=_ANSWERS, openapi_extra={"requestBody": {"content": _MESSAGE}})
async def post_message(
    home: ToReadOn, request: Request, toolset: Tools = None, workspace: Workspace = None
) -> Response:
    """Send a message of the Model Context Protocol.

    The protocol's versions 2025-11-25 and 2026-07-28 say what is sent and answered. The token's scopes decide which
    tools there are.
    """
    server, state = home.server, request.app.state
    await server.accounts.constellation_for(home.caller, home.c)
    module = await trio.to_thread.run_sync(import_module, "pattern_server.http.mcp")  # a third of a second, once
    if not hasattr(state, "mcp"):
        state.mcp = module.McpSessions()
        server.background.start_soon(state.mcp.run, name="MCP sessions")
    return McpExchange(state.mcp)


@router.delete("/{c}", response_class=Response, status_code=200)
async def end_session(home: ToReadOn, request: Request, toolset: Tools = None, workspace: Workspace = None) -> Response:
    """End a session of the Model Context Protocol.

    Cancel what runs in it. Only clients of 2025-11-25 and before have sessions.
    """
    return await post_message(home, request)
