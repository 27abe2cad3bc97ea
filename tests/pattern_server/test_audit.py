"""The audit log as an administrator reads it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import trio

from pattern_db.connection import Connection
from pattern_db.errors import DiskFull
from pattern_db.tables import audit_log, users
from pattern_server import audit
from pattern_server.audit import BEGUN, is_audited
from pattern_server.http.app import api_routes
from tests.pattern_server.place import Place, client_of

SECRET = "correct horse battery"


async def entries(place: Place) -> list[tuple[str, str, int]]:
    """What was done, oldest first, without the entries of what began."""
    rows = (await place.admin.get("/audit?limit=500")).json()["items"]
    return [(row["action"], row["object"], row["status"]) for row in reversed(rows) if row["status"] != BEGUN]


async def test_what_is_done_is_in_the_log_with_who_and_from_where(place: Place) -> None:
    ann = (await place.admin.post("/users", json={"username": "ann", "password": SECRET})).json()["id"]
    login = {"username": "ann", "password": SECRET}
    pair = (await place.admin.post("/auth/login", json=login)).json()
    async with client_of(place.url, pair["access_token"]) as client:
        made = (await client.post("/constellations", json={"name": "anns"})).json()["id"]
        await client.post("/constellations/anns/agents", json={"name": "ada"})
        await client.delete("/constellations/anns/agents/ada")
        token = (await client.post("/tokens", json={"scopes": ["read"]})).json()["id"]
        await client.delete(f"/tokens/{token}")
        await client.get("/me")
        await client.post("/constellations/anns/backup")
        await client.delete(f"/constellations/{made}")
    found = await entries(place)
    assert found == [
        ("users.create", f"/users/{ann}", 201),
        ("auth.login", f"/users/{ann}", 200),
        ("constellations.create", f"/constellations/{made}", 201),
        ("agents.delete", "/constellations/anns/agents/ada", 204),
        ("tokens.create", f"/tokens/{token}", 201),
        ("tokens.revoke", f"/tokens/{token}", 204),
        ("constellations.backup", "/constellations/anns/backup", 201),
        ("constellations.delete", f"/constellations/{made}", 204),
    ]
    rows = (await place.admin.get("/audit")).json()["items"]
    assert {row["user_id"] for row in rows[:-2]} == {ann}
    assert {row["address"] for row in rows} == {"127.0.0.1"}
    assert {row["token_id"] is None for row in rows[:-2]} == {False}
    check = (await place.admin.get("/audit/verify")).json()
    assert (check["entries"], check["is_intact"], len(check["head"])) == (15, True, 64)
    begun = [(row["action"], row["object"]) for row in reversed(rows) if row["status"] == BEGUN]
    assert begun[:2] == [("users.create", "/users"), ("constellations.create", "/constellations")]
    assert [action for action, _ in begun] == [action for action, _, _ in found if action != "auth.login"]


def test_deletions_are_audited_wherever_they_are() -> None:
    silent = [route.path for route in api_routes() if "DELETE" in (route.methods or ()) and not route.is_audited]
    assert silent == ["/mcp/{c}"]
    assert not any(route.is_audited for route in api_routes() if "GET" in (route.methods or ()))
    assert is_audited({"POST"}, ["approvals"])
    assert not is_audited({"POST"}, ["messages"])


async def test_refused_sign_ins_are_in_the_log_without_what_was_typed(place: Place) -> None:
    ann = (await place.admin.post("/users", json={"username": "ann", "password": SECRET})).json()["id"]
    for name in ("ann", "my secret typed into the wrong field"):
        await place.admin.post("/auth/login", json={"username": name, "password": "wrong horse"})
    pair = (await place.admin.post("/auth/login", json={"username": "ann", "password": SECRET})).json()
    for _ in range(2):
        await place.admin.post("/auth/refresh", json={"refresh_token": pair["refresh_token"]})
    assert (await entries(place))[1:] == [
        ("auth.login", f"/users/{ann}", 401),
        ("auth.login", "/users", 401),
        ("auth.login", f"/users/{ann}", 200),
        ("auth.refresh", f"/users/{ann}", 401),
    ]
    text = (await place.admin.get("/audit")).text
    assert not any(word in text for word in ("secret", SECRET, "wrong horse", pair["refresh_token"]))


async def test_who_leaves_does_not_keep_what_was_done_out_of_the_log(place: Place) -> None:
    log = place.parts.state.accounts.audit
    with trio.CancelScope() as scope:
        scope.cancel()
        await log.conclude(log.entry("users.delete", "/users/ann", status=204, address="", user_id=None))
    assert await entries(place) == [("users.delete", "/users/ann", 204)]


async def test_no_text_of_a_conversation_is_in_the_log(home: Place) -> None:
    await home.say("a very private matter")
    await home.admin.put("/constellations/home/agents/ada/memory/human", json={"content": "a very private matter"})
    await home.admin.delete("/constellations/home/agents/ada/memory/human")
    text = (await home.admin.get("/audit")).text
    assert "memory/human" in text
    assert "private" not in text


async def test_what_fails_is_in_the_log_and_what_may_not_be_asked_is_not(home: Place) -> None:
    before = await entries(home)
    ann = await home.client("ann", "read")
    for answer in (
        await home.admin.delete("/constellations/nowhere"),
        await home.admin.post("/users", json={"username": ""}),
        await home.admin.post("/users", json={"username": 7}),
        await ann.post("/tokens", json={"scopes": ["read"]}),
        await home.admin.get("/users"),
    ):
        assert isinstance(answer, httpx2.Response)
    assert (await entries(home))[len(before) :] == [
        ("constellations.delete", "/constellations/nowhere", 404),
        ("users.create", "/users", 422),
        ("users.create", "/users", 422),
    ]


async def test_the_log_is_read_page_by_page(place: Place) -> None:
    for number in range(5):
        await place.admin.post("/users", json={"username": f"u{number}"})
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = (await place.admin.get("/audit", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        seen += [row["seq"] for row in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [*range(10, 0, -1)]
    assert (await place.admin.get("/audit?cursor=WyJ4Il0")).status_code == 422


async def test_a_changed_log_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CHECKED_AT_ONCE", 2)
    for number in range(5):
        await place.admin.post("/users", json={"username": f"u{number}"})
    assert (await place.admin.get("/audit/verify")).json()["entries"] == 10

    def tamper(connection: Connection) -> None:
        connection.execute("DROP TRIGGER audit_log_no_update")
        connection.execute("UPDATE audit_log SET address = '10.0.0.1' WHERE seq = 4")

    await place.parts.state.accounts.database.write(tamper)
    check = (await place.admin.get("/audit/verify")).json()
    assert (check["entries"], check["is_intact"]) == (3, False)


@pytest.mark.parametrize("fits", [0, 1])
async def test_nothing_is_done_that_cannot_be_stored_before(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fits: int
) -> None:
    """On a full disk, or with room for one entry."""
    made = (await place.admin.post("/users", json={"username": "ann", "password": SECRET})).json()["id"]
    append, room = audit_log.append, [None] * fits

    def full(connection: Connection, row: Any) -> None:
        if not room:
            raise DiskFull("the disk is full")
        room.pop()
        append(connection, row)

    monkeypatch.setattr("pattern_db.tables.audit_log.append", full)
    capsys.readouterr()
    assert (await place.admin.delete(f"/users/{made}")).status_code == (204 if fits else 507)
    if fits:
        logged = json.loads(capsys.readouterr().err)
        assert (logged["event"], logged["object"]) == ("audit entry not stored", f"/users/{made}")
        return
    for password in (SECRET, "wrong horse"):
        answer = await place.admin.post("/auth/login", json={"username": "ann", "password": password})
        assert answer.status_code == 507
    assert await place.parts.state.accounts.database.read(users.list_tokens, user_id=made) == []
