"""Routing: who may do what, whose memory a path means, and strict JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any, get_args

import httpx2
import pytest
from fastapi import FastAPI, Query, Request
from pydantic import BaseModel

from pattern_core.errors import NotFound, PermissionDenied
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_server.accounts import Principal
from pattern_server.http.app import RESOURCES, build_app
from pattern_server.http.routing import (
    API,
    MayAdminister,
    MayRead,
    MayWrite,
    Router,
    Server,
    StrictRequest,
    owner_of,
)
from tests.pattern_server.http.test_border import messages, scope
from tests.pattern_server.place import Place
from tests.support import running


class Told(BaseModel):
    """An answer."""

    name: str
    number: int


def made() -> FastAPI:
    """An application with some routes that look alike."""
    router = Router(prefix="/things", tags=["things"])

    @router.get("")
    async def list_all(caller: MayRead, number: Annotated[int, Query(ge=1)] = 1) -> Told:
        return Told(name="all", number=number)

    @router.post("", status_code=201)
    async def create(caller: MayRead, body: Told) -> Told:
        return body

    @router.get("/newest")
    async def newest(caller: MayRead) -> Told:
        return Told(name="newest", number=0)

    @router.get("/{thing}")
    async def show(caller: MayRead, thing: str) -> Told:
        return Told(name=thing, number=2)

    @router.get("/{thing}/files/{path:path}")
    async def file(caller: MayRead, thing: str, path: str) -> Told:
        return Told(name=f"{thing}:{path}", number=3)

    app = FastAPI(redirect_slashes=False)
    app.router.routes.extend(router.routes)
    return app


async def answers(app: FastAPI, method: str, path: str, body: object = None) -> tuple[int, object]:
    """Status and JSON of an answer, as a caller who may read."""
    caller = Principal(user_id="user_1", username="ann", is_admin=False, scopes=frozenset({"read"}))

    async def knowing(scope: dict[str, object], receive: object, send: object) -> None:
        scope["state"] = {"principal": caller}
        await app(scope, receive, send)  # type: ignore[arg-type]  # ASGI's own types, spelled by the test as objects

    transport = httpx2.ASGITransport(app=knowing)  # type: ignore[arg-type]  # as above
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.request(method, path, json=body)
        return answer.status_code, answer.json()


async def test_every_kind_of_path_finds_its_route() -> None:
    app, things = made(), f"{API}/things"
    assert await answers(app, "GET", f"{things}?number=7") == (200, {"name": "all", "number": 7})
    assert await answers(app, "POST", things, {"name": "n", "number": 1}) == (201, {"name": "n", "number": 1})
    assert await answers(app, "GET", f"{things}/newest") == (200, {"name": "newest", "number": 0})
    assert await answers(app, "GET", f"{things}/x%20y") == (200, {"name": "x y", "number": 2})
    assert await answers(app, "GET", f"{things}/a/files/b/c.txt") == (200, {"name": "a:b/c.txt", "number": 3})
    assert await answers(app, "GET", f"{things}/a/files/") == (200, {"name": "a:", "number": 3})
    for path in (f"{API}/thing", API, f"{things}/", f"{things}/a/b", f"{things}/a/files", "/things"):
        status, _ = await answers(app, "GET", path)
        assert status == 404, path
    status, _ = await answers(app, "DELETE", things)
    assert status == 405
    status, _ = await answers(app, "GET", f"{things}?number=0")
    assert status == 422


def test_a_route_without_a_scope_is_refused_where_it_is_written() -> None:
    router = Router(prefix="/things", tags=["things"])
    with pytest.raises(AssertionError, match="/things/open demands no scope"):

        @router.get("/open")
        async def _open() -> None:
            pass


async def test_routes_get_what_they_ask_for(place: Place) -> None:
    app = FastAPI()
    app.state.server = place.parts.state
    caller = Principal(user_id="user_1", username="ann", is_admin=False, scopes=frozenset({"read", "admin"}))
    request = Request({"type": "http", "app": app, "headers": [], "state": {"principal": caller}})

    async def got(wanted: object) -> Any:
        return await get_args(wanted)[1].dependency(request)

    assert await got(Server) is place.parts.state
    assert await got(MayRead) is caller
    with pytest.raises(PermissionDenied, match="may read, admin; this request needs the scope write"):
        await got(MayWrite)
    with pytest.raises(PermissionDenied, match="for administrators"):
        await got(MayAdminister)


async def test_the_modules_of_the_routes_are_imported_in_order_until_one_has_the_route(place: Place) -> None:
    app = build_app(place.parts.state)
    transport = httpx2.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {place.parts.local_token}"}
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://x{API}", headers=headers) as client:
        assert (await client.get("http://x/healthz")).status_code == 200
        assert (await client.get("/me", headers={"Authorization": "none"})).status_code == 401
        assert app.unloaded == [*RESOURCES]
        assert (await client.get("/me")).status_code == 200
        assert app.unloaded == [*RESOURCES[1:]]
        assert (await client.get("/constellations/home/agents")).status_code == 404
        assert app.unloaded == [*RESOURCES[RESOURCES.index("pattern_server.http.routes.agents") + 1 :]]
        assert (await client.put("/me")).status_code == 405
        assert app.unloaded == []
        assert (await client.get("/nothing")).status_code == 404
        assert len(app.openapi()["paths"]) > len(RESOURCES)


async def test_the_description_names_them_all_and_is_made_once(place: Place) -> None:
    app = build_app(place.parts.state)
    described = app.openapi()
    assert {f"{API}/me", f"{API}/backup", "/healthz"} <= set(described["paths"])
    assert described["paths"][f"{API}/me"]["get"]["tags"] == ["constellations"]
    assert app.openapi() is described


def test_the_servers_start_imports_none() -> None:
    code = "import json, sys, pattern_server.serve; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(RESOURCES) & set(json.loads(done.stdout))


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, null, "é😀"]}', "[]", '"x"', "1e400"])
async def test_json_is_read(text: str) -> None:
    assert await parsed(text.encode()) == json.loads(text)


@pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b'"\\ud800"', b"\xff", b"[" * 90_000, b"1" * 5_000, b""])
async def test_what_no_database_could_hold_is_no_json(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        await parsed(body)


async def parsed(body: bytes) -> Any:
    asked = scope()
    return await StrictRequest(asked, messages({"type": "http.request", "body": body, "more_body": False})).json()


async def test_an_owner_is_an_agent_or_everybody() -> None:
    async with running() as home:
        agent = await home.agent("ada")
        assert await owner_of(home.constellation, "ada") == agent.id
        assert await owner_of(home.constellation, agent.id) == agent.id
        assert await owner_of(home.constellation, "_constellation_") == CONSTELLATION_OWNER
        with pytest.raises(NotFound):
            await owner_of(home.constellation, "nobody")
