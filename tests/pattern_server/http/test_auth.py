"""Who may do what, route by route: made from the application's own list of routes, so that none can be forgotten."""

from __future__ import annotations

import base64
import hmac
import string
from dataclasses import replace
from string import Formatter
from typing import Any

import httpx2
import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pattern_core.ids import Randomness, now_text, seeded_randomness
from pattern_core.testing.model import ScriptedProvider, calls, says
from pattern_db.tables import sign_ins, users
from pattern_db.tables.sign_ins import SigningKeyRow
from pattern_server.accounts import RECHECK_S, Unauthorized
from pattern_server.credentials import LEEWAY_S
from pattern_server.http.app import api_routes, build_app
from tests.pattern_server.place import API, Place, client_of

FROM_FILES = ("POST /constellations/restore", "POST /constellations/import")  # of which there are none
# The body of a proper request. A route that takes one and has no row here fails the test.
BODIES: dict[str, Any] = {
    "POST /constellations": {"name": "another"},
    "POST /constellations/restore": {"file": "/nowhere.db", "name": "restored"},
    "POST /constellations/restore/check": {"file": "/nowhere.db"},
    "POST /constellations/{c}/restore": {"file": "/nowhere.db"},
    "POST /constellations/{c}/export": {},
    "POST /constellations/import": {"file": "/nowhere.car", "name": "imported"},
    "POST /constellations/import/check": {"file": "/nowhere.car"},
    "PATCH /constellations/{c}": {"name": "renamed"},
    "POST /constellations/{c}/merge": {"from": "another"},
    "POST /constellations/{c}/fork": {"name": "forked"},
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
    "POST /constellations/{c}/agents/{a}/sessions": {"title": "Rome"},
    "PATCH /constellations/{c}/agents/{a}/sessions/{session_id}": {"title": "Naples"},
    "POST /constellations/{c}/agents/{a}/sessions/{session_id}/fork": {},
    "POST /constellations/{c}/schedules": {"name": "often", "agent": "ada", "message": "Hello", "every": 3600},
    "POST /constellations/{c}/inbox/{m}/retry": {},
    "POST /constellations/{c}/calendar/events": {"title": "Walk", "starts_at": "2026-01-05"},
    "PATCH /constellations/{c}/calendar/events/{e}": {"title": "Run"},
    "PATCH /constellations/{c}/calendar/events/{e}/occurrences/{nominal}": {"notes": "!"},
    "POST /constellations/{c}/calendar/import": "BEGIN:VCALENDAR",
    "POST /constellations/{c}/webhooks": {"name": "pager", "url": "https://example.org/", "secret": "pager"},
    "POST /constellations/{c}/sources": {"name": "news", "kind": "webhook", "agent": "ada", "config": {"secret": "x"}},
    "PATCH /constellations/{c}/sources/{src}": {"enabled": False},
    "PUT /constellations/{c}/sources/{src}/agents/{a}": {},
    "POST /constellations/{c}/sources/{src}/people": {"person": "7"},
    "PATCH /constellations/{c}/schedules/{s}": {"message": "Hello again"},
    "POST /constellations/{c}/handoffs": {"content": "Look at the plan."},
    "POST /constellations/{c}/assignments": {"description": "Read the report."},
    "PATCH /constellations/{c}/assignments/{id}": {"status": "cancelled"},
    "POST /constellations/{c}/overview/notable": {"description": "We move in May."},
    "PUT /constellations/{c}/state/{key}": {"value": "ada"},
    "POST /constellations/{c}/workspaces": {"workspace": "shop"},
    "POST /constellations/{c}/workspaces/{workspace}/roots": {"path": "/srv/shop"},
    "PATCH /constellations/{c}/workspaces/{workspace}": {"in_prompts": False},
    "POST /constellations/{c}/workspaces/{workspace}/aliases": {"system": "delta", "alias": "srv_shop-main"},
    "POST /constellations/{c}/workspaces/{workspace}/merge": {"into": "other"},
    "POST /constellations/{c}/programs/{program}": "{}",
    "POST /constellations/{c}/decisions": {"workspace": "shop", "title": "Use tabs", "text": "Always."},
    "PATCH /constellations/{c}/decisions/{decision_id}": {"archived": True},
    "POST /constellations/{c}/guidance": {"workspace": "shop", "content": "Run make check before a push"},
    "PATCH /constellations/{c}/guidance/{guidance}": {"state": "active"},
    "POST /constellations/{c}/guidance/{guidance}/feedback": {"verdict": "used"},
    "POST /constellations/{c}/tasks": {"title": "Pay the rent"},
    "PATCH /constellations/{c}/tasks/{task_id}": {"status": "completed"},
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
    "POST /users": {"username": "dora", "password": "correct horse battery"},
    "PATCH /users/{u}": {"email": "admin@example.org"},
    "PUT /users/{u}/password": {"password": "correct horse battery"},
    "POST /auth/login": {"username": "admin", "password": "not the password"},
    "POST /auth/refresh": {"refresh_token": f"ref_{'0' * 128}"},
    "POST /auth/{provider}/start": {"redirect_url": "http://127.0.0.1:8471/"},
    "POST /auth/{provider}/callback": {"ticket": "t", "state": "s", "code": "c"},
    "POST /auth/{provider}/login": {"identifier": "ann.example.org", "password": "abcd-efgh-ijkl-mnop"},
    "POST /me/identities": {"provider": "nowhere", "ticket": "t", "state": "s", "code": "c"},
    "POST /models/test": {"model": "embedded/rules-1"},
    "PUT /models/default": {"model": "embedded/rules-1"},
    "PUT /constellations/{c}/budgets": {"scope": "constellation", "period": "day", "unit": "tokens", "amount": 100},
    "POST /v1/chat/completions": {"model": "agent:{c}/ada", "messages": [{"role": "user", "content": "Hello"}]},
    "POST /v1/responses": {"model": "agent:{c}/ada", "input": "Hello"},
    "POST /api/chat": {"message": "Hello"},
    "POST /api/chat/{session_id}": {"message": "Hello"},
    "PATCH /api/session/{session_id}": {"title": "Rome"},
    "PATCH /api/session/{session_id}/cwd": {"workingDir": "/"},
    "POST /v1/embeddings": {"model": "hashed-words", "input": "Hello"},
    "POST /mcp/{c}": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    },
}
# What each row's own constellation holds; any other name in a path stands for something that is not there.
MADE = {"c", "a", "t", "label", "key", "u"}
# Without a token: what signing in answers to what proves nothing; test_sign_in.py and test_identities.py say more.
OPEN = {
    "POST /auth/login": 401,
    "POST /auth/refresh": 401,
    "GET /auth/providers": 200,
    "POST /hooks/{account}": 404,  # a request proves itself; test_sources.py says more
    "POST /auth/{provider}/start": 404,
    "POST /auth/{provider}/callback": 404,
    "POST /auth/{provider}/login": 404,
}
# They need no token, or end the caller's.
OF_SIGN_INS = {*OPEN, "POST /auth/logout"}
# Other paths that need none: they say nothing about anyone.
PUBLIC = {*("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/page.css", "/docs/page.js")}
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": base64.b64encode(bytes(16)).decode(),
}
# The body, or the id in the path, of all other requests in OpenAI's form says which constellation they are for.
OF_NO_CONSTELLATION = {"GET /v1/models", "POST /v1/embeddings"}
READS = ("GET ", "POST /v1/embeddings")
WEAKER = {"chat": ["read"], "write": ["chat"], "admin": ["write", "chat"]}

NOW = "2026-11-21T00:00:00.000Z"
SECRET = "correct horse battery"
ROUTES = {
    f"{method} {route.path.removeprefix(API)}": route
    for route in api_routes()
    for method in sorted(route.methods or ())
}


def test_every_route_with_a_body_has_a_row_and_every_row_a_route() -> None:
    assert {row for row, route in ROUTES.items() if route.body_field is not None} <= set(BODIES) <= set(ROUTES)
    assert {row for row, route in ROUTES.items() if route.scope is None} == set(OPEN)


async def test_every_path_that_is_not_of_the_api_is_listed(place: Place) -> None:
    app = build_app(place.parts.state)
    app.load()
    everything = {getattr(route, "path", "") for route in app.routes}
    assert everything - {route.path for route in ROUTES.values()} == PUBLIC
    async with httpx2.AsyncClient(base_url=place.url, trust_env=False, timeout=60) as stranger:
        assert {path: (await stranger.get(path)).status_code for path in PUBLIC} == dict.fromkeys(PUBLIC, 200)
        others = [*(f"{path}x" for path in PUBLIC), "/docs/../api/v1/me", "/healthz/", "/mcp", "/v1/models", "/api/"]
        others += [f"{API}/auth/{each}" for each in ("", "logout", "x/start/y", "start", "callback/", "providers/x")]
        assert {path: (await stranger.get(path)).status_code for path in others} == dict.fromkeys(others, 401)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def _ask(client: httpx2.AsyncClient, row: str, names: dict[str, str]) -> int:
    """The status of a proper request of a route; of an endless stream only the head is read."""
    method, path = row.partition(" ")[0], ROUTES[row].path.replace(":path}", "}")
    where = client.base_url.copy_with(path=path.format(**names, **dict.fromkeys(_absent(row), "nowhere")))
    headers = UPGRADE if row.endswith("/ws") else None
    body = BODIES.get(row)
    if "/v1/" in row and body is not None:
        body = {**body, "model": body["model"].format(**names)}
    async with client.stream(method, where, json=body, headers=headers) as answer:
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            await answer.aread()
        return answer.status_code


def _absent(row: str) -> set[str]:
    """The names in a row's path of things that no test makes: `id`, for one."""
    return {name for _text, name, _spec, _conversion in Formatter().parse(row) if name} - MADE


async def _names(place: Place, number: int) -> dict[str, str]:
    """A constellation of its own for one row, with an agent, a block, a turn and a shared value."""
    c = await place.constellation(f"home{number}")
    turn = await place.say("Hello", where=f"home{number}/agents/ada")
    await place.admin.put(f"/constellations/{c}/state/job", json={"value": 1})
    return {"c": c, "a": "ada", "t": turn.json()["turn_id"], "label": "human", "key": "job", "u": "admin"}


async def test_without_a_token_nothing_is_answered(place: Place) -> None:
    names = {"c": await place.constellation(), "a": "ada", "t": "turn_x", "label": "human", "key": "job", "u": "admin"}
    for headers in ({}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer nope"}):
        async with httpx2.AsyncClient(
            base_url=place.url + API, headers=headers, trust_env=False, timeout=60
        ) as stranger:
            found = {row: await _ask(stranger, row, names) for row in ROUTES}
            assert found == {**dict.fromkeys(ROUTES, 401), **OPEN}
            answer = await stranger.get("/me")
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["content-type"] == "application/problem+json"
            assert (await stranger.get("/no/such/path")).status_code == 401


def _forged(token: str, key: SigningKeyRow) -> dict[str, str]:
    """What an access token would be if one thing in it were wrong."""
    claims = jwt.decode(token, options={"verify_signature": False})
    header = jwt.get_unverified_header(token)

    def made(secret: Any = key.secret, algorithm: str = "HS256", kid: str = key.id, **changes: Any) -> str:
        return jwt.encode({**claims, **changes}, secret, algorithm, headers={**header, "alg": algorithm, "kid": kid})

    pair = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = pair.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = token.rpartition(".")[0]
    return {
        "expired": made(exp=claims["iat"] - LEEWAY_S - 1),
        "not yet valid": made(nbf=claims["iat"] + 600),
        "alg none": made(secret=None, algorithm="none"),
        "signed by another kind of key": made(pair, "RS256"),
        "signed with a public key as secret": f"{body}.{b64(hmac.digest(public, body.encode(), 'sha256'))}",
        "audience": made(aud="elsewhere"),
        "issuer": made(iss="elsewhere"),
        "key": made(kid="../key"),
        "type": made(token_type="refresh"),
        "another user's sign-in": made(sub="user_x"),
        "no such sign-in": made(sid="token_x"),
        "truncated": token[:-2],
    }


async def test_no_wrong_access_token_is_answered(place: Place) -> None:
    """Every route × every way in which an access token can be wrong."""
    names = dict.fromkeys(MADE, "nowhere") | {"c": await place.constellation(), "a": "ada", "u": "admin"}
    state = place.parts.state
    await state.sign_ins.set_password(await state.accounts.authenticate(place.parts.local_token), "admin", SECRET, None)

    async def signed_in() -> dict[str, Any]:
        answer = await place.admin.post("/auth/login", json={"username": "admin", "password": SECRET})
        return dict(answer.json())

    good, revoked, replayed = await signed_in(), await signed_in(), await signed_in()
    (key,) = await state.accounts.database.read(sign_ins.keys, now_text(state.runtime.clock))
    (admin,) = await state.accounts.users()
    old, gone = [
        (await state.accounts.create_token(admin, name="t", scopes=["admin"], expires_at=at))[1] for at in (NOW, None)
    ]
    for token in (revoked["access_token"], gone):
        async with client_of(place.url, token) as client:
            assert (await client.post("/auth/logout")).status_code == 204
    for expected in (200, 401):  # the second use ends the sign-in
        refresh = {"refresh_token": replayed["refresh_token"]}
        assert (await place.admin.post("/auth/refresh", json=refresh)).status_code == expected
    wrong = {
        **_forged(good["access_token"], key),
        "revoked": revoked["access_token"],
        "replayed refresh": replayed["access_token"],
        "expired API token": old,
        "revoked API token": gone,
        "refresh token": good["refresh_token"],
        "half of a refresh token": good["refresh_token"][4:68],
    }
    rows = [row for row in ROUTES if row not in OF_SIGN_INS]
    for why, token in wrong.items():
        async with client_of(place.url, token) as stranger:
            assert {row: await _ask(stranger, row, names) for row in rows} == dict.fromkeys(rows, 401), why
    socket = f"/constellations/{names['c']}/ws"
    async with httpx2.AsyncClient(base_url=place.url + API, trust_env=False) as browser:
        for why, token in {**wrong, "good": good["access_token"]}.items():  # where a browser's WebSocket has it
            offered = {**UPGRADE, "sec-websocket-protocol": f"pattern, bearer.{token}"}
            async with browser.stream("GET", socket, headers=offered) as answer:
                assert answer.status_code == (101 if why == "good" else 401), why
    async with client_of(place.url, good["access_token"]) as client:
        assert (await client.get("/me")).json()["username"] == "admin"
        await state.accounts.database.write(users.update, replace(admin, disabled_at=NOW))  # as another process does it
        await trio.sleep(RECHECK_S)
        assert {row: await _ask(client, row, names) for row in rows} == dict.fromkeys(rows, 401)


def _mutated(token: str, chance: Randomness) -> str:
    letters = f"{string.ascii_letters}{string.digits}-_.=+/ \0é"
    at, letter = chance.randrange(len(token)), chance.choice(letters)
    ways = (
        token[:at] + letter + token[at + 1 :],
        token[:at] + letter + token[at:],
        token[:at] + token[at + 1 :],
        token[:at] + token[at : at + 20].swapcase() + token[at + 20 :],
        token[at:] + token[:at],
        token[:at],
        token + token[at:],
    )
    return chance.choice(ways)


async def test_no_mutated_token_is_let_in(place: Place) -> None:
    """10,000 variants of an access token, an API token and a refresh token; each hundredth also over HTTP."""
    state, chance = place.parts.state, seeded_randomness(5)
    await state.sign_ins.set_password(await state.accounts.authenticate(place.parts.local_token), "admin", SECRET, None)
    pair = (await place.admin.post("/auth/login", json={"username": "admin", "password": SECRET})).json()
    api = (await place.admin.post("/tokens", json={"scopes": ["admin"]})).json()["token"]
    genuine = {pair["access_token"], api, pair["refresh_token"], place.parts.local_token}
    async with httpx2.AsyncClient(base_url=place.url + API, trust_env=False) as stranger:
        for number in range(10_000):
            secret = _mutated(chance.choice(sorted(genuine)), chance)
            if secret in genuine:
                continue
            with pytest.raises(Unauthorized):
                await state.accounts.authenticate(secret)
            if number % 100 == 0 and "\0" not in secret:
                headers = {b"Authorization": f"Bearer {secret}x".encode()}
                assert (await stranger.get("/me", headers=headers)).status_code == 401
        for secret in (pair["access_token"], api):
            await state.accounts.authenticate(secret)


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
    _, secret = await accounts.create_token(admin, name="bound", scopes=["admin"], constellation_id=own)
    async with client_of(place.url, secret) as bound:
        for row, route in ROUTES.items():
            if row in OF_SIGN_INS:
                continue
            is_named = "/v1/" in row and row not in OF_NO_CONSTELLATION
            is_elsewhere = ("{c}" in route.path or is_named) and route.scope != "admin"
            expected = 404 if is_elsewhere else 200 if row.startswith(READS) and route.scope != "admin" else 403
            if " /api/" in row:  # their paths name no constellation: the token does
                expected = 404 if "{session_id}" in row else 200
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
    for number, row in enumerate(row for row in ROUTES if row not in OF_SIGN_INS):
        is_missing = row.startswith(FROM_FILES) or row.endswith("{c}/restore") or _absent(row)
        expected = {404} if is_missing else {200, 201, 202, 204}
        if row.endswith(("/undo", "/redo", "/rollback", "/calendar/import")):
            expected = {422}  # a block that nobody changed has nothing to take back; JSON is not a calendar
        if row.endswith(("/repair", "/{c}/resume")):
            expected = {409}  # nothing is damaged, nobody halted it
        if row == "POST /constellations/{c}/agents/{a}/memory/{label}/share":
            expected = {404}  # there is no agent to lend it to
        if row.endswith("/ws"):
            expected = {101}
        if row == "POST /me/identities":
            expected = {404}  # there is no such provider
        if row == "DELETE /users/{u}":
            expected = {409}  # the last administrator, with constellations
        if row in ("POST /constellations/{c}/webhooks", "POST /constellations/{c}/sources"):
            expected = {422}  # no secret of this name is configured
        if row == "DELETE /mcp/{c}":
            expected = {400}  # without a session there is none to end
        if row.endswith(("/context", "/programs/{program}")):
            expected = {422}  # no workspace is named
        if row == "DELETE /constellations/{c}/workspaces/{workspace}/roots":
            expected = {422}  # no folder is named
        if row.startswith("GET /constellations/{c}/guidance") and not row.endswith("{guidance}"):
            expected = {422}  # no workspace is named
        if row == "DELETE /constellations/{c}/guidance/{guidance}/feedback":
            expected = {422}  # no verdict is named
        if " /api/" in row:
            expected = {409}  # the administrator has several constellations
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


async def test_who_may_only_chat_is_trusted_less_and_so_is_what_comes_of_it(
    place: Place, scripted: ScriptedProvider
) -> None:
    partner, guest = await place.client("mia"), await place.client("mia", "chat")
    await partner.post("/constellations", json={"name": "shop"})
    rules = [{"tool": "archive", "type": "requires_trust"}]
    made = await partner.post("/constellations/shop/agents", json={"name": "ada", "tool_rules": rules})
    assert made.status_code == 201, made.text
    shown = list[tuple[str, str, str]]()
    for client in (guest, partner):
        scripted._script = iter([calls("archive", {"text": "The key is under the mat."}), says("Done.")])
        answer = await client.post("/constellations/shop/agents/ada/messages", json={"content": "Keep it."})
        turn = answer.json()
        [result] = [one["content"] for one in turn["messages"] if one["role"] == "tool"]
        shown.append((turn["sender"].partition(":")[0], turn["trust"], result))
    [(*low, refused), (*high, kept)] = shown
    assert (low, high) == (["conversant", "conversant"], ["user", "partner"])
    assert refused == "Not run: it needs the trust level partner, and this turn has conversant."
    assert "Not run" not in kept
    listed = (await partner.get("/constellations/shop/turns")).json()["items"]
    assert [one["trust"] for one in listed] == ["partner", "conversant"]
    about = (await partner.get("/constellations/shop/usage?by=cause")).json()
    assert [(one["key"], one["calls"]) for one in about["items"]] == [("person", 4)]
