"""The application: every request passes `Border`, then FastAPI's routing.

`Border.__call__` is one of the two places of the program that catch every exception (the other is the supervisor): a
bug becomes one log line and a 500 that tells nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import trio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pattern_core.errors import Overloaded, PatternError
from pattern_core.files.disk import FILE_BYTES_MAX
from pattern_core.ids import Ids
from pattern_db.errors import DatabaseError
from pattern_server.http import GONE
from pattern_server.http.auth import PUBLIC, authenticate
from pattern_server.http.errors import of_error, of_framework, of_validation, problem
from pattern_server.http.postponed import Application, PostponedRouters, Router
from pattern_server.http.request_body import (
    ClientGone,
    announces_body,
    drop_rest,
    read_body,
    replay,
)
from pattern_server.http.routes import health
from pattern_server.http.state import ServerState

API = "/api/v1"
REQUESTS_MAX = 2_000  # under way at once, streams included
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}")

# Paths whose bodies may be longer than the setting body_bytes_max, with their own bound in bytes.
HISTORY_BYTES_MAX = 32 * 1024 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # images come within
LONG_BODIES = (
    (re.compile(rf"{API}/constellations/[^/]+/agents/[^/]+/history"), HISTORY_BYTES_MAX),
    (re.compile(rf"{API}/constellations/[^/]+/agents/[^/]+/messages"), MESSAGE_BYTES_MAX),
    (re.compile(rf"{API}/constellations/[^/]+/folders/[^/]+/files/.+"), FILE_BYTES_MAX),
)

# The whole API: one module per resource. They are imported with the first
# request of the API, together with the rooms of the core that they show.
RESOURCES = (
    "pattern_server.http.routes.constellations",
    "pattern_server.http.routes.halts",
    "pattern_server.http.routes.agents",
    "pattern_server.http.routes.models",
    "pattern_server.http.routes.messages",
    "pattern_server.http.routes.images",
    "pattern_server.http.routes.turns",
    "pattern_server.http.routes.prompts",
    "pattern_server.http.routes.memory",
    "pattern_server.http.routes.memory_history",
    "pattern_server.http.routes.memory_sharing",
    "pattern_server.http.routes.folders",
    "pattern_server.http.routes.mcp",
    "pattern_server.http.routes.approvals",
    "pattern_server.http.routes.consent_grants",
    "pattern_server.http.routes.archival",
    "pattern_server.http.routes.history",
    "pattern_server.http.routes.summaries",
    "pattern_server.http.routes.search",
    "pattern_server.http.routes.embeddings",
    "pattern_server.http.routes.usage",
    "pattern_server.http.routes.budgets",
    "pattern_server.http.routes.backup",
)

_log = logging.getLogger("pattern.http")


def build_app(server: ServerState) -> FastAPI:
    """The ASGI application over the parts of a server. It needs no lifespan."""
    app = Application(
        title="Pattern",
        summary="A self-hosted server for long-lived AI agents.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url=None,  # routes/health.py has it, so that making it delays nobody
        exception_handlers={
            RequestValidationError: _on_validation,
            HTTPException: _on_framework,
            PatternError: _on_error,
            DatabaseError: _on_error,
        },
    )
    app.state.server = server
    app.add_middleware(Border, server=server)
    app.router.routes.extend(health.router.routes)
    app.router.routes.append(PostponedRouters(API, api_routers))
    return app


def api_routers() -> list[Router]:
    """The routers of the whole API. The first call takes half a second: make it in a thread."""
    return [import_module(name).router for name in RESOURCES]


def api_routes() -> list[APIRoute]:
    """Every route under `/api/v1`, its path without that."""
    return [route.built for router in api_routers() for route in router.postponed("")]


class Border:
    """Around every request: an id, a token, a bound on its body, one log line, and the end of every exception."""

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self._app = app
        self._server = server
        self._ids = Ids(server.runtime.clock, server.runtime.randomness)
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Called by the ASGI server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, self._request_id(scope["headers"]))
        began = trio.current_time()
        self._running += 1
        try:
            with scope.get("state", {}).get(GONE) or trio.CancelScope():
                await self._serve(scope, receive, answer)
        except (PatternError, DatabaseError) as error:
            await self._refuse(scope, receive, answer, of_error(error))
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  # the border of HTTP: a bug ends its request and nothing else
            _log.error("bug", {"request_id": answer.request_id, "path": scope["path"]}, exc_info=error)
            hint = f"the server made a mistake; its log has more under {answer.request_id}"
            await self._refuse(scope, receive, answer, problem("internal", hint))
        finally:
            self._running -= 1
            self._note(scope, answer, trio.current_time() - began)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if scope["path"] not in PUBLIC:
            if self._running > REQUESTS_MAX:
                raise Overloaded(f"{REQUESTS_MAX} requests are under way; try again soon", retry_after_s=1)
            principal = await authenticate(self._server.accounts, scope["headers"])
            scope.setdefault("state", {})["principal"] = principal
        body = await read_body(scope, receive, self._body_bytes_max(scope["path"]))
        answer.has_whole_body = True
        await self._app(scope, replay(body, receive), answer.send)

    def _body_bytes_max(self, path: str) -> int:
        """How long the body of a request for this path may be; some routes take more than others."""
        longer = next((bound for pattern, bound in LONG_BODIES if pattern.fullmatch(path)), 0)
        return max(self._server.config.body_bytes_max, longer)

    async def _refuse(self, scope: Scope, receive: Receive, answer: _Answer, response: Response) -> None:
        """Answer what was not answered yet, and let a client that still sends its body come to read it."""
        if answer.has_started:
            return  # the listener closes the connection in the middle: the client sees that something is missing
        if answer.has_whole_body or not announces_body(scope):
            await response(scope, receive, answer.send)
            return
        response.headers["connection"] = "close"

        async def but_not_the_end(message: Message) -> None:
            more = {"more_body": True} if message["type"] == "http.response.body" else {}
            await answer.send({**message, **more})

        await response(scope, receive, but_not_the_end)
        await drop_rest(scope, receive)
        await answer.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _request_id(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        given = next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), "")
        return given if _REQUEST_ID.fullmatch(given) else self._ids.new("req")

    def _note(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        self._server.answers[f"{answer.status // 100}xx"] += 1
        principal = scope.get("state", {}).get("principal")
        _log.info(
            "request",
            {
                "method": scope["method"],
                "path": scope["path"],
                "status": answer.status,
                "ms": round(seconds * 1000, 1),
                "bytes": answer.size,
                "user": None if principal is None else principal.username,
                "request_id": answer.request_id,
            },
        )


class _Answer:
    """What has been sent of an answer."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 499  # the client closes the connection before it is answered
        self.size = 0
        self.has_started = False
        self.has_whole_body = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self.status = message["status"]
            added = [(b"x-request-id", self.request_id.encode()), (b"x-content-type-options", b"nosniff")]
            message = {**message, "headers": [*message["headers"], *added]}
        else:
            self.size += len(message.get("body", b""))
        await self._send(message)


async def _on_validation(_request: Request, error: Any) -> Response:
    return of_validation(error)


async def _on_framework(_request: Request, error: Any) -> Response:
    return of_framework(error)


async def _on_error(_request: Request, error: Any) -> Response:
    return of_error(error)
