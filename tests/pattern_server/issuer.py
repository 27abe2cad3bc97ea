"""Providers to sign in with, on loopback: OpenID Connect, OAuth 2 with an address about the user, and AT Protocol.

A person signs in by opening the authorisation address: the answer is the redirection that their browser would follow.
What an issuer says wrongly is what a test puts into `lies`, and `claims`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import httpx2
import jwt
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from pattern_core.ids import Clock
from pattern_server.listener import listen

CLIENT, SECRET = "pattern at home", "s:cret/+"
CREATE_SESSION = "/xrpc/com.atproto.server.createSession"
HANDLE, APP_PASSWORD = "ann.example.org", "abcd-efgh-ijkl-mnop"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGE_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class Issuer:
    """One provider: `person` is who signs in next; a code works once, for what it was asked for with."""

    clock: Clock
    person: str | int = "ann-at-home"
    url: str = ""
    lies: dict[str, Any] = field(default_factory=dict)  # fields of its description
    claims: dict[str, Any] = field(default_factory=dict)  # of its identity tokens; None: left out
    sign: Any = None  # makes an identity token of claims
    sends_iss: bool = True
    refuses: int = 0  # status of its answers to codes
    seen: list[dict[str, str]] = field(default_factory=list)  # forms that were posted
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def app(self) -> Starlette:
        """The provider's pages."""
        routes = {"/.well-known/openid-configuration": self._about, "/keys": self._keys, "/authorize": self._authorize}
        routes |= {"/token": self._token, "/user": self._user, CREATE_SESSION: self._create_session}
        return Starlette(routes=[Route(path, page, methods=["GET", "POST"]) for path, page in routes.items()])

    async def _about(self, _request: Request) -> Response:
        about = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?prompt=login",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "authorization_response_iss_parameter_supported": self.sends_iss,
        }
        return JSONResponse({**about, **self.lies})

    async def _keys(self, _request: Request) -> Response:
        keys = [
            {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, "use": use}
            for kid, use, key in (("key-1", "sig", KEY), ("key-0", "enc", STRANGE_KEY))
        ]
        return JSONResponse({"keys": keys})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        is_openid = "openid" in asked["scope"].split()
        back = {"code": code, "state": asked["state"], **({"iss": self.url} if self.sends_iss and is_openid else {})}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", 303)

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        self.seen.append(form)
        if self.refuses:
            return JSONResponse({"error": "nothing today"}, self.refuses)
        kind, _, pair = request.headers.get("authorization", "").partition(" ")
        name, _, secret = base64.b64decode(pair).decode().partition(":")
        asked = self._codes.pop(form["code"], {})
        challenge = base64.urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        is_right = (
            (kind, unquote(name), unquote(secret)) == ("Basic", CLIENT, SECRET)
            and asked.get("code_challenge") == challenge
            and asked["code_challenge_method"] == "S256"
            and asked["redirect_uri"] == form["redirect_uri"]
        )
        if not is_right:
            return JSONResponse({"error": "invalid_grant"}, 400)
        answer = {"access_token": f"token-of-{self.person}", "token_type": "Bearer"}
        if "openid" in asked["scope"].split():
            answer["id_token"] = (self.sign or signed)(self._claims(asked))
        return JSONResponse(answer)

    def _claims(self, asked: dict[str, str]) -> dict[str, Any]:
        now = self.clock.now_ms() // 1_000
        claims: dict[str, Any] = {"iss": self.url, "aud": CLIENT, "sub": self.person, "iat": now, "exp": now + 60}
        claims |= {"nonce": asked["nonce"], "email": "admin@example.org", "email_verified": True, **self.claims}
        return {name: value for name, value in claims.items() if value is not None}

    async def _user(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer token-of-{self.person}":
            return JSONResponse({"error": "who?"}, 401)
        return JSONResponse({"id": self.person, "email": "admin@example.org"})

    async def _create_session(self, request: Request) -> Response:
        given = await request.json()
        self.seen.append(given)
        if self.refuses:
            return JSONResponse({"error": "nothing today"}, self.refuses)
        if given != {"identifier": HANDLE, "password": APP_PASSWORD}:
            return JSONResponse({"error": "AuthenticationRequired", "message": "Invalid identifier or password"}, 401)
        tokens = {"accessJwt": "access", "refreshJwt": "refresh"}
        return JSONResponse({"did": self.person, "handle": HANDLE, "active": True, **tokens})


def signed(claims: dict[str, Any], key: Any = KEY, algorithm: str = "RS256", kid: str = "key-1") -> str:
    """An identity token."""
    return jwt.encode(claims, key, algorithm, headers={"kid": kid})


@asynccontextmanager
async def issuing(clock: Clock) -> AsyncIterator[Issuer]:
    """A provider within the block."""
    issuer, stop = Issuer(clock), trio.Event()
    async with trio.open_nursery() as nursery:
        listening = partial(listen, issuer.app(), host="127.0.0.1", port=0, stop=stop, grace_s=0.2)
        issuer.url = await nursery.start(listening)
        yield issuer
        stop.set()


async def browse(url: str) -> dict[str, str]:
    """Sign in at a provider's page: what its redirection brings."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(url)
    assert answer.status_code == 303, answer.text
    return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
