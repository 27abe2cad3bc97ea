"""Routing: who may do what, whose memory a path means, strict JSON, cursors and pages."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any, get_args

import httpx2
import pytest
import trio
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_server.accounts import Principal
from pattern_server.http.app import RESOURCES, api_routes, build_app
from pattern_server.http.blocks import BlockCreateRequest
from pattern_server.http.bodies import Paging, RequestModel, decode_cursor, encode_cursor
from pattern_server.http.routes.messages import MessageRequest
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


def test_a_route_without_a_scope_is_refused_where_it_is_written() -> None:
    router = Router(prefix="/things", tags=["things"])
    with pytest.raises(AssertionError, match="/things/open requires no scope"):

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
    with pytest.raises(PermissionDenied, match="administrator's token"):
        await got(MayAdminister)
    request.state.principal = replace(caller, is_admin=True, constellation_id="con_1")
    with pytest.raises(PermissionDenied, match="this token is for one constellation"):
        await got(MayAdminister)
    request.state.principal = replace(caller, is_admin=True)
    assert await got(MayAdminister) is request.state.principal


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


async def test_the_description_is_made_once_and_never_shown_before_it_is_complete(place: Place) -> None:
    app = build_app(place.parts.state)
    found: list[dict[str, Any]] = []

    async def look() -> None:
        found.append(await trio.to_thread.run_sync(app.openapi))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(look)
    assert all(one is found[0] for one in found)
    assert found[0]["paths"][f"{API}/me"]["get"]["operationId"] == "constellations.me"


def test_the_servers_start_imports_none() -> None:
    code = "import json, sys, pattern_server.serve; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*RESOURCES, "pattern_server.http.openapi"} & {*json.loads(done.stdout)}


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


PRINTABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(PRINTABLE, min_size=1, max_size=3))
def test_cursors_come_back(place: list[str]) -> None:
    cursor = encode_cursor(*place)
    assert cursor.isascii()
    assert decode_cursor(cursor, len(place)) == tuple(place)


@given(st.text(max_size=30))
def test_no_text_is_more_than_invalid(text: str) -> None:
    try:
        place = decode_cursor(text, 2)
    except InvalidInput as error:
        assert error.message
    else:
        assert place is not None
        assert decode_cursor(encode_cursor(*place), 2) == place


def test_cursors_of_another_list_are_refused() -> None:
    with pytest.raises(InvalidInput):
        decode_cursor(encode_cursor("a"), 2)
    assert decode_cursor(None, 2) is None


def test_a_cursor_with_other_signs_is_refused() -> None:
    cursor = encode_cursor("a")
    with pytest.raises(InvalidInput):
        decode_cursor(f"{cursor[:2]}!*{cursor[2:]}", 1)


@given(st.lists(st.tuples(PRINTABLE, PRINTABLE), unique=True, max_size=30), st.integers(1, 7))
def test_pages_show_each_row_once_in_order(rows: list[tuple[str, str]], limit: int) -> None:
    seen: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = Paging(limit, cursor).of_all(rows, lambda row: row)
        assert len(page["items"]) <= limit
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(rows)


def test_all_that_is_asked_is_strict() -> None:
    assert api_routes()  # imports all that ask for something
    asked = RequestModel.__subclasses__()
    assert len(asked) > 5
    for kind in asked:
        assert kind.model_config["strict"]
        assert kind.model_config["extra"] == "forbid"


def test_enums_come_as_their_values_and_numbers_as_numbers() -> None:
    assert BlockCreateRequest.model_validate({"label": "x", "permission": "append"}).permission == "append"
    for body in ({"content": "x", "priority": "1"}, {"content": "x", "priority": True}, {"content": 5}):
        with pytest.raises(ValidationError):
            MessageRequest.model_validate(body)
