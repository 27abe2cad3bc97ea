"""Who may do what, route by route: made from the application's own list of routes, so that none can be forgotten."""

from __future__ import annotations

from string import Formatter
from typing import Any

import httpx2

from pattern_db.tables import users
from pattern_server.http.app import api_routes
from tests.pattern_server.place import API, Place, client_of

# The body of a proper request. A route that takes one and has no row here fails the test.
BODIES: dict[str, Any] = {
    "POST /constellations": {"name": "another"},
    "POST /constellations/restore": {"file": "/nowhere.db", "name": "restored"},
    "PATCH /constellations/{c}": {"name": "renamed"},
    "POST /constellations/{c}/agents": {"name": "bea"},
    "PATCH /constellations/{c}/agents/{a}": {"description": "other"},
    "POST /constellations/{c}/agents/{a}/messages": {"content": "Hello"},
    "PUT /constellations/{c}/agents/{a}/memory/{label}": {"content": "new"},
    "PATCH /constellations/{c}/agents/{a}/memory/{label}": {"pinned": True},
    "POST /constellations/{c}/agents/{a}/memory/{label}/undo": {},
    "POST /constellations/{c}/agents/{a}/memory/{label}/redo": {},
    "POST /constellations/{c}/agents/{a}/memory/{label}/rollback": {"version": 0},
    "POST /constellations/{c}/agents/{a}/memory/{label}/share": {"agent": "bea"},
    "POST /constellations/{c}/approvals/{id}": {"decision": "deny"},
    "POST /constellations/{c}/groups": {"name": "desk", "pattern_type": "parallel", "members": []},
    "PATCH /constellations/{c}/groups/{g}": {"description": "other"},
    "POST /constellations/{c}/groups/{g}/members": {"agent_id": "ada"},
    "POST /constellations/{c}/schedules": {"name": "often", "agent": "ada", "message": "Hello", "every": 3600},
    "POST /constellations/{c}/calendar/events": {"title": "Walk", "starts_at": "2026-01-05"},
    "PATCH /constellations/{c}/calendar/events/{e}": {"title": "Run"},
    "PATCH /constellations/{c}/calendar/events/{e}/occurrences/{nominal}": {"notes": "!"},
    "POST /constellations/{c}/calendar/import": "BEGIN:VCALENDAR",
    "PATCH /constellations/{c}/schedules/{s}": {"message": "Hello again"},
    "POST /constellations/{c}/groups/{g}/messages": {"content": "Hello"},
    "POST /constellations/{c}/folders": {"name": "papers"},
    "PATCH /constellations/{c}/folders/{f}": {"description": "other"},
    "PUT /constellations/{c}/folders/{f}/files/{name:path}": "words",
    "POST /constellations/{c}/folders/{f}/attachments": {"agent": "ada"},
    "POST /constellations/{c}/agents/{a}/history": {"messages": [{"role": "user", "content": "Hello"}]},
    "POST /constellations/{c}/agents/{a}/archival": {"content": "Likes tea."},
    "PATCH /constellations/{c}/agents/{a}/archival/{id}": {"tags": ["tea"]},
    "POST /constellations/{c}/agents/{a}/archival/{id}/supersede": {"content": "Likes coffee."},
    "POST /constellations/{c}/search": {"query": "hello"},
    "POST /constellations/{c}/prune": {"dry_run": True},
    "POST /tokens": {"scopes": ["read"]},
    "POST /models/test": {"model": "embedded/rules-1"},
    "PUT /models/default": {"model": "embedded/rules-1"},
    "PUT /constellations/{c}/budgets": {"scope": "constellation", "period": "day", "unit": "tokens", "amount": 100},
}
# What each row's own constellation holds; any other name in a path stands for something that is not there.
MADE = {"c", "a", "t", "label"}
WEAKER = {"chat": ["read"], "write": ["chat"], "admin": ["write", "chat"]}

ROUTES = {
    f"{method} {route.path.removeprefix(API)}": route
    for route in api_routes()
    for method in sorted(route.methods or ())
}


def test_every_route_with_a_body_has_a_row_and_every_row_a_route() -> None:
    assert {row for row, route in ROUTES.items() if route.body_field is not None} <= set(BODIES) <= set(ROUTES)


async def _ask(client: httpx2.AsyncClient, row: str, names: dict[str, str]) -> int:
    """The status of a proper request of a route; of an endless stream only the head is read."""
    method, path = row.replace(":path}", "}").split(" ", 1)
    where = path.format(**names, **dict.fromkeys(_absent(row), "nowhere"))
    async with client.stream(method, where, json=BODIES.get(row)) as answer:
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            await answer.aread()
        return answer.status_code


def _absent(row: str) -> set[str]:
    """The names in a row's path of things that no test makes: `id`, for one."""
    return {name for _text, name, _spec, _conversion in Formatter().parse(row) if name} - MADE


async def _names(place: Place, number: int) -> dict[str, str]:
    """A constellation of its own for one row, with an agent, a block and a turn."""
    c = await place.constellation(f"home{number}")
    turn = await place.say("Hello", where=f"home{number}/agents/ada")
    return {"c": c, "a": "ada", "t": turn.json()["turn_id"], "label": "human"}


async def test_without_a_token_nothing_is_answered(place: Place) -> None:
    names = {"c": await place.constellation(), "a": "ada", "t": "turn_x", "label": "human"}
    for headers in ({}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer nope"}):
        async with httpx2.AsyncClient(
            base_url=place.url + API, headers=headers, trust_env=False, timeout=60
        ) as stranger:
            found = {row: await _ask(stranger, row, names) for row in ROUTES}
            assert found == dict.fromkeys(ROUTES, 401)
            answer = await stranger.get("/me")
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["content-type"] == "application/problem+json"
            assert (await stranger.get("/no/such/path")).status_code == 401


async def test_anothers_constellation_does_not_exist(place: Place) -> None:
    names = await _names(place, 0)
    mallory = await place.client("mallory", "admin")
    rows = [row for row, route in ROUTES.items() if "{c}" in route.path]
    assert {row: await _ask(mallory, row, names) for row in rows} == dict.fromkeys(rows, 404)
    assert {row: await _ask(mallory, row, {**names, "c": "home0"}) for row in rows} == dict.fromkeys(rows, 404)
    assert (await mallory.get("/constellations")).json()["items"] == []
    assert (await place.admin.get(f"/constellations/{names['c']}/agents/ada")).status_code == 200


async def test_a_token_for_one_constellation_reaches_nothing_else(place: Place) -> None:
    """Also an administrator's with every scope."""
    names, own = await _names(place, 0), await place.constellation("own")
    accounts = place.parts.state.accounts
    (admin,) = await accounts.database.read(users.list_all)
    secret = await accounts.create_token(admin, name="bound", scopes=["admin"], constellation_id=own)
    async with client_of(place.url, secret) as bound:
        for row, route in ROUTES.items():
            is_elsewhere = "{c}" in route.path and route.scope != "admin"
            expected = 404 if is_elsewhere else 200 if row.startswith("GET ") else 403
            assert await _ask(bound, row, names) == expected, row
        assert [row["id"] for row in (await bound.get("/constellations")).json()["items"]] == [own]
        elsewhere = place.parts.state.config.data_dir.with_name("elsewhere")
        elsewhere.mkdir()
        local = {"name": "disk", "path_type": "local", "path": str(elsewhere)}
        assert "files_roots" in (await bound.post("/constellations/own/folders", json=local)).json()["detail"]
        assert (await place.admin.post("/constellations/own/folders", json=local)).status_code == 201
        assert (await bound.post("/constellations/own/agents", json={"name": "bea"})).status_code == 201
    assert len((await place.admin.get("/constellations")).json()["items"]) == 2


async def test_a_weaker_scope_is_refused(place: Place) -> None:
    names = await _names(place, 0)
    clients = {scope: await place.client("ann", *weaker) for scope, weaker in WEAKER.items()}
    for row, route in ROUTES.items():
        if route.scope in clients:
            assert await _ask(clients[route.scope], row, names) == 403, row
    problem = (await clients["write"].post("/constellations", json={"name": "x"})).json()
    assert problem["code"] == "permission_denied"
    assert "write" in problem["detail"]


async def test_the_right_scope_is_enough(place: Place) -> None:
    for number, row in enumerate(ROUTES):
        is_missing = row == "POST /constellations/restore" or _absent(row)
        expected = {404} if is_missing else {200, 201, 202, 204}
        if row.endswith(("/undo", "/redo", "/rollback", "/calendar/import")):
            expected = {422}  # a block that nobody changed has nothing to take back; JSON is not a calendar
        if row.endswith(("/repair", "/{c}/resume")):
            expected = {409}  # nothing is damaged, nobody halted it
        if row == "POST /constellations/{c}/agents/{a}/memory/{label}/share":
            expected = {404}  # there is no agent to lend it to
        if "/embeddings/" in row:
            expected = {409, 503}  # nothing is embedded yet, and perhaps nothing can be
        assert await _ask(place.admin, row, await _names(place, number)) in expected, row


async def test_a_token_makes_others_that_may_no_more(place: Place) -> None:
    c = await place.constellation()
    ann, bob = await place.client("ann", "write"), await place.client("bob", "write", "chat")
    made = (await ann.post("/tokens", json={"scopes": ["read"], "name": "reader", "days": 2})).json()
    assert (made["name"], made["scopes"], made["constellation_id"]) == ("reader", ["read"], None)
    reader = await place.stack.enter_async_context(client_of(place.url, made["token"]))
    assert (await reader.get("/me")).json()["username"] == "ann"
    listed = (await ann.get("/tokens")).json()["items"]
    assert [row["name"] for row in listed] == ["test", "reader"]
    assert made["token"] not in str(listed)

    async def refused(client: httpx2.AsyncClient, status: int, **body: Any) -> str:
        answer = await client.post("/tokens", json={"scopes": ["read"], **body})
        assert answer.status_code == status, answer.text
        return str(answer.json()["detail"])

    assert "scope write" in await refused(reader, 403)
    for scopes in (["chat"], ["admin"], ["read", "write", "chat"]):
        assert "scope" in await refused(ann, 403, scopes=scopes)
    await refused(ann, 422, scopes=[])
    await refused(ann, 422, scopes=["root"])
    await refused(ann, 422, days=0)
    assert "administrator" in await refused(ann, 403, user="bob")
    await refused(ann, 404, constellation="home")
    await refused(place.admin, 404, user="ann", constellation=c)  # that she could not use
    await refused(place.admin, 404, user="nobody")
    assert (await ann.get("/tokens?user=bob")).status_code == 403
    assert (await ann.get("/tokens?user=nobody")).status_code == 403

    own = (await place.admin.post("/tokens", json={"scopes": ["write"], "constellation": "home"})).json()
    assert own["constellation_id"] == c
    bound = await place.stack.enter_async_context(client_of(place.url, own["token"]))
    assert [row["id"] for row in (await bound.get("/tokens")).json()["items"]] == [own["id"]]

    short = (await ann.post("/tokens", json={"scopes": ["write"], "days": 1})).json()
    brief = await place.stack.enter_async_context(client_of(place.url, short["token"]))
    assert "cannot expire later" in await refused(brief, 403, days=2)
    heir = (await brief.post("/tokens", json={"scopes": ["read"]})).json()
    assert heir["expires_at"] == short["expires_at"]

    bobs = (await place.admin.get("/tokens?user=bob")).json()["items"][0]["id"]
    assert (await ann.delete(f"/tokens/{bobs}")).status_code == 404
    assert (await ann.delete(f"/tokens/{made['id']}")).status_code == 204
    assert (await reader.get("/me")).status_code == 401
    assert (await place.admin.delete(f"/tokens/{bobs}")).status_code == 204
    assert (await bob.get("/me")).status_code == 401
    weak = (await place.admin.post("/tokens", json={"scopes": ["write"]})).json()
    writer = await place.stack.enter_async_context(client_of(place.url, weak["token"]))
    strong = (await place.admin.post("/tokens", json={"scopes": ["admin"]})).json()["id"]
    assert (await writer.delete(f"/tokens/{strong}")).status_code == 403
