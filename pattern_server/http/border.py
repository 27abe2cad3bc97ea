"""The border of HTTP: every request passes through it before FastAPI's routing.

`Border.__call__` is one of the two places of the program that catch every exception (the other is the supervisor): a
bug becomes one log line and a 500 that reveals nothing.
"""

from __future__ import annotations

import logging
import math
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit

import trio
import zstandard
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pattern_core.errors import Overloaded, PatternError, PermissionDenied
from pattern_core.files.disk import FILE_BYTES_MAX
from pattern_core.ids import Ids
from pattern_db.errors import DatabaseError
from pattern_server.accounts import Principal, Unauthorized
from pattern_server.config import is_loopback
from pattern_server.http import ABORT, GONE, KEEP, LEFT, REAUTHENTICATE, STREAM
from pattern_server.http.errors import CHAT, OPENAI, RequestTimeout, TooLarge, for_path, of_error, problem
from pattern_server.http.routing import API, SIGN_IN, ServerState
from pattern_server.rates import RequestRates

# Everything but these, and signing in, needs a token.
PUBLIC = frozenset(
    ("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/page.css", "/docs/page.js")
)
BODY_TIMEOUT_S = 60.0
# A client that sends too much rarely reads an answer before it has sent everything: this much is read and dropped.
DROPPED_BYTES_MAX = 64 * 1024 * 1024
DROPPED_TIMEOUT_S = 10.0
COMPRESSED_BYTES_MIN = 1024  # shorter answers are sent as they are
COMPRESSED_HERE_BYTES_MAX = 32 * 1024  # longer ones are compressed in a thread
COMPRESSED = re.compile(rb"text/|application/(.+\+)?json|image/svg")  # types of answers
# By their names in HTTP, the better one first. At these levels a megabyte needs 3 and 10 ms.
COMPRESSORS: Mapping[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstandard.compress(body, 3),
    "gzip": lambda body: zlib.compress(body, 3, wbits=31),
}
FLOOD_PAUSE_S = 3.0  # before an event too many of a source is refused; up to three times as long
UNANSWERED = 499  # the status of a request if its client disconnects before the answer begins

# Paths with bodies that may be longer than the setting body_bytes_max, each with its own bound in bytes.
HISTORY_BYTES_MAX = 32 * 1024 * 1024
CALENDAR_BYTES_MAX = 8 * 1024 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # images are part of messages
LONG_BODIES = (
    (re.compile(rf"{API}/constellations/[^/]+/agents/[^/]+/history"), HISTORY_BYTES_MAX),
    (re.compile(rf"{API}/constellations/[^/]+/agents/[^/]+/messages"), MESSAGE_BYTES_MAX),
    (re.compile(rf"{OPENAI}/(chat/completions|responses)"), MESSAGE_BYTES_MAX),
    (re.compile(rf"{API}/constellations/[^/]+/folders/[^/]+/files/.+"), FILE_BYTES_MAX),
    (re.compile(rf"{API}/constellations/[^/]+/calendar/import"), CALENDAR_BYTES_MAX),
    (re.compile(rf"{API}/constellations/[^/]+/programs/[^/]+"), HISTORY_BYTES_MAX),
)

_OF_CONSTELLATION = re.compile(rf"(?:{API}/constellations|/mcp)/([^/]+)")
_HOOK = re.compile(r"/hooks/([^/]+)")
_ENCODING = re.compile(r"([\w*-]+)\s*(?:;\s*q=([01](?:\.\d+)?))?")  # one of `Accept-Encoding`, with its quality
_KEPT = ("content-encoding", "etag")  # headers of answers that are not compressed
# The value of `for`, without quotes, brackets and the port: `for="[2001:db8::1]:4711"`, or any other text.
_FORWARDED = re.compile(r'(?:^|[;,])\s*for="?\[?([^"\];,]*?)\]?(?::\d+)?"?(?=$|[;,\s])', re.IGNORECASE)
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}")
_log = logging.getLogger("pattern.http")


class Misdirected(PatternError):
    """The request is for a host that is not this server."""

    code = "misdirected"
    remedy = "Add the host name to `allowed_hosts`, or use the server's address."


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Border:
    """Around every request: an id, a token, bounds on its body and on how many there are at once, one log line, and
    the end of every exception.
    """

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self._app = app
        self._server = server
        self._ids = Ids(server.runtime.clock, server.runtime.randomness)
        self._rates = RequestRates(server.config.http)
        self._running: Counter[str] = Counter()  # running requests of each address and token, and of all tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Called by the ASGI server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = trio.current_time()
        state = scope.setdefault("state", {})
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        request_id = given if _REQUEST_ID.fullmatch(given) else self._ids.new("req")
        exchange = HttpExchange(scope, receive, send, request_id)
        address = client_of(scope, self._server.config.http.trusted_proxies)
        scope["client"] = (address, 0)
        exchange.patience = patience = state.get(GONE) or trio.CancelScope()
        patience.deadline = began + self._server.config.http.answer_timeout_s
        try:
            with patience:
                await self._serve(scope, exchange, address)
            if patience.cancelled_caught and trio.current_time() < patience.deadline:
                await state.get(LEFT, trio.lowlevel.checkpoint)()
            elif patience.cancelled_caught:
                hint = f"no answer within {self._server.config.http.answer_timeout_s:g} s; what was accepted continues"
                await exchange.refuse(problem("unavailable", hint))
        except (PatternError, DatabaseError) as error:
            if isinstance(error, Overloaded) and scope["path"].startswith("/hooks/"):
                # Until the answer, a sender waits with its next events. Those of many do not come together again.
                await trio.sleep(FLOOD_PAUSE_S * (1 + 2 * self._server.runtime.randomness.random()))
            await exchange.refuse(of_error(error))
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  # the border of HTTP: a bug ends its request and nothing else
            _log.error("bug", {"request_id": request_id, "path": scope["path"]}, exc_info=error)
            hint = f"internal error; the server's log has details under the request id {request_id}"
            await exchange.refuse(problem("internal", hint))
        finally:
            self._server.metrics.answered(exchange.status)
            principal = state.get("principal")
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": exchange.status,
                "ms": round((trio.current_time() - began) * 1000, 1),
                "bytes": exchange.size,
                "client": address,
                "user": None if principal is None else principal.username,
                "request_id": request_id,
            }
            _log.info("request", fields)

    async def _serve(self, scope: Scope, exchange: HttpExchange, address: str) -> None:
        config, path = self._server.config, scope["path"]
        headers = dict(scope["headers"])
        bounds = {f"of {address} without a token": config.http.public_requests_per_address_max}
        principal = None
        try:
            check_host(headers.get(b"host", b""), (config.host, *config.allowed_hosts))
            check_origin(scope["method"], headers, (config.host, *config.allowed_hosts), config.http.cors_origins)
            if path not in PUBLIC and not SIGN_IN.fullmatch(path):
                principal = await self._authenticate(scope, credentials_of(headers))
        except (Misdirected, PermissionDenied, Unauthorized) as error:
            self._rates.use_address(address)
            with self._counted(bounds):
                await exchange.refuse(of_error(error))
            return
        if principal is None:
            self._rates.use_address(address)
        else:
            named = _OF_CONSTELLATION.match(path)
            self._rates.use_token(principal, named and self._server.constellations.known_as(principal, named[1]))
            own = f"with the token {principal.token_id or principal.username}"
            bounds = {own: config.http.requests_per_token_max, "with a token": config.http.requests_max}
        with self._counted(bounds):
            longer = next((bound for pattern, bound in LONG_BODIES if pattern.fullmatch(path)), 0)
            await exchange.read_body(max(config.body_bytes_max, longer))
            if scope["method"] == "POST" and (hook := _HOOK.fullmatch(path)):
                # Before the routes, which cost more than a refusal may: a burst has many.
                given = dict(Headers(scope=scope))
                scope["state"]["new"] = await self._server.sources.posted(hook[1], given, exchange.body or b"")
            await self._app({**scope}, exchange.receive, exchange.send)
            if stream := scope["state"].pop(STREAM, None):
                with self._server.metrics.streaming("sse") as dropped:
                    await stream(exchange.send, dropped)

    async def _authenticate(self, scope: Scope, authorization: bytes) -> Principal:
        kind, _, secret = authorization.partition(b" ")
        accounts = self._server.accounts
        is_open = self._server.config.open_loopback and CHAT.fullmatch(scope["path"]) is not None
        if is_open and not secret.strip():
            authenticate: Callable[[], Awaitable[Principal]] = accounts.loopback_principal
        elif kind.lower() != b"bearer" or not secret.strip():
            raise Unauthorized("the token is missing; send the header `Authorization: Bearer <token>`")
        else:
            authenticate = partial(accounts.authenticate, secret.strip().decode("latin-1"))
        principal = await authenticate()

        async def reauthenticate() -> None:
            if await authenticate() != principal:
                raise Unauthorized("the rights of the token or its user have changed; send the request again")

        scope["state"] |= {"principal": principal, REAUTHENTICATE: reauthenticate}
        if keep := scope["state"].get(KEEP):
            keep()
        return principal

    @contextmanager
    def _counted(self, bounds: Mapping[str, int]) -> Iterator[None]:
        """Count a request under each of these names within the block.

        Raises: Overloaded: one of them has reached its bound.
        """
        for name, most in bounds.items():
            if self._running[name] >= most:
                raise Overloaded(
                    f"{most} requests {name} are running, which is the limit; try again soon", retry_after_s=1
                )
        self._running.update(bounds.keys())
        try:
            yield
        finally:
            for name in bounds:
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]


def credentials_of(headers: Mapping[bytes, bytes]) -> bytes:
    """Return what the request says in `Authorization`. A browser, which cannot set that header for a WebSocket, offers
    the token as the protocol `bearer.TOKEN`; addresses, which are logged in many places, never contain one.
    """
    offered = headers.get(b"sec-websocket-protocol", b"")
    token = next((name.strip()[7:] for name in offered.split(b",") if name.strip().startswith(b"bearer.")), b"")
    return headers.get(b"authorization", b"Bearer " + token)


def client_of(scope: Scope, proxies: Collection[IPv4Network | IPv6Network]) -> str:
    """Return the address of the client: of the peer or, if that is one of these proxies, of its own peer, which it
    names in `X-Forwarded-For` or `Forwarded` (RFC 7239), and so on.

    Each proxy adds the address of its peer at the end. What comes before the address of another client may be forged.
    """
    address = str((scope.get("client") or ("",))[0])
    given = Headers(scope=scope)
    hops = ",".join(given.getlist("x-forwarded-for")).split(",")
    if hops == [""]:
        hops = [hop[1] for hop in _FORWARDED.finditer(",".join(given.getlist("forwarded")))]
    with suppress(ValueError):  # of what is not an address: the last one that is counts
        while hops and any(ip_address(address) in network for network in proxies):
            address = str(ip_address(hops.pop().strip()))
    return address


def check_host(given: bytes, own: Collection[str]) -> None:
    """Refuse a request if its `Host` may be the name of another site that resolves to this machine (DNS rebinding).

    Such a name is in the public DNS: addresses, names without a dot and names below `localhost` are not. `own` are
    other names of this server, each with all names below it.

    Raises:
        Misdirected: it is none of these.
    """
    host = given.decode("latin-1").lower()
    name = re.sub(r":\d*$", "", host).rstrip(".")
    _, dot, last = name.rpartition(".")
    if not dot or last.isdecimal() or last == "localhost" or name.startswith("["):
        return
    if not _is_below(name, own):
        raise Misdirected(f"{name!r} is not a name of this server; if it is, add it to the setting allowed_hosts")


def check_origin(method: str, headers: Mapping[bytes, bytes], own: Collection[str], others: Collection[str]) -> None:
    """Refuse a request that a page of another site makes in a browser, if it may change something or opens a WebSocket.

    Reading is left to the browser, which shows no answer to a page of another origin. Pages of this server, below the
    names `own`, on loopback addresses and of the origins `others` may do everything.

    Raises:
        PermissionDenied: it is such a request, or one of an origin that cannot be checked.
    """
    if method in ("GET", "HEAD", "OPTIONS") and b"upgrade" not in headers:
        return
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if not origin:
        if headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
            return
        raise PermissionDenied("a page of another site sent this request, and its browser did not say which one")
    with suppress(ValueError):
        place = urlsplit(origin)
        host = place.hostname or ""
        is_own = place.netloc == headers.get(b"host", b"").decode("latin-1").lower()
        if host and (is_own or is_loopback(host) or _is_below(host, own)):
            return
    if origin not in others:
        raise PermissionDenied(f"{origin!r} is another site's page; if it is yours, add it to http.cors_origins")


def _is_below(host: str, own: Collection[str]) -> bool:
    return any(host == each.lower() or host.endswith(f".{each.lower()}") for each in own)


@dataclass(slots=True)
class HttpExchange:
    """One request, and what has been sent of its answer: `size` bytes of a body, and `status` once it has begun."""

    _scope: Scope
    _receive: Receive
    _send: Send
    _request_id: str
    body: bytes | None = None  # None until it has arrived completely
    status: int = UNANSWERED
    size: int = 0
    patience: trio.CancelScope | None = None  # its deadline ends with the beginning of the answer
    _head: Message | None = None  # until the first piece of the body, which may be compressed
    _is_body_read: bool = False

    async def read_body(self, bytes_max: int) -> None:
        """Wait for the whole body.

        Raises:
            TooLarge: it is longer than `bytes_max`, by its header or by what arrives.
            RequestTimeout: it did not arrive in time.
            ClientGone: it never will.
        """
        length = next((value for name, value in self._scope["headers"] if name == b"content-length"), b"0")
        declared = int(length) if length.isdigit() else 0
        received = 0
        pieces: list[bytes] = []
        with trio.move_on_after(BODY_TIMEOUT_S) as patience:
            while declared <= bytes_max and received <= bytes_max:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                pieces.append(message.get("body", b""))
                received += len(pieces[-1])
                if received <= bytes_max and not message.get("more_body", False):
                    self.body = b"".join(pieces)
                    return
        if patience.cancelled_caught:
            raise RequestTimeout(
                f"the request's body did not arrive within {BODY_TIMEOUT_S:.0f} s; send the request again"
            )
        raise TooLarge(
            f"the body is longer than {bytes_max} bytes; send less, or raise the setting body_bytes_max",
            bytes_max=bytes_max,
        )

    async def receive(self) -> Message:
        """Return the whole body in one message, then all later messages. Called by the application."""
        if self._is_body_read:
            return await self._receive()
        self._is_body_read = True
        return {"type": "http.request", "body": self.body or b"", "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a piece of the answer. Called by the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.patience is not None:
                self.patience.deadline = math.inf
            added = [(b"x-request-id", self._request_id.encode()), (b"x-content-type-options", b"nosniff")]
            begun = {**message, "headers": [*message["headers"], *added]}
            if self.status == HTTPStatus.SWITCHING_PROTOCOLS:
                await self._send(begun)
            else:
                self._head = begun
            return
        head, self._head = self._head, None
        if head is not None:
            if not message.get("more_body", False):
                message = await self._compressed(head, message)
            await self._send(head)
        self.size += len(message.get("body", b""))
        await self._send(message)

    async def _compressed(self, head: Message, message: Message) -> Message:
        """Return a body that is sent whole, compressed if the client accepts that; streams pass as they come.

        An `ETag` names the exact bytes of an answer, so what has one stays as it is.
        """
        headers, body = MutableHeaders(raw=head["headers"]), message.get("body", b"")
        kind = headers.get("content-type", "").encode("latin-1")
        if len(body) < COMPRESSED_BYTES_MIN or not COMPRESSED.match(kind) or {*_KEPT} & {*headers.keys()}:
            return message
        headers.add_vary_header("Accept-Encoding")
        accepted = Headers(scope=self._scope).get("accept-encoding", "")
        offered = {name for name, quality in _ENCODING.findall(accepted.lower()) if not quality or float(quality) > 0}
        encoding = next((name for name in COMPRESSORS if name in offered), None)
        if encoding is None:
            return message
        if len(body) <= COMPRESSED_HERE_BYTES_MAX:
            body = COMPRESSORS[encoding](body)
        else:
            body = await trio.to_thread.run_sync(COMPRESSORS[encoding], body)
        headers["content-encoding"], headers["content-length"] = encoding, str(len(body))
        return {**message, "body": body}

    async def refuse(self, response: Response) -> None:
        """Send the answer if none was sent, and let a client that is still sending its body read it."""
        if self.status != UNANSWERED:
            return  # the listener closes the connection in the middle: the client sees that something is missing
        response = for_path(self._scope.get("path", ""), response)
        headers = dict(self._scope["headers"])
        announces_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        if self.body is not None or not announces_body:
            await response(self._scope, self._receive, self.send)
            return
        response.headers["connection"] = "close"
        await self.send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self.send({"type": "http.response.body", "body": response.body, "more_body": True})
        await self.drop_rest()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def drop_rest(self) -> None:
        """Read and drop what remains of the body, so that a client in the middle of sending can read its answer.

        The connection of a client that never stops sending is closed.
        """
        dropped = 0
        with trio.move_on_after(DROPPED_TIMEOUT_S):
            while dropped < DROPPED_BYTES_MAX:
                message = await self._receive()
                dropped += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
        abort = self._scope.get("state", {}).get(ABORT)
        if abort is not None:
            abort()
