"""Signing in elsewhere: a provider of `[sign_in]` says who a person is, and a user has linked that identity before.

A client (a page, or a command that listens on its own machine) starts a sign-in, opens the provider's page, receives
the provider's redirection, and passes on what it brought, together with a ticket that no browser has seen. A ticket
works once, within ten minutes. At an AT Protocol server, an app password takes the place of all that.

Nothing about the person is stored but the identity, and no token of the provider's: nothing needs one. An e-mail
address proves nothing here.

Sources: OpenID Connect Core 1.0 and Discovery 1.0; RFC 6749 (OAuth 2), RFC 7636 (PKCE), RFC 8252 (loopback), RFC 9207
(`iss`), RFC 9700 (mix-up); the lexicon `com.atproto.server.createSession`.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied, Unavailable, instead_of
from pattern_core.ids import Ids, new_secret, now_text
from pattern_core.runtime import Runtime
from pattern_core.web.download import Downloader
from pattern_core.web.policy import WebPolicy
from pattern_db.errors import RowConflict
from pattern_db.tables import identities, users
from pattern_db.tables.identities import IdentityRow
from pattern_server.accounts import Accounts, Principal, Unauthorized
from pattern_server.credentials import read_identity
from pattern_server.sections import SignInConfig, is_confidential, is_loopback_url
from pattern_server.sign_in import Granted, SignIns

TICKET_S = 600
TICKETS_MAX = 1_000  # the oldest one ends for a new one
TIMEOUT_S = 10.0
PERSON_CHARS_MAX = 255  # OpenID Connect Core 1.0, section 2: `sub`
DISCOVERY = "/.well-known/openid-configuration"
FORM = "application/x-www-form-urlencoded"

Identity = IdentityRow
_ERROR = re.compile(r"[a-z_]{1,40}")  # RFC 6749, section 5.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedSignIn:
    """A sign-in that a person continues at `url`, within `expires_in` seconds. The `ticket` is the client's secret."""

    url: str
    ticket: str
    expires_in: int = TICKET_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirected:
    """What a provider's redirection brought: the `iss` is its name for itself, if it sent one."""

    ticket: str
    state: str
    code: str
    iss: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppPassword:
    """What a person signs in with at an AT Protocol server: a handle, DID or address, and an app password."""

    identifier: str
    password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A sign-in that was started. `found` are the provider's addresses, by their names in OpenID Connect Discovery."""

    provider: str
    redirect_url: str
    state: str
    nonce: str
    verifier: str
    expires_ms: int
    found: Mapping[str, Any]


class Identities:
    """Identities of users at `providers`, by name."""

    def __init__(
        self, accounts: Accounts, sign_ins: SignIns, runtime: Runtime, providers: Mapping[str, SignInConfig]
    ) -> None:
        self.providers = providers
        self._accounts = accounts
        self._database = accounts.database
        self._sign_ins = sign_ins
        self._clock = runtime.clock
        self._ids = Ids(runtime.clock, runtime.randomness)
        self._begun: OrderedDict[str, _Begun] = OrderedDict()  # by ticket
        # Where a provider is, is the operator's word: it may be in the private network, at any port.
        policy = WebPolicy(ports=tuple(range(1, 2**16)), allow_private=True)
        self._downloader = Downloader(policy, timeout_s=TIMEOUT_S)

    async def start(self, name: str, redirect_url: str, *, address: str) -> StartedSignIn:
        """Start a sign-in with a provider, which redirects to `redirect_url`.

        Raises:
            NotFound: there is no such provider.
            InvalidInput: the address is neither on the person's own machine nor the configured one, or the provider
                accepts app passwords.
            Unavailable: the provider does not answer as it should.
            Overloaded: there were too many attempts from this address.
        """
        provider = self._provider(name)
        self._sign_ins.limit(address)
        if provider.atproto_url is not None:
            raise InvalidInput(f"{name} accepts app passwords: send `identifier` and `password` to /auth/{name}/login")
        if provider.redirect_url not in (None, redirect_url) or not is_loopback_url(redirect_url):
            raise InvalidInput(f"redirect_url must be {provider.redirect_url or 'such as http://127.0.0.1:PORT/'}")
        begun = _Begun(
            provider=name,
            redirect_url=redirect_url,
            state=new_secret(),
            nonce=new_secret(),
            verifier=new_secret(),
            expires_ms=self._clock.now_ms() + TICKET_S * 1_000,
            found=await self._discover(provider),
        )
        query = {
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": redirect_url,
            "scope": " ".join(dict.fromkeys((*(["openid"] if provider.issuer else []), *provider.scopes))),
            "state": begun.state,
            "code_challenge": base64.urlsafe_b64encode(sha256(begun.verifier.encode()).digest()).decode().rstrip("="),
            "code_challenge_method": "S256",
            **({} if provider.issuer is None else {"nonce": begun.nonce}),
        }
        ticket = new_secret()
        self._begun[ticket] = begun
        while len(self._begun) > TICKETS_MAX:
            self._begun.popitem(last=False)
        where = begun.found["authorization_endpoint"]
        return StartedSignIn(url=f"{where}{'&' if '?' in where else '?'}{urlencode(query)}", ticket=ticket)

    async def sign_in(self, name: str, proof: Redirected | AppPassword, *, address: str) -> Granted:
        """Sign in the user who has linked the identity that the provider vouches for.

        Raises:
            InvalidInput: the provider does not accept app passwords.
            Unauthorized: the ticket, the password, or what the provider says, is invalid; no user has this identity;
                or the user is disabled.
            Unavailable: the provider does not answer as it should.
            Overloaded: there were too many attempts from this address.
        """
        self._provider(name)
        self._sign_ins.limit(address)
        user = None
        try:
            found = await self._database.read(identities.find, name, await self._identify(name, proof))
            user = None if found is None else await self._database.read(users.get, found.user_id)
            if user is None or user.disabled_at is not None:
                raise Unauthorized(
                    f"no user can sign in with this identity; sign in otherwise, then: pattern identity link {name}"
                )
        except Unauthorized:
            await self._sign_ins.refuse(user, address=address)
            raise
        return await self._sign_ins.admit(user, address=address)

    async def link(self, caller: Principal, name: str, proof: Redirected | AppPassword, *, address: str) -> Identity:
        """Let the caller's user sign in with the identity that the provider vouches for.

        Raises:
            PermissionDenied: the caller has not signed in: a link would outlive an API token.
            InvalidInput: the provider does not accept app passwords.
            Overloaded: there were too many attempts from this address.
            Unauthorized: the ticket, the password, or what the provider says, is invalid.
            Conflict: a user has this identity already.
            Unavailable: the provider does not answer as it should.
        """
        if not (caller.has_signed_in or caller.reaches_all):
            raise PermissionDenied("an API token links no identity, which would outlive it; sign in first")
        self._provider(name)
        if isinstance(proof, AppPassword):
            self._sign_ins.limit(address)
        row = IdentityRow(
            id=self._ids.new("identity"),
            user_id=caller.user_id,
            provider=name,
            provider_id=await self._identify(name, proof),
            created_at=now_text(self._clock),
        )
        with instead_of(RowConflict, Conflict("this identity is linked already; unlink it first")):
            await self._database.write(identities.create, row)
        return row

    async def linked_of(self, caller: Principal) -> list[Identity]:
        """Return the identities of the caller's user, oldest first."""
        return await self._database.read(identities.list_of, caller.user_id)

    async def unlink(self, caller: Principal, identity_id: str) -> None:
        """Delete an identity of the caller's user, and revoke all their sign-ins.

        Raises:
            RowNotFound: they have none with this id.
        """
        await self._database.write(identities.delete, caller.user_id, identity_id, now_text(self._clock))
        self._accounts.forget()

    def _provider(self, name: str) -> SignInConfig:
        if name not in self.providers:
            raise NotFound(f"no provider {name!r} is configured; there are: {', '.join(self.providers) or 'none'}")
        return self.providers[name]

    async def _identify(self, name: str, proof: Redirected | AppPassword) -> str:
        """Return who the person is, according to the provider: its own address and its id for them."""
        provider = self._provider(name)
        if isinstance(proof, AppPassword):
            person = await self._by_password(name, provider, proof)
        else:
            person = await self._by_redirection(name, provider, proof)
        if type(person) not in (str, int) or not 0 < len(str(person)) <= PERSON_CHARS_MAX:
            raise Unauthorized(f"{name} did not say who you are in a way that can be verified")
        return f"{provider.where}#{person}"

    async def _by_password(self, name: str, provider: SignInConfig, given: AppPassword) -> object:
        """Return the account's DID, which outlives its handle. The tokens of the session are forgotten."""
        if provider.atproto_url is None:
            raise InvalidInput(f"{name} does not accept app passwords: start with /auth/{name}/start")
        body = json.dumps({"identifier": given.identifier, "password": given.password}).encode()
        url = f"{provider.atproto_url.rstrip('/')}/xrpc/com.atproto.server.createSession"
        return (await self._json(url, headers={"Content-Type": "application/json"}, body=body)).get("did")

    async def _by_redirection(self, name: str, provider: SignInConfig, redirected: Redirected) -> object:
        begun = self._begun.pop(redirected.ticket, None)
        if begun is None or begun.expires_ms <= self._clock.now_ms():
            raise Unauthorized("this sign-in has expired or was used before; start again")
        if begun.provider != name or not hmac.compare_digest(begun.state.encode(), redirected.state.encode()):
            raise Unauthorized("this is the answer to another sign-in; start again")
        self._check_issuer(provider, begun, redirected.iss)
        tokens = await self._exchange(provider, begun, redirected.code)
        if provider.issuer is None:
            headers = {"Authorization": f"Bearer {tokens.get('access_token')}"}
            return (await self._json(str(provider.user_url), headers=headers)).get(provider.user_field)
        return read_identity(
            str(tokens.get("id_token")),
            await self._json(begun.found["jwks_uri"]),
            issuer=provider.issuer,
            audience=provider.client_id,
            nonce=begun.nonce,
            now_ms=self._clock.now_ms(),
        )

    def _check_issuer(self, provider: SignInConfig, begun: _Begun, iss: str | None) -> None:
        """Refuse the answer of another provider: its code would be sent to this one (mix-up)."""
        is_required = bool(begun.found.get("authorization_response_iss_parameter_supported"))
        others = {each.issuer for each in self.providers.values()} - {provider.issuer, None}
        is_other = iss in others if provider.issuer is None else iss not in (None, provider.issuer)
        if is_other or (is_required and iss is None):
            raise Unauthorized("this is the answer of another provider; start again")

    async def _discover(self, provider: SignInConfig) -> Mapping[str, Any]:
        """Return the addresses of a provider.

        Raises:
            Unavailable: it does not answer as it should.
        """
        if provider.issuer is None:
            return {"authorization_endpoint": provider.authorization_url, "token_endpoint": provider.token_url}
        found = await self._json(provider.issuer.rstrip("/") + DISCOVERY)
        urls = [found.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        if found.get("issuer") != provider.issuer or not all(isinstance(u, str) and is_confidential(u) for u in urls):
            raise Unavailable(f"what {provider.issuer} says about itself does not fit the configured issuer")
        return found

    async def _exchange(self, provider: SignInConfig, begun: _Begun, code: str) -> Mapping[str, Any]:
        """Return the tokens for a code.

        Raises:
            Unauthorized: the provider refuses it.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": begun.redirect_url,
            "code_verifier": begun.verifier,
        }
        headers = {"Content-Type": FORM}
        if provider.client_secret is None:
            form["client_id"] = provider.client_id
        else:
            secret = provider.client_secret.get_secret_value()
            pair = f"{quote(provider.client_id, safe='')}:{quote(secret, safe='')}"  # RFC 6749, 2.3.1
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await self._json(begun.found["token_endpoint"], headers=headers, body=urlencode(form).encode())

    async def _json(
        self, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Mapping[str, Any]:
        """Return the JSON object at `url`, or the answer to a form that is posted there.

        Raises:
            Unauthorized: the provider refuses.
            Unavailable: it does not answer, or with something else.
        """
        headers = {"Accept": "application/json", **(headers or {})}
        try:
            answer = await self._downloader.get(url, headers=headers, body=body, redirects_max=0)
        except (InvalidInput, NotFound, PermissionDenied) as error:
            raise Unavailable(f"the provider cannot be asked: {error.message}") from None
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError):
            found = None
        if answer.status in (400, 401, 403):
            code = str(found.get("error")) if isinstance(found, dict) else ""
            reason = code if _ERROR.fullmatch(code) else f"status {answer.status}"
            raise Unauthorized(f"the provider refuses this sign-in ({reason}); start again")
        if answer.status != 200 or not isinstance(found, dict):
            raise Unavailable(f"{url} did not answer with a JSON object (status {answer.status})")
        return found
