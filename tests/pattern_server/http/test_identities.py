"""Signing in with other providers, against some of them on loopback: what is accepted, and that nothing else is."""

from __future__ import annotations

import base64
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pattern_core.ids import SystemClock
from pattern_core.testing import StoppedClock
from pattern_db.connection import Connection
from pattern_server.identities import TICKET_S, TICKETS_MAX
from pattern_server.rates import Rate
from tests.pattern_server.issuer import (
    APP_PASSWORD,
    CLIENT,
    HANDLE,
    KEY,
    SECRET,
    STRANGE_KEY,
    Issuer,
    browse,
    issuing,
    signed,
)
from tests.pattern_server.place import API, Place, client_of, config_for, serving

BACK = {"redirect_url": "http://127.0.0.1:8471/"}
PASSWORD = "correct horse battery"
HOME = {"name": "home", "redirect_url": None, "takes_app_passwords": False}
ACCOUNT = {"identifier": HANDLE, "password": APP_PASSWORD}


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing(SystemClock()) as found:
        yield found


@pytest.fixture
async def other() -> AsyncIterator[Issuer]:
    """A second provider, for what is mixed up."""
    async with issuing(SystemClock()) as found:
        yield found


@pytest.fixture
async def place(alone: Path, issuer: Issuer, other: Issuer) -> AsyncIterator[Place]:
    """A server with four providers, and the user ann, who has a password."""
    ours = {"client_id": CLIENT, "client_secret": SECRET}
    plain = {
        "authorization_url": f"{issuer.url}/authorize",
        "token_url": f"{issuer.url}/token",
        "user_url": f"{issuer.url}/user",
        "scopes": ["identify"],
    }
    sign_in = {
        "home": {"issuer": issuer.url, **ours},
        "work": {"issuer": other.url, "scopes": ["openid", "profile"], **ours},
        "chat": {**plain, **ours},
        "sky": {"atproto_url": f"{issuer.url}/"},
    }
    async with serving(config_for(alone, sign_in=sign_in)) as found:
        made = await found.admin.post("/users", json={"username": "ann", "password": PASSWORD})
        assert made.status_code == 201, made.text
        yield found


async def begin(place: Place, provider: str) -> dict[str, str]:
    """What a client sends in the end, after the person has been at the provider's page."""
    async with httpx2.AsyncClient(base_url=place.url + API, trust_env=False) as stranger:
        begun = await stranger.post(f"/auth/{provider}/start", json=BACK)
    assert begun.status_code == 200, begun.text
    return {"ticket": begun.json()["ticket"], **await browse(begun.json()["url"])}


async def finish(place: Place, provider: str, back: dict[str, str]) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=place.url + API, trust_env=False) as stranger:
        return await stranger.post(f"/auth/{provider}/callback", json=back)


async def signed_in(place: Place, pair: dict[str, Any] | None = None) -> httpx2.AsyncClient:
    """A client of ann's."""
    if pair is None:
        pair = (await place.admin.post("/auth/login", json={"username": "ann", "password": PASSWORD})).json()
    return await place.stack.enter_async_context(client_of(place.url, pair["access_token"]))


async def link(place: Place, provider: str) -> httpx2.Response:
    ann = await signed_in(place)
    return await ann.post("/me/identities", json={"provider": provider, **await begin(place, provider)})


@pytest.mark.parametrize(("provider", "person"), [("home", "ann-at-home"), ("chat", 80351110224678912)])
async def test_a_linked_identity_signs_in(place: Place, issuer: Issuer, provider: str, person: str | int) -> None:
    issuer.person = person
    assert (await place.admin.get("/auth/providers")).json()["items"][1] == HOME
    refused = await finish(place, provider, await begin(place, provider))
    assert (refused.status_code, "pattern identity link" in refused.json()["detail"]) == (401, True)
    made = await link(place, provider)
    assert made.status_code == 201, made.text
    where = issuer.url if provider == "home" else f"{issuer.url}/user"
    assert made.json()["provider_id"] == f"{where}#{person}"
    pair = await finish(place, provider, await begin(place, provider))
    assert pair.status_code == 200, pair.text
    ann = await signed_in(place, pair.json())
    assert (await ann.get("/me")).json()["username"] == "ann"
    assert [row["id"] for row in (await ann.get("/me/identities")).json()["items"]] == [made.json()["id"]]
    refresh = {"refresh_token": pair.json()["refresh_token"]}
    assert (await place.admin.post("/auth/refresh", json=refresh)).status_code == 200
    rows = (await place.admin.get("/audit")).json()["items"]
    found = [row["status"] for row in reversed(rows) if row["action"] == "auth.login"]
    assert found == [401, 200, 200]

    assert (await ann.delete(f"/me/identities/{made.json()['id']}")).status_code == 204
    assert (await ann.get("/me")).status_code == 401  # the sign-in ended with it
    assert (await finish(place, provider, await begin(place, provider))).status_code == 401


async def test_an_account_with_an_app_password_signs_in(place: Place, issuer: Issuer) -> None:
    issuer.person = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"

    async def login(name: str = "sky", **changes: str) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=place.url + API, trust_env=False) as stranger:
            return await stranger.post(f"/auth/{name}/login", json={**ACCOUNT, **changes})

    ann = await signed_in(place)
    assert (await login()).status_code == 401, "it is not linked yet"
    wrong = await ann.post("/me/identities", json={"provider": "sky", **ACCOUNT, "password": "wrong"})
    assert (wrong.status_code, (await login(password="wrong")).status_code) == (401, 401)
    made = await ann.post("/me/identities", json={"provider": "sky", **ACCOUNT})
    assert (made.status_code, made.json()["provider_id"]) == (201, f"{issuer.url}/#{issuer.person}")
    pair = await login()
    assert pair.status_code == 200, pair.text
    assert (await (await signed_in(place, pair.json())).get("/me")).json()["username"] == "ann"

    for name, body in (("home", ACCOUNT), ("nowhere", ACCOUNT)):
        assert (await login(name)).status_code == (422 if name == "home" else 404)
        refused = await ann.post("/me/identities", json={"provider": name, **body})
        assert refused.status_code == (422 if name == "home" else 404), refused.text
    begun = await place.admin.post("/auth/sky/start", json=BACK)
    assert (begun.status_code, "/auth/sky/login" in begun.json()["detail"]) == (422, True)
    assert (await finish(place, "sky", {"ticket": "x", "state": "x", "code": "x"})).status_code == 401
    for issuer.refuses, expected in ((400, 401), (429, 503), (500, 503)):
        assert (await login()).status_code == expected
    issuer.refuses, issuer.person = 0, ""
    assert "verified" in (await login()).json()["detail"]


async def test_app_passwords_are_guessed_slowly_and_written_nowhere(
    place: Place, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    ann = await signed_in(place)
    body = {"provider": "sky", **ACCOUNT, "password": "guess-guess"}
    found = [(await ann.post("/me/identities", json=body)).status_code for _ in range(31)]
    assert found[0] == 401 and found[-1] == 429 and len(issuer.seen) < 31
    rows = (await place.admin.get("/audit")).text
    assert "guess-guess" not in rows + caplog.text


async def test_no_token_of_a_provider_is_stored(place: Place, issuer: Issuer) -> None:
    await link(place, "chat")
    assert (await (await signed_in(place)).post("/me/identities", json={"provider": "sky", **ACCOUNT})).is_success

    def stored(connection: Connection) -> list[Any]:
        return list(connection.execute("SELECT access_token, refresh_token, expires_at FROM user_identities"))

    assert await place.parts.state.accounts.database.read(stored) == [(None, None, None)] * 2


async def test_the_same_address_joins_no_accounts(place: Place) -> None:
    """Both providers say that the person's verified e-mail address is the administrator's."""
    await place.admin.patch("/users/admin", json={"email": "admin@example.org"})
    for provider in ("home", "chat"):
        assert (await finish(place, provider, await begin(place, provider))).status_code == 401
    assert len((await place.admin.get("/users")).json()["items"]) == 2


async def test_an_identity_is_of_one_user_and_the_same_name_elsewhere_of_none(place: Place, other: Issuer) -> None:
    assert (await link(place, "home")).status_code == 201
    assert (await link(place, "home")).status_code == 409
    assert (await finish(place, "work", await begin(place, "work"))).status_code == 401
    assert (await finish(place, "chat", await begin(place, "chat"))).status_code == 401


async def test_linking_needs_a_user_who_has_signed_in(place: Place) -> None:
    token = await place.client("ann2", "write")
    answer = await token.post("/me/identities", json={"provider": "home", **await begin(place, "home")})
    assert (answer.status_code, "outlive" in answer.json()["detail"]) == (403, True)
    back = {"provider": "home", **await begin(place, "home")}
    async with httpx2.AsyncClient(base_url=place.url + API, trust_env=False) as stranger:
        assert (await stranger.post("/me/identities", json=back)).status_code == 401
    assert (await place.admin.post("/me/identities", json=back)).status_code == 201  # the administrator's own
    ann = await signed_in(place)
    mine = (await place.admin.get("/me/identities")).json()["items"][0]["id"]
    assert (await ann.delete(f"/me/identities/{mine}")).status_code == 404
    assert (await ann.get("/me/identities")).json()["items"] == []


async def test_a_disabled_user_does_not_sign_in(place: Place) -> None:
    await link(place, "home")
    await place.admin.patch("/users/ann", json={"disabled": True})
    assert (await finish(place, "home", await begin(place, "home"))).status_code == 401
    await place.admin.patch("/users/ann", json={"disabled": False})
    assert (await finish(place, "home", await begin(place, "home"))).status_code == 200


async def test_what_a_client_brings_works_once_and_only_whole(place: Place, issuer: Issuer, other: Issuer) -> None:
    await link(place, "home")
    back = await begin(place, "home")
    assert (await finish(place, "home", back)).status_code == 200
    replayed = await finish(place, "home", back)
    assert (replayed.status_code, replayed.json()["detail"]) == (
        401,
        "this sign-in has expired or was used before; start again",
    )
    first, second = await begin(place, "home"), await begin(place, "home")
    used = len(issuer.seen)
    wrong = [
        {**first, "state": second["state"]},  # another sign-in's; it used the ticket up, too
        first,
        {**second, "ticket": "0" * 64},
        {**second, "iss": other.url},  # mixed up
    ]
    assert [(await finish(place, "home", each)).status_code for each in wrong] == [401] * 4
    assert len(issuer.seen) == used  # the code was sent to no one
    issuer.sends_iss = True
    back = await begin(place, "home")
    del back["iss"]  # which the provider says that it sends
    assert (await finish(place, "home", back)).status_code == 401
    issuer.sends_iss = False
    elsewhere = await begin(place, "home")
    assert (await finish(place, "work", elsewhere)).status_code == 401
    assert (len(other.seen), len(issuer.seen)) == (0, used)
    chat = await begin(place, "chat")
    assert (await finish(place, "chat", {**chat, "iss": other.url})).status_code == 401
    assert len(issuer.seen) == used


async def test_a_code_is_worth_nothing_without_its_verifier(place: Place, issuer: Issuer) -> None:
    await link(place, "home")
    mine, stolen = await begin(place, "home"), await begin(place, "home")
    refused = await finish(place, "home", {**mine, "code": stolen["code"]})
    assert (refused.status_code, "(invalid_grant)" in refused.json()["detail"]) == (401, True)
    verifiers = [form["code_verifier"] for form in issuer.seen]
    assert len(set(verifiers)) == len(verifiers)
    assert all(len(one) >= 43 for one in verifiers)


def _confused(claims: dict[str, Any]) -> str:
    """A token that is signed with the public key as if it were a secret."""
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = jwt.encode(claims, "x" * 32, "HS256", headers={"kid": "key-1"}).rpartition(".")[0]
    digest = hmac.digest(public, body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


WRONG: dict[str, dict[str, Any]] = {
    "audience": {"claims": {"aud": "another client"}},
    "no audience": {"claims": {"aud": None}},
    "several audiences, none authorised": {"claims": {"aud": [CLIENT, "another"]}},
    "authorised party": {"claims": {"aud": [CLIENT, "another"], "azp": "another"}},
    "issuer": {"claims": {"iss": "https://issuer.example.org"}},
    "nonce": {"claims": {"nonce": "0" * 64}},
    "no nonce": {"claims": {"nonce": None}},
    "expired": {"claims": {"exp": 1_600_000_000}},
    "no expiry": {"claims": {"exp": None}},
    "expiry as text": {"claims": {"exp": "never"}},
    "from the future": {"claims": {"iat": 4_000_000_000, "exp": 4_000_000_060}},
    "no subject": {"claims": {"sub": None}},
    "empty subject": {"claims": {"sub": ""}},
    "long subject": {"claims": {"sub": "x" * 256}},
    "subject as number": {"claims": {"sub": 7}},
    "alg none": {"sign": lambda claims: jwt.encode(claims, "", "none", headers={"kid": "key-1"})},
    "a public key as secret": {"sign": _confused},
    "another key": {"sign": lambda claims: signed(claims, STRANGE_KEY)},
    "a key for encryption": {"sign": lambda claims: signed(claims, STRANGE_KEY, kid="key-0")},
    "unknown key": {"sign": lambda claims: signed(claims, kid="../key-1")},
    "not a token": {"sign": lambda _claims: "nonsense"},
    "a list": {"sign": lambda _claims: ["nonsense"]},
}


async def test_no_wrong_identity_token_signs_in(place: Place, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.parts.state.sign_ins, "_of_address", Rate(1_000, 1.0, "attempts"))
    await link(place, "home")
    for why, lie in WRONG.items():
        issuer.claims, issuer.sign = lie.get("claims", {}), lie.get("sign")
        assert (await finish(place, "home", await begin(place, "home"))).status_code == 401, why
    issuer.claims, issuer.sign = {}, None
    assert (await finish(place, "home", await begin(place, "home"))).status_code == 200


async def test_honest_variants_of_identity_tokens_sign_in(place: Place, issuer: Issuer) -> None:
    await link(place, "home")
    issuer.claims = {"aud": [CLIENT, "another"], "azp": CLIENT, "iat": issuer.clock.now_ms() // 1_000 + 20}
    assert (await finish(place, "home", await begin(place, "home"))).status_code == 200
    issuer.sign = lambda claims: jwt.encode(claims, KEY, "RS256")  # there is one key for signatures
    assert (await finish(place, "home", await begin(place, "home"))).status_code == 200


async def test_an_issuer_is_who_the_configuration_says(place: Place, issuer: Issuer, other: Issuer) -> None:
    async def start() -> httpx2.Response:
        return await place.admin.post("/auth/home/start", json=BACK)

    for lie in (
        {"issuer": other.url},
        {"token_endpoint": "http://example.org/token"},  # in clear text
        {"jwks_uri": None},
    ):
        issuer.lies = lie
        refused = await start()
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable"), lie
    issuer.lies = {}
    assert (await start()).status_code == 200
    assert (await place.admin.post("/auth/nowhere/start", json=BACK)).status_code == 404


async def test_the_answer_goes_to_the_persons_own_machine(place: Place) -> None:
    for url in (
        "https://evil.example.org/",
        "http://evil.example.org:80/",
        "http://127.0.0.1.evil.example.org:80/",
        "http://127.0.0.1@evil.example.org:80/",
        "http://127.0.0.1/",
        "javascript:alert(1)",
        "http://127.0.0.1:8471/?next=https://evil.example.org",
        "http://[::1:1/",
    ):
        answer = await place.admin.post("/auth/home/start", json={"redirect_url": url})
        assert answer.status_code == 422, url


async def test_the_request_is_what_the_standards_ask_for(place: Place, issuer: Issuer) -> None:
    asked = [(await place.admin.post(f"/auth/{name}/start", json=BACK)).json() for name in ("home", "work", "chat")]
    queries = [parse_qs(urlsplit(each["url"]).query) for each in asked]
    assert [query["scope"] for query in queries] == [["openid"], ["openid profile"], ["identify"]]
    assert [query.get("prompt") for query in queries] == [["login"], ["login"], None]
    for each, query in zip(asked, queries, strict=True):
        assert each["expires_in"] == TICKET_S
        assert (query["response_type"], query["code_challenge_method"]) == (["code"], ["S256"])
        assert (query["client_id"], query["redirect_uri"]) == ([CLIENT], [BACK["redirect_url"]])
        assert each["ticket"] not in each["url"]
    assert len({query[name][0] for query in queries for name in ("state", "code_challenge")}) == 6


@pytest.mark.parametrize(("status", "expected"), [(400, 401), (401, 401), (500, 503), (302, 503), (204, 503)])
async def test_a_provider_that_refuses_or_fails(place: Place, issuer: Issuer, status: int, expected: int) -> None:
    await link(place, "home")
    back = await begin(place, "home")
    issuer.refuses = status
    assert (await finish(place, "home", back)).status_code == expected
    issuer.refuses = 0
    assert (await finish(place, "home", back)).status_code == 401  # the ticket was used


@pytest.mark.parametrize("person", ["", True, None, ["ann"], "x" * 256])
async def test_what_does_not_name_a_person(place: Place, issuer: Issuer, person: Any) -> None:
    issuer.person = person
    assert "verified" in (await finish(place, "chat", await begin(place, "chat"))).json()["detail"]


async def test_attempts_are_limited(place: Place) -> None:
    found = [(await place.admin.post("/auth/chat/start", json=BACK)).status_code for _ in range(31)]
    assert found == [200] * 30 + [429]
    assert (await finish(place, "chat", {"ticket": "x", "state": "x", "code": "x"})).status_code == 429


async def test_a_sign_in_is_finished_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    found, clock = place.parts.state.identities, StoppedClock(SystemClock().now_ms())
    monkeypatch.setattr(found, "_clock", clock)
    back = await begin(place, "chat")
    clock.advance(TICKET_S * 1_000)
    assert "expired" in (await finish(place, "chat", back)).json()["detail"]


async def test_only_so_many_sign_ins_are_open(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pattern_server.identities.TICKETS_MAX", 2)
    await link(place, "chat")
    backs = [await begin(place, "chat") for _ in range(3)]
    assert [(await finish(place, "chat", back)).status_code for back in backs] == [401, 200, 200]
    assert TICKETS_MAX == 1_000
