"""AccessClaims tokens and passwords: what is accepted, and that nothing else is."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from pattern_core.errors import InvalidInput, Overloaded
from pattern_db.tables.sign_ins import SigningKeyRow
from pattern_server.credentials import (
    ACCESS_S,
    HASHES_WAITING_MAX,
    LEEWAY_S,
    AccessClaims,
    Passwords,
    read_access,
    read_identity,
    sign_access,
)
from pattern_server.sections import PasswordsConfig

NOW_MS = 1_795_000_000_000
KEY = SigningKeyRow("key_1", bytes(range(32)), "2026-11-21T00:00:00.000Z")
ACCESS = AccessClaims(user_id="user_1", sign_in_id="token_1", expires_ms=NOW_MS + ACCESS_S * 1_000)
TOKEN = sign_access(KEY, ACCESS, jti="jti_1", now_ms=NOW_MS)
CLAIMS: dict[str, Any] = jwt.decode(TOKEN, options={"verify_signature": False})
CHEAP = PasswordsConfig(memory_kib=64, passes=1, lanes=1)


def read(token: str, *, after_s: int = 0, keys: tuple[SigningKeyRow, ...] = (KEY,)) -> AccessClaims | None:
    return read_access(token, keys, now_ms=NOW_MS + after_s * 1_000)


def signed(key: bytes = KEY.secret, kid: object = KEY.id, **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return _joined({"alg": "HS256", "typ": "JWT", "kid": kid}, claims, key)


def _joined(header: dict[str, Any], claims: dict[str, Any], key: bytes) -> str:
    body = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
    return f"{body}.{_base64(hmac.digest(key, body.encode(), hashlib.sha256))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_token_says_what_was_signed() -> None:
    assert read(TOKEN) == read(signed()) == ACCESS
    assert read(TOKEN, after_s=ACCESS_S + 1) == ACCESS  # it expired, which the caller sees
    assert set(CLAIMS) == {"iss", "aud", "sub", "sid", "jti", "iat", "nbf", "exp", "token_type"}
    assert jwt.get_unverified_header(TOKEN) == {"alg": "HS256", "typ": "JWT", "kid": "key_1"}
    assert read(TOKEN, after_s=-LEEWAY_S) == ACCESS
    assert read(TOKEN, after_s=-LEEWAY_S - 1) is None


WRONG = {
    "another issuer": signed(iss="elsewhere"),
    "another audience": signed(aud="elsewhere"),
    "a refresh token": signed(token_type="refresh"),
    "no type": signed(token_type=None),
    "unknown key": signed(kid="key_2"),
    "path as key": signed(kid="../../key_1"),
    "key that is no text": signed(kid=["key_1"]),
    "no key": signed(kid=None),
    "another secret": signed(key=b"x" * 32),
    "empty secret": signed(key=b""),
    "no expiry": signed(exp=None),
    "expiry as text": signed(exp="2099"),
    "expiry as a fraction": signed(exp=CLAIMS["exp"] + 0.5),
    "no user": signed(sub=None),
    "user as number": signed(sub=1),
    "no sign-in": signed(sid=None),
    "sign-in as list": signed(sid=["token_1"]),
    "no id": signed(jti=None),
    "several audiences, none ours": signed(aud=["a", "b"]),
    "alg none": _joined({"alg": "none", "kid": "key_1"}, CLAIMS, KEY.secret),
    "alg none without a signature": TOKEN.rpartition(".")[0] + ".",
    "alg RS256": _joined({"alg": "RS256", "kid": "key_1"}, CLAIMS, KEY.secret),
    "alg HS512": jwt.encode(CLAIMS, KEY.secret * 2, "HS512", headers={"kid": "key_1"}),
    "truncated": TOKEN[:-1],
    "two parts": TOKEN.rpartition(".")[0],
    "five parts": f"{TOKEN}.a.b",
    "padded": TOKEN + "=",
    "another spelling of the same bytes": TOKEN[:-1] + chr(ord(TOKEN[-1]) + 1),
    "not ASCII": TOKEN[:-1] + "é",
    "huge": "a" * 100_000,
    "empty": "",
}


@pytest.mark.parametrize("why", WRONG)
def test_nothing_else_is_a_token(why: str) -> None:
    assert read(WRONG[why]) is None


def test_a_short_key_signs_nothing() -> None:
    short = SigningKeyRow("key_1", b"short", KEY.created_at)
    assert read(signed(key=b"short"), keys=(short,)) is None


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES512", "EdDSA"])
def test_an_identity_token_is_read_with_its_issuers_keys(algorithm: str) -> None:
    """What else is refused is in http/test_identities.py."""
    curves = {"ES256": ec.SECP256R1(), "ES512": ec.SECP521R1()}
    key: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    if algorithm == "EdDSA":
        key = ed25519.Ed25519PrivateKey.generate()
    elif algorithm in curves:
        key = ec.generate_private_key(curves[algorithm])
    library = jwt.get_algorithm_by_name(algorithm)
    public = {**library.to_jwk(key.public_key(), as_dict=True), "kid": "1", "alg": algorithm}
    claims = {"iss": "https://i", "aud": "us", "sub": "ann", "nonce": "n", "iat": NOW_MS // 1_000}
    token = jwt.encode({**claims, "exp": NOW_MS // 1_000 + 60}, key, algorithm, headers={"kid": "1"})

    def read_with(*keys: dict[str, Any], after_s: int = 0) -> str | None:
        at = NOW_MS + after_s * 1_000
        return read_identity(token, {"keys": [*keys]}, issuer="https://i", audience="us", nonce="n", now_ms=at)

    assert read_with(public) == read_with({"kty": "new"}, public) == "ann"
    assert read_with(public, after_s=60 + LEEWAY_S - 1) == read_with(public, after_s=-LEEWAY_S) == "ann"
    for outside in (60 + LEEWAY_S, -LEEWAY_S - 1):
        assert read_with(public, after_s=outside) is None
    shared = {"kty": "oct", "kid": "1", "k": "AAAA", "alg": "HS256"}
    for keys in ((), ({"kty": "RSA"},), ({**public, "kid": "2"},), (shared,), ({**public, "use": "enc"},)):
        assert read_with(*keys) is None
    assert read_identity(token, {"keys": 7}, issuer="https://i", audience="us", nonce="n", now_ms=NOW_MS) is None


async def test_passwords_match_however_they_are_typed() -> None:
    passwords = Passwords(CHEAP)
    hashed = await passwords.hash("Käse mit Löchern")
    assert hashed.startswith("$argon2id$v=19$m=64,t=1,p=1$")
    assert await passwords.matches("Ka\u0308se mit Lo\u0308chern", hashed)
    for wrong in ("", "käse mit löchern", "Käse mit Löchern "):
        assert not await passwords.matches(wrong, hashed)
    assert not await passwords.matches("A" * 8, None)
    assert not await passwords.matches("A" * 8, "not a hash")
    for unfit in ("short", "x" * 1_001):
        with pytest.raises(InvalidInput, match="8 to 1000 characters"):
            await passwords.hash(unfit)


async def test_without_a_hash_as_much_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function at the same cost: a stopwatch would be wrong on a busy machine."""
    from argon2.low_level import verify_secret

    passwords = Passwords(PasswordsConfig(memory_kib=128, passes=2, lanes=1))
    seen: list[bytes] = []

    def counted(hashed: bytes, secret: bytes, kind: Any) -> bool:
        seen.append(hashed)
        return verify_secret(hashed, secret, kind)

    monkeypatch.setattr("argon2._password_hasher.verify_secret", counted)
    real = await passwords.hash("correct horse")
    assert not await passwords.matches("wrong horse", real)
    assert not await passwords.matches("wrong horse", None)
    assert len(seen) == 2
    assert [text.split(b"$")[1:4] for text in seen] == [[b"argon2id", b"v=19", b"m=128,t=2,p=1"]] * 2
    assert [len(text) for text in seen] == [len(real)] * 2


async def test_only_so_many_passwords_wait() -> None:
    passwords = Passwords(CHEAP)
    refused = 0

    async def ask() -> None:
        nonlocal refused
        try:
            await passwords.matches("a password", None)
        except Overloaded:
            refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(HASHES_WAITING_MAX + 10):
            nursery.start_soon(ask)
    assert refused == 8  # two are at work
