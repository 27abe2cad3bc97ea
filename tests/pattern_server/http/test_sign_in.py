"""Signing in, refreshing and out, as a client does it."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import trio

from pattern_core.ids import now_text
from pattern_db.tables import sign_ins, users
from pattern_server.credentials import ACCESS_S, LEEWAY_S
from pattern_server.sign_in import SIGN_IN_DAYS
from tests.pattern_server.place import Place, client_of

SECRET = "correct horse battery"


async def with_password(place: Place, name: str) -> None:
    """A user with a password."""
    accounts = place.parts.state.accounts
    await accounts.create_user(name)
    admin = await accounts.authenticate(place.parts.local_token)
    await place.parts.state.sign_ins.set_password(admin, name, SECRET, None)


@pytest.fixture
async def ann(place: Place) -> Place:
    await with_password(place, "ann")
    return place


async def sign_in(place: Place, name: str = "ann", password: str = SECRET) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=f"{place.url}/api/v1", trust_env=False) as stranger:
        return await stranger.post("/auth/login", json={"username": name, "password": password})


async def refresh(place: Place, pair: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=f"{place.url}/api/v1", trust_env=False) as stranger:
        return await stranger.post("/auth/refresh", json={"refresh_token": pair["refresh_token"]})


async def status(place: Place, pair: dict[str, Any]) -> int:
    async with client_of(place.url, pair["access_token"]) as client:
        return (await client.get("/me")).status_code


async def test_a_password_gives_tokens_that_work(ann: Place) -> None:
    answer = await sign_in(ann)
    pair = answer.json()
    assert (answer.status_code, pair["token_type"], pair["expires_in"]) == (200, "Bearer", ACCESS_S)
    async with client_of(ann.url, pair["access_token"]) as client:
        me = (await client.get("/me")).json()
        assert (me["username"], me["scopes"]) == ("ann", ["read", "chat", "write"])
        assert (await client.post("/constellations", json={"name": "mine"})).status_code == 201
        (listed,) = (await client.get("/tokens")).json()["items"]
        assert (listed["name"], listed["revoked_at"]) == ("sign-in", None)
    stored = repr(await ann.parts.state.accounts.database.read(users.list_tokens))
    assert not any(secret in stored for secret in pair.values() if isinstance(secret, str) and len(secret) > 20)


async def test_a_refresh_token_works_once_and_its_copy_ends_everything(ann: Place) -> None:
    first = (await sign_in(ann)).json()
    second = (await refresh(ann, first)).json()
    assert second["refresh_token"] != first["refresh_token"]
    assert [await status(ann, pair) for pair in (first, second)] == [200, 200]
    assert (await refresh(ann, first)).status_code == 401  # somebody has a copy: who, is unknown
    assert [await status(ann, pair) for pair in (first, second)] == [401, 401]
    assert (await refresh(ann, second)).status_code == 401
    other = (await sign_in(ann)).json()  # sign-ins are families of their own
    assert (await refresh(ann, other)).status_code == 200


async def test_two_refreshes_at_once_are_a_copy_too(ann: Place) -> None:
    pair = (await sign_in(ann)).json()
    found: list[int] = []

    async def ask() -> None:
        found.append((await refresh(ann, pair)).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert sorted(found) == [200, 401, 401]
    assert await status(ann, pair) == 401


@pytest.mark.parametrize("secret", ["", "ref_", "nonsense", f"ref_{'a' * 128}", f"ref_{'é' * 128}"])
async def test_what_was_never_a_refresh_token(ann: Place, secret: str) -> None:
    assert (await refresh(ann, {"refresh_token": secret})).status_code == 401


async def test_an_access_token_refreshes_nothing(ann: Place) -> None:
    pair = (await sign_in(ann)).json()
    assert (await refresh(ann, {"refresh_token": pair["access_token"]})).status_code in (401, 422)
    assert await status(ann, pair) == 200


async def test_wrong_names_and_passwords_get_the_same_answer(ann: Place) -> None:
    accounts = ann.parts.state.accounts
    await with_password(ann, "bob")
    await accounts.change_user("bob", disabled=True)
    await accounts.create_user("carl")  # without a password
    answers = [
        await sign_in(ann, name, password)
        for name, password in (("ann", "wrong horse"), ("nobody", SECRET), ("bob", SECRET), ("carl", SECRET))
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.json()["detail"] for answer in answers}) == 1


async def test_a_disabled_user_refreshes_nothing(ann: Place) -> None:
    pair = (await sign_in(ann)).json()
    accounts = ann.parts.state.accounts
    await accounts.change_user("ann", disabled=True)
    assert (await refresh(ann, pair)).status_code == 401
    await accounts.change_user("ann", disabled=False)
    assert (await refresh(ann, pair)).status_code == 200


async def test_signing_out_ends_the_sign_in_alone(ann: Place) -> None:
    one, other = (await sign_in(ann)).json(), (await sign_in(ann)).json()
    async with client_of(ann.url, one["access_token"]) as client:
        assert (await client.post("/auth/logout")).status_code == 204
    assert [await status(ann, pair) for pair in (one, other)] == [401, 200]
    assert (await refresh(ann, one)).status_code == 401
    client = await ann.client("ann2")  # with an API token
    assert (await client.post("/auth/logout")).status_code == 204
    assert (await client.get("/me")).status_code == 401
    assert (await ann.admin.post("/auth/logout")).status_code == 409


async def test_a_new_password_ends_the_sign_ins_of_the_old_one(ann: Place) -> None:
    pair = (await sign_in(ann)).json()
    admin = await ann.parts.state.accounts.authenticate(ann.parts.local_token)
    await ann.parts.state.sign_ins.set_password(admin, "ann", "another password", None)
    assert await status(ann, pair) == 401
    assert (await sign_in(ann)).status_code == 401
    assert (await sign_in(ann, password="another password")).status_code == 200


async def test_guessing_is_slowed_down_for_a_user_and_for_an_address(ann: Place) -> None:
    for _ in range(10):
        assert (await sign_in(ann, password="wrong horse")).status_code == 401
    locked = await sign_in(ann)  # also with the right password
    assert locked.status_code == 429
    assert 0 < int(locked.headers["retry-after"]) <= 60
    assert (await sign_in(ann, "ANN")).status_code == 429
    for number in range(20):  # the address has 30 attempts; the refused ones used some
        await sign_in(ann, f"user{number}")
    assert (await sign_in(ann, "somebody else")).status_code == 429
    client = await ann.client("carl")  # API tokens do not depend on it
    assert (await client.get("/me")).status_code == 200


async def test_the_right_password_forgives_wrong_ones(ann: Place) -> None:
    for _ in range(2):
        for _ in range(9):
            assert (await sign_in(ann, password="wrong horse")).status_code == 401
        assert (await sign_in(ann)).status_code == 200


async def test_a_rotated_key_is_valid_as_long_as_what_it_signed(ann: Place) -> None:
    state = ann.parts.state
    before = (await sign_in(ann)).json()
    key = await state.sign_ins.rotate_keys()
    after = (await sign_in(ann)).json()
    assert [await status(ann, pair) for pair in (before, after)] == [200, 200]
    signing, former = await state.accounts.database.read(sign_ins.keys, now_text(state.runtime.clock))
    assert signing.id == key.id
    assert former.retires_at is not None
    later = "2100-01-01T00:00:00.000Z"
    assert await state.accounts.database.read(sign_ins.keys, later) == [signing]


async def test_sign_ins_that_ended_are_deleted_with_the_next_one(ann: Place) -> None:
    first = (await sign_in(ann)).json()
    async with client_of(ann.url, first["access_token"]) as client:
        await client.post("/auth/logout")
    await sign_in(ann)
    user = await ann.parts.state.accounts.database.read(users.find, "ann")
    assert len(await ann.parts.state.accounts.database.read(users.list_tokens, user_id=user.id)) == 1


def test_the_times_are_what_the_documents_say() -> None:
    assert (ACCESS_S, LEEWAY_S, SIGN_IN_DAYS) == (900, 30, 30)
