"""Routes that are built when they are asked for: none before, and the one that is meant then."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated

import httpx2
import pytest
from fastapi import Query
from pydantic import BaseModel

from pattern_server.http.auth import demand
from pattern_server.http.postponed import Application, PostponedRoute, PostponedRouters, Router
from pattern_server.http.request_body import StrictRoute

READ = [demand("read")]


class Told(BaseModel):
    """An answer."""

    name: str
    number: int


def made() -> tuple[Application, list[PostponedRoute]]:
    """An application with some routes that look alike."""
    router = Router(prefix="/things", tags=["things"])

    @router.get("", dependencies=READ)
    async def list_all(number: Annotated[int, Query(ge=1)] = 1) -> Told:
        return Told(name="all", number=number)

    @router.post("", dependencies=READ, status_code=201)
    async def create(body: Told) -> Told:
        return body

    @router.get("/newest", dependencies=READ)
    async def newest() -> Told:
        return Told(name="newest", number=0)

    @router.get("/{thing}", dependencies=READ)
    async def show(thing: str) -> Told:
        return Told(name=thing, number=2)

    @router.get("/{thing}/files/{path:path}", dependencies=READ)
    async def file(thing: str, path: str) -> Told:
        return Told(name=f"{thing}:{path}", number=3)

    app = Application(redirect_slashes=False)
    routes = router.postponed("/api")
    app.router.routes.extend(routes)
    return app, routes


async def test_the_modules_of_the_routes_are_imported_with_the_first_request_for_one() -> None:
    router = Router(prefix="/things", tags=["things"])

    @router.get("/{thing}", dependencies=READ)
    async def show(thing: str) -> Told:
        return Told(name=thing, number=1)

    loads: list[str] = []

    def load() -> list[Router]:
        loads.append("loaded")
        return [router]

    app = Application(redirect_slashes=False)
    app.router.routes.append(PostponedRouters("/api", load))
    assert (await answers(app, "GET", "/other"))[0] == 404
    assert loads == []
    assert await answers(app, "GET", "/api/things/x") == (200, {"name": "x", "number": 1})
    assert (await answers(app, "GET", "/api/nothing"))[0] == 404
    assert (await answers(app, "DELETE", "/api/things/x"))[0] == 405
    assert loads == ["loaded"]
    assert list(app.openapi()["paths"]) == ["/api/things/{thing}"]


def built(routes: list[PostponedRoute]) -> list[str]:
    """The paths of the routes that have been built, in order."""
    return [route.path for route in routes if "built" in vars(route)]


async def answers(app: Application, method: str, path: str, body: object = None) -> tuple[int, object]:
    """Status and JSON of an answer, as somebody who may read."""

    class MayRead:
        scopes = frozenset({"read"})

    async def knowing(scope: dict[str, object], receive: object, send: object) -> None:
        scope["state"] = {"principal": MayRead()}
        await app(scope, receive, send)  # type: ignore[arg-type]  # ASGI's own types, spelled by the test as objects

    transport = httpx2.ASGITransport(app=knowing)  # type: ignore[arg-type]  # as above
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.request(method, path, json=body)
        return answer.status_code, answer.json()


async def test_the_first_request_builds_what_may_be_meant_and_nothing_else() -> None:
    app, routes = made()
    assert built(routes) == []
    assert await answers(app, "GET", "/api/things/newest") == (200, {"name": "newest", "number": 0})
    assert built(routes) == ["/api/things/newest"]
    assert await answers(app, "GET", "/api/things/a/files/b/c.txt") == (200, {"name": "a:b/c.txt", "number": 3})
    assert built(routes) == ["/api/things/newest", "/api/things/{thing}/files/{path:path}"]


async def test_every_kind_of_path_finds_its_route() -> None:
    app, _routes = made()
    assert await answers(app, "GET", "/api/things?number=7") == (200, {"name": "all", "number": 7})
    assert await answers(app, "POST", "/api/things", {"name": "n", "number": 1}) == (201, {"name": "n", "number": 1})
    assert await answers(app, "GET", "/api/things/x%20y") == (200, {"name": "x y", "number": 2})
    assert await answers(app, "GET", "/api/things/a/files/") == (200, {"name": "a:", "number": 3})
    for path in ("/api/thing", "/api", "/api/things/", "/api/things/a/b", "/api/things/a/files", "/things"):
        status, _ = await answers(app, "GET", path)
        assert status == 404, path
    status, _ = await answers(app, "DELETE", "/api/things")
    assert status == 405
    status, _ = await answers(app, "GET", "/api/things?number=0")
    assert status == 422


async def test_the_description_names_them_all_and_leaves_them_as_they_are() -> None:
    app, routes = made()
    described = app.openapi()
    assert sorted(described["paths"]) == sorted({route.path.replace(":path", "") for route in routes})
    assert described["paths"]["/api/things"]["post"]["tags"] == ["things"]
    assert built(routes) == []
    assert app.openapi() is described


def test_a_route_without_a_scope_is_refused_where_it_is_written() -> None:
    router = Router(prefix="/things", tags=["things"])
    with pytest.raises(AssertionError, match="/things/open demands no scope"):

        @router.get("/open")
        async def _open() -> None:
            pass


def test_the_servers_start_builds_none() -> None:
    code = (
        "import json, fastapi.routing as routing; made = []; real = routing.APIRoute.__init__\n"
        "def counted(self, path, *args, **kwargs):\n"
        "    made.append(path)\n"
        "    real(self, path, *args, **kwargs)\n"
        "routing.APIRoute.__init__ = counted\n"
        "import pattern_server.serve\n"
        "print(json.dumps(made))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    public = {"/", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"}
    assert set(json.loads(done.stdout)) <= public


def test_what_is_built_is_the_frameworks_own() -> None:
    _app, routes = made()
    assert [type(route.built) for route in routes] == [StrictRoute] * len(routes)
    assert [route.built.path for route in routes] == [route.path for route in routes]
