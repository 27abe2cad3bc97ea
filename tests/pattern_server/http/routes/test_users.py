"""Users as administrators manage them: what they can do afterwards, and what they can do no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest
import trio

from pattern_db.tables import users
from tests.pattern_server.place import Place, client_of, read_events

SECRET = "correct horse battery"


async def signed_in(place: Place, name: str) -> httpx2.AsyncClient:
    """A client of a new user with a password."""
    made = await place.admin.post("/users", json={"username": name, "password": SECRET})
    assert made.status_code == 201, made.text
    pair = (await place.admin.post("/auth/login", json={"username": name, "password": SECRET})).json()
    return await place.stack.enter_async_context(client_of(place.url, pair["access_token"]))


@pytest.mark.parametrize("by", ["the API", "another process"])
async def test_a_disabled_user_is_out_and_their_streams_end(
    place: Place, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pattern_server.http.sse.RECHECK_S", 0.1)
    monkeypatch.setattr("pattern_server.accounts.RECHECK_S", 0.1)
    ann = await signed_in(place, "ann")
    assert (await ann.post("/constellations", json={"name": "anns"})).status_code == 201
    assert (await ann.post("/constellations/anns/agents", json={"name": "ada"})).status_code == 201
    ended, begun = trio.Event(), trio.Event()

    async def follow() -> None:
        async with ann.stream("GET", "/constellations/anns/events") as answer:
            await read_events(answer, begun=begun)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await ann.post("/constellations/anns/agents/ada/messages", json={"content": "Hello"})
        await begun.wait()
        if by == "the API":
            assert (await place.admin.patch("/users/ann", json={"disabled": True})).status_code == 200
            assert (await ann.get("/me")).status_code == 401
        else:
            database = place.parts.state.accounts.database
            row = await database.read(users.find, "ann")
            await database.write(users.update, replace(row, disabled_at=row.created_at))
        with trio.fail_after(5):
            await ended.wait()
    assert (await ann.get("/me")).status_code == 401
    login = {"username": "ann", "password": SECRET}
    assert (await place.admin.post("/auth/login", json=login)).status_code == 401
    assert (await place.admin.patch("/users/ann", json={"disabled": False})).status_code == 200
    assert (await place.admin.post("/auth/login", json=login)).status_code == 200


async def test_constellations_are_given_away_with_everything_in_them(place: Place) -> None:
    ann, ben = await signed_in(place, "ann"), await signed_in(place, "ben")
    for client, name in ((ann, "one"), (ann, "two"), (ben, "two")):
        assert (await client.post("/constellations", json={"name": name})).status_code == 201
    await ann.post("/constellations/one/agents", json={"name": "ada"})

    async def refused(**params: Any) -> str:
        answer = await place.admin.delete("/users/ann", params=params)
        assert answer.status_code == 409
        return str(answer.json()["detail"])

    assert "has constellations" in await refused()
    assert "ben already has two" in await refused(give_to="ben")
    assert "ann already has" in await refused(give_to="ann")
    assert (await place.admin.delete("/users/ann?give_to=nobody")).status_code == 404
    assert (await ann.patch("/constellations/two", json={"name": "three"})).status_code == 200
    assert (await place.admin.delete("/users/ann?give_to=ben")).status_code == 204
    assert (await ann.get("/me")).status_code == 401
    assert {row["name"] for row in (await ben.get("/constellations")).json()["items"]} == {"one", "two", "three"}
    assert (await ben.get("/constellations/one/agents/ada")).status_code == 200
    assert (await place.admin.get("/users/ann")).status_code == 404


async def test_a_user_is_deleted_with_their_constellations_only_if_one_says_so(place: Place) -> None:
    ann = await signed_in(place, "ann")
    made = (await ann.post("/constellations", json={"name": "one"})).json()
    assert (await place.admin.delete("/users/ann?delete_constellations=true")).status_code == 204
    assert (await place.admin.get(f"/constellations/{made['id']}")).status_code == 404
    folder = place.parts.state.config.data_dir / "constellations" / made["id"]
    assert not folder.exists()


async def test_one_administrator_always_remains(place: Place) -> None:
    for answer in (
        await place.admin.patch("/users/admin", json={"is_admin": False}),
        await place.admin.patch("/users/admin", json={"disabled": True}),
        await place.admin.delete("/users/admin"),
        await place.admin.delete("/users/admin?delete_constellations=true"),
    ):
        assert answer.status_code == 409
        assert "no administrator" in answer.json()["detail"]
    assert (await place.admin.post("/users", json={"username": "root", "is_admin": True})).status_code == 201
    assert (await place.admin.delete("/users/admin")).status_code == 204
    me = (await place.admin.get("/me")).json()  # the token of this run goes over to who is left
    assert (me["username"], me["is_admin"]) == ("root", True)


async def test_who_loses_administration_loses_it_at_once(place: Place) -> None:
    root = await signed_in(place, "root")
    assert (await root.get("/users")).status_code == 403
    assert (await place.admin.patch("/users/root", json={"is_admin": True})).status_code == 200
    pair = (await place.admin.post("/auth/login", json={"username": "root", "password": SECRET})).json()
    async with client_of(place.url, pair["access_token"]) as client:
        assert (await client.get("/users")).status_code == 200
        assert (await place.admin.patch("/users/root", json={"is_admin": False})).status_code == 200
        assert (await client.get("/users")).status_code == 403
        assert (await client.get("/me")).json()["is_admin"] is False


async def test_an_api_token_sets_no_password(place: Place) -> None:
    """It would outlive the token's expiry."""
    ann = await place.client("ann")
    answer = await ann.put("/users/ann/password", json={"password": SECRET})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert (await ann.put("/users/ann/password", json={"password": SECRET, "current": SECRET})).status_code == 403


async def test_names_and_addresses_are_unique_and_sound(place: Place) -> None:
    for body in ({"username": ""}, {"username": "a/b"}, {"username": "a", "email": "nowhere"}, {"username": "a" * 101}):
        assert (await place.admin.post("/users", json=body)).status_code == 422
    await place.admin.post("/users", json={"username": "ann", "email": "ann@example.org"})
    taken = await place.admin.post("/users", json={"username": "anna", "email": "ANN@example.org"})
    assert taken.status_code == 409
    await place.admin.post("/users", json={"username": "ben"})
    assert (await place.admin.patch("/users/ben", json={"username": "ANN"})).status_code == 409
    assert (await place.admin.patch("/users/ben", json={"username": None})).status_code == 422
