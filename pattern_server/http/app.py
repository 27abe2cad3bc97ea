"""The application: FastAPI behind the border, with routes that are imported when they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import trio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from pattern_core.errors import PatternError
from pattern_db.errors import DatabaseError
from pattern_server.http.border import Border
from pattern_server.http.errors import OPENAI, for_path, of_error, of_framework, of_validation
from pattern_server.http.routes import health
from pattern_server.http.routing import ApiRoute, ServerState

# The whole API: one module per resource, each with its `router`.
RESOURCES = (
    "pattern_server.http.routes.constellations",
    "pattern_server.http.routes.backups",
    "pattern_server.http.routes.agents",
    "pattern_server.http.routes.groups",
    "pattern_server.http.routes.messages",
    "pattern_server.http.routes.sessions",
    "pattern_server.http.routes.chat",
    "pattern_server.http.routes.turns",
    "pattern_server.http.routes.memory",
    "pattern_server.http.routes.folders",
    "pattern_server.http.routes.tools",
    "pattern_server.http.routes.approvals",
    "pattern_server.http.routes.schedules",
    "pattern_server.http.routes.starters",
    "pattern_server.http.routes.inbox",
    "pattern_server.http.routes.shared_state",
    "pattern_server.http.routes.tasks",
    "pattern_server.http.routes.workspaces",
    "pattern_server.http.routes.programs",
    "pattern_server.http.routes.decisions",
    "pattern_server.http.routes.guidance",
    "pattern_server.http.routes.calendars",
    "pattern_server.http.routes.handoffs",
    "pattern_server.http.routes.assignments",
    "pattern_server.http.routes.overview",
    "pattern_server.http.routes.webhooks",
    "pattern_server.http.routes.sources",
    "pattern_server.http.routes.hooks",
    "pattern_server.http.routes.archival",
    "pattern_server.http.routes.search",
    "pattern_server.http.routes.embeddings",
    "pattern_server.http.routes.usage",
    "pattern_server.http.routes.models",
    "pattern_server.http.routes.tokens",
    "pattern_server.http.routes.users",
    "pattern_server.http.routes.auth",
    "pattern_server.http.routes.identities",
    "pattern_server.http.routes.mcp",
    "pattern_server.http.v1.models",
    "pattern_server.http.v1.chat",
    "pattern_server.http.v1.responses",
    "pattern_server.http.routes.audit",
    "pattern_server.http.routes.portable",
)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
EXPOSED_HEADERS = ("ETag", "Location", "Retry-After", "X-Request-Id", "Mcp-Session-Id")


class Application(FastAPI):
    """An application that imports its API later: with the rooms that it needs, the import costs half a second.

    `unloaded` are the modules that are still to be imported, in order. A request without a route imports them until one
    has it, so a command that lists constellations does not wait for the routes of agents.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unloaded = list(RESOURCES)
        self._loading = threading.Lock()
        self._described: dict[str, Any] | None = None
        self.router.default = self._route_later

    def load(self, wanted: Scope | None = None) -> None:
        """Import modules until one has a route for the wanted request, or all. Call it in a thread."""
        while self.unloaded:
            with self._loading:
                if wanted and any(route.matches(wanted)[0] is Match.FULL for route in self.router.routes):
                    return
                if self.unloaded:
                    router = import_module(self.unloaded[0]).router
                    at = 0 if router.prefix == OPENAI else len(self.router.routes)  # one path is compared after another
                    self.router.routes[at:at] = router.routes
                    del self.unloaded[0]

    async def _route_later(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.unloaded:
            raise HTTPException(404)
        await trio.to_thread.run_sync(self.load, scope)
        await self.router(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the description of the whole API. The first call takes half a second: make it in a thread."""
        self.load()
        with self._loading:  # the framework caches its own description, which must never be shown
            if self._described is None:
                module = import_module("pattern_server.http.openapi")  # texts that few processes need
                self._described = module.describe(super().openapi(), self.routes)
            return self._described


def build_app(server: ServerState) -> Application:
    """Return the ASGI application over the parts of a server. It needs no lifespan."""
    app = Application(
        title="Pattern",
        summary="A self-hosted server for long-lived AI agents.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url=None,  # routes/health.py serves it, so building it delays no request
        exception_handlers={
            RequestValidationError: _handler(of_validation),
            HTTPException: _refuse,
            PatternError: _handler(of_error),
            DatabaseError: _handler(of_error),
        },
    )
    app.state.server = server
    app.add_middleware(Border, server=server)
    if server.config.http.cors_origins:  # around the border: a browser's preliminary request has no token
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.config.http.cors_origins,
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.router.routes.extend(health.router.routes)
    return app


def api_routes() -> list[ApiRoute]:
    """Return every route of the API."""
    return [route for name in RESOURCES for route in import_module(name).router.routes]


async def _refuse(request: Request, error: HTTPException) -> Response:
    """Return the answer to a request without a route; for a wrong method it lists all methods of the path."""
    response = of_framework(error)
    if response.status_code == 405:
        found = [route for route in request.app.router.routes if route.matches(request.scope)[0] is not Match.NONE]
        path = min((route.path for route in found), key=lambda path: path.count("{"))  # the one that says most
        allowed = {method for route in found if route.path == path for method in route.methods}
        response.headers["allow"] = ", ".join(sorted(allowed))
    return for_path(request.url.path, response)


def _handler(answer: Callable[[Any], Response]) -> Callable[[Request, Any], Awaitable[Response]]:
    async def handle(request: Request, error: Any) -> Response:
        return for_path(request.url.path, answer(error))

    return handle
