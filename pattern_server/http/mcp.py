"""The Model Context Protocol for other people's programs: the one file of the server that knows its library.

Clients of 2025-11-25 and before have sessions, which the library keeps; those of 2026-07-28 have none. A session gives
no rights: each request has those of its own token.

Source: Model Context Protocol, 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from itertools import count
from typing import Any

import trio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, RequestParams
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from pattern_core.errors import InvalidInput, NotFound, PatternError
from pattern_db.errors import DatabaseError
from pattern_server import accounts
from pattern_server.http import REAUTHENTICATE
from pattern_server.http.routing import Access, Demand, audited
from pattern_server.http.toolsets import OTHERS, SERVED
from pattern_server.http.toolsets.resources import ANSWERS
from pattern_server.http.toolsets.toolset import Served, run_tool

SESSIONS_MAX = 1_000
SESSION_IDLE_S = 1_800.0
RESTART_S = 1.0
# What every result of 2026-07-28 has; the library leaves out what a client's version does not know.
ENVELOPE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
INSTRUCTIONS = (
    "Pattern keeps agents with a long memory. `agent_message` asks one, `search` finds what was said or stored, and"
    " `memory_list` shows what an agent always has in mind."
)

EVERY = {name: one for served in (SERVED, *OTHERS.values()) for name, one in served.items()}

Context = ServerRequestContext[Any, Any]  # Any: the state of a server, and Starlette's request
_log = logging.getLogger("pattern.mcp")


class McpSessions:
    """The sessions of all clients, in the task `run`."""

    def __init__(self) -> None:
        self._ready = trio.Event()
        self._server: Server[Any] = Server(
            "pattern",
            version=version("pattern-server"),
            instructions=INSTRUCTIONS,
            get_tool_input_schema=lambda name: EVERY[name][1].parameters if name in EVERY else None,
        )
        self._server.middleware.append(_translated)
        for method, handle in {
            **dict.fromkeys(ANSWERS, _read),
            "tools/list": _list_tools,
            "tools/call": _call_tool,
        }.items():
            self._server.add_request_handler(method, RequestParams, handle)

    async def run(self) -> None:
        """Hold the sessions until cancelled. After a bug in the library clients have to begin new ones."""
        while True:
            self._manager = StreamableHTTPSessionManager(
                self._server, session_idle_timeout=SESSION_IDLE_S, max_sessions=SESSIONS_MAX
            )
            try:
                async with self._manager.run(), trio.open_nursery() as self._requests:
                    self._ready.set()
                    await trio.sleep_forever()
            except* Exception as errors:  # noqa: BLE001  # the border of the library's tasks
                _log.error("bug; all sessions ended", exc_info=errors)
            await trio.sleep(RESTART_S)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request.

        A client may close the connection as soon as it has its answer. The border cancels the request then, and the
        library would drop the session that it opened; so it runs in a task of its own, and the library notices that the
        client has left.
        """
        await self._ready.wait()
        over = trio.Event()
        self._requests.start_soon(self._handle, scope, receive, send, over)
        await over.wait()
        await scope["state"][REAUTHENTICATE]()  # a request that ended for this reason, without an answer, gets one

    async def _handle(self, scope: Scope, receive: Receive, send: Send, over: trio.Event) -> None:
        """Have the library handle a request, at most as long as its token is valid."""
        caller: accounts.Principal = scope["state"]["principal"]
        whose = AccessToken(token="", client_id=caller.token_id or "", subject=caller.user_id, scopes=[])
        scope["user"] = AuthenticatedUser(whose)  # of a session that this request begins: others get a 404
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_without_token, scope["state"][REAUTHENTICATE], nursery.cancel_scope)
                await self._manager.handle_request(scope, receive, send)
                nursery.cancel_scope.cancel()
        except* Exception as errors:  # noqa: BLE001  # the border of a request, which the listener ends
            _log.error("bug", {"path": scope["path"]}, exc_info=errors)
        finally:
            over.set()


async def _end_without_token(reauthenticate: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    try:
        while True:
            await trio.sleep(accounts.RECHECK_S)
            await reauthenticate()
    except (accounts.Unauthorized, DatabaseError):
        scope.cancel()


async def _translated(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Make errors of the protocol of what a handler raises."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except (PatternError, DatabaseError) as error:
        raise MCPError(INVALID_PARAMS, error.message, {"code": error.code}) from error
    except Exception as error:
        _log.error("bug", {"method": ctx.method}, exc_info=error)
        raise MCPError(INTERNAL_ERROR, "internal error; the server's log has details") from error


async def _access(ctx: Context, scope: accounts.Scope) -> Access:
    """Return the caller's access to the constellation in the path.

    Raises:
        PermissionDenied: the token lacks the scope.
    """
    request: Any = ctx.request  # Starlette's: over HTTP each message has one
    return await Demand(scope).access(request, request.path_params["c"])


def _served(ctx: Context) -> Served:
    """Return the tools that the address offers.

    Raises:
        InvalidInput: it names a toolset that does not exist.
    """
    request: Any = ctx.request
    name = request.query_params.get("toolset", "pattern")
    if name != "pattern" and name not in OTHERS:
        raise InvalidInput(f"there is no toolset {name!r}; there are pattern, {', '.join(OTHERS)}")
    return OTHERS.get(name, SERVED)


async def _list_tools(ctx: Context, _params: RequestParams) -> dict[str, Any]:
    caller = (await _access(ctx, "read")).caller
    shown = [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.parameters,
            "annotations": {"readOnlyHint": scope == "read", "openWorldHint": scope == "chat"},
        }
        for scope, tool in _served(ctx).values()
        if scope in caller.scopes
    ]
    return {**ENVELOPE, "tools": shown}


async def _call_tool(ctx: Context, _params: RequestParams) -> dict[str, Any]:
    """Call a tool. What goes wrong is a result, too, which the model can read."""
    params, numbers, served = ctx.params or {}, count(1), _served(ctx)
    request: Any = ctx.request
    if params["name"] not in served:
        raise NotFound(f"there is no tool {params['name']!r}; list the tools")
    scope, tool = served[params["name"]]

    async def report(words: str) -> None:
        await ctx.session.report_progress(next(numbers), message=words)

    try:
        home = await _access(ctx, scope)
        place = {"workspace": request.query_params.get("workspace", "")}
        session = request.headers.get("mcp-session-id", "")
        run = partial(run_tool, home, tool, params.get("arguments") or {}, report, session=session, **place)
        if scope != "write":
            answer = await run()
        else:
            async with audited(request, home.caller, f"mcp.{tool.name}") as result:
                answer = await run()
                result.status = HTTPStatus.UNPROCESSABLE_ENTITY if _failed(answer) else HTTPStatus.OK
    except (PatternError, DatabaseError) as error:
        answer = {"error": {"code": error.code, "message": error.message}}
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
    if served is not SERVED and _failed(answer):
        code, words = answer["error"]["code"], answer["error"]["message"]
        text = words if code == NotFound.code else f"Error: {words}"
    return {**ENVELOPE, "content": [{"type": "text", "text": text}], "isError": _failed(answer)}


def _failed(answer: Any) -> bool:
    return isinstance(answer, dict) and "error" in answer


async def _read(ctx: Context, _params: RequestParams) -> dict[str, Any]:
    async with (await _access(ctx, "read")).use() as constellation:
        return {**ENVELOPE, **await ANSWERS[ctx.method](constellation, ctx.params or {})}
