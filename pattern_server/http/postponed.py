"""Routes that are declared when their module is imported and built when the first request for one of them comes.

FastAPI builds a route by reading its function's signature and making a validator for every parameter, the body and the
answer: some 3 ms each, a quarter of the time from the server's start to its first answer if it is done for all of them,
and most of them are not asked for in the life of most servers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import starlette.routing
import trio
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from pattern_server.http.auth import demanded_by
from pattern_server.http.request_body import StrictRoute


class Router(APIRouter):
    """A router that only notes its routes; they read bodies by `StrictRoute`."""

    def __init__(self, *, tags: list[str], prefix: str = "") -> None:
        super().__init__(prefix=prefix, tags=[*tags], route_class=StrictRoute)
        self._declared: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Note a route. Called by the decorators `get`, `post`, `put`, `patch` and `delete`.

        Raises:
            AssertionError: the route demands no scope.
        """
        if demanded_by(list(options.get("dependencies") or ())) is None:
            raise AssertionError(f"{self.prefix}{path} demands no scope; add dependencies=[demand(…)]")
        self._declared.append((path, endpoint, options))

    def postponed(self, above: str) -> list[PostponedRoute]:
        """The noted routes in their order, below the path `above`."""
        return [PostponedRoute(self, above, *each) for each in self._declared]


class PostponedRoute(BaseRoute):
    """A route that becomes FastAPI's own when a path that may be its own comes by."""

    def __init__(
        self, router: Router, above: str, path: str, endpoint: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        self.path = self.path_format = f"{above}{router.prefix}{path}"
        self._segments = self.path.split("/")
        self._tags, self._endpoint, self._options = router.tags, endpoint, options

    @cached_property
    def built(self) -> APIRoute:
        """The route itself."""
        return self.build()

    def build(self) -> APIRoute:
        """The route, made anew; any thread may do that."""
        router = APIRouter(tags=self._tags, route_class=StrictRoute)
        router.add_api_route(self.path, self._endpoint, **self._options)
        (route,) = router.routes
        assert isinstance(route, APIRoute)
        return route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the request is for this route, by path and method. Called by the framework."""
        return self.built.matches(scope) if self._may_match(scope["path"]) else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that matched. Called by the framework."""
        await self.built.handle(scope, receive, send)

    def _may_match(self, path: str) -> bool:
        """Whether a path has this route's fixed segments in their places; no more is known without building it."""
        asked = path.split("/")
        if self._segments[-1].endswith(":path}"):  # takes any number of segments
            if len(asked) < len(self._segments):
                return False
        elif len(asked) != len(self._segments):
            return False
        return all(ours.startswith("{") or ours == theirs for ours, theirs in zip(self._segments, asked, strict=False))


class PostponedRouters(BaseRoute):
    """All routes below the path `above`; their modules are imported with the first request for one of them."""

    def __init__(self, above: str, load: Callable[[], list[Router]]) -> None:
        self._above = above
        self._load = load
        self._router: starlette.routing.Router | None = None

    def routes(self) -> list[PostponedRoute]:
        """The routes. The first call takes half a second: make it in a thread."""
        return [route for router in self._load() for route in router.postponed(self._above)]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the request's path lies below. Called by the framework."""
        return Match.FULL if scope["path"].startswith(f"{self._above}/") else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the route that matches. Called by the framework."""
        if self._router is None:
            routes = await trio.to_thread.run_sync(self.routes)
            self._router = starlette.routing.Router(routes, redirect_slashes=False)
        await self._router(scope, receive, send)


class Application(FastAPI):
    """An application with routes that are built when they are needed."""

    def openapi(self) -> dict[str, Any]:
        """The description of the whole API. The first call takes half a second: make it in a thread."""
        if self.openapi_schema is None:
            whole = FastAPI(title=self.title, summary=self.summary, version=self.version, openapi_url=None)
            for route in self.routes:
                inner = route.routes() if isinstance(route, PostponedRouters) else [route]
                whole.router.routes += [each.build() if isinstance(each, PostponedRoute) else each for each in inner]
            self.openapi_schema = whole.openapi()
        return self.openapi_schema
