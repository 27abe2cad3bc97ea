"""A constellation over one WebSocket: requests to all its routes, and its events.

A client sends JSON texts, each with a `type` and an `id` of its own choice, which all answers to it repeat. A request
has the method, path, headers and body of an HTTP request below the constellation, passes the same border and gets the
same answer. A subscription is a place in the sequence of events, not a queue, so a slow reader holds nothing.

Source: RFC 6455, "The WebSocket Protocol"; the frames are wsproto's.
"""

from __future__ import annotations

import json
import string
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import trio
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.events import Event as Frame
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, Overloaded, PatternError
from pattern_core.events import Event, owners_of
from pattern_db.errors import DatabaseError
from pattern_server.accounts import RECHECK_S, Unauthorized
from pattern_server.http import REAUTHENTICATE
from pattern_server.http.bodies import RequestModel
from pattern_server.http.border import credentials_of
from pattern_server.http.errors import UpgradeRequired, of_error, of_validation, problem
from pattern_server.http.routing import API
from pattern_server.http.sse import Use, check_start, fields_of, stored

PROTOCOL = b"pattern"
REQUESTS_MAX = 16  # of one connection that run at the same time
SUBSCRIPTIONS_MAX = 16
PING_AFTER_S = 20.0
SILENCE_MAX_S = 60.0  # a client's library answers pings by itself
CLOSE_TIMEOUT_S = 5.0  # until a client has answered that the connection is closed
LAG_MAX = 10_000  # events that a subscription may fall behind once it has caught up
OWNERS_KEPT = 1_000  # turns of which it is known to whom they belong
REASON_BYTES_MAX = 123  # of a closing frame
_SHOWN_HEADERS = frozenset({b"etag", b"location"})


class SocketRequest(RequestModel):
    """A request to a route. `path` is relative to the constellation, with its query: `agents/ada/messages`."""

    type: Literal["request"]
    id: int | str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    headers: dict[Literal["idempotency-key", "if-match", "if-none-match", "prefer"], str] = Field(default_factory=dict)
    body: Any = None


class SubscribeRequest(RequestModel):
    """A subscription to the events after `after`: all, or those of a turn, of an agent's or of a group's turns."""

    type: Literal["subscribe"]
    id: int | str
    after: int | None = Field(default=None, ge=0)
    turn: str | None = None
    agent: str | None = None
    group: str | None = None


class UnsubscribeRequest(RequestModel):
    """The end of the subscription with this `id`."""

    type: Literal["unsubscribe"]
    id: int | str


_SENT: TypeAdapter[SocketRequest | SubscribeRequest | UnsubscribeRequest] = TypeAdapter(
    Annotated[SocketRequest | SubscribeRequest | UnsubscribeRequest, Field(discriminator="type")]
)


class EventSocket(Response):
    """Answers a request for a WebSocket, which then serves one constellation until either side closes it.

    It is closed with 1008 when the caller's token or user is no longer valid, and with 1013 when a subscription has
    fallen too far behind or the server is not available; a client then connects again and subscribes after the last
    event that it saw.
    """

    def __init__(self, use: Use, constellation_id: str, *, message_bytes_max: int) -> None:
        self._use = use
        self._base = f"{API}/constellations/{constellation_id}/"
        self._message_bytes_max = message_bytes_max
        self._frames = Frames(ConnectionType.SERVER)
        self._sending = trio.Lock()
        self._is_closing = False
        self._requests = 0
        self._subscriptions: dict[int | str, trio.CancelScope] = {}
        self.status_code = 101
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the connection. Called by the framework."""
        self._scope, self._receive, self._send = scope, receive, send
        headers = dict(scope["headers"])
        await send({"type": "http.response.start", "status": 101, "headers": _accepted(headers)})
        streaming = scope["app"].state.server.metrics.streaming("websocket")
        with streaming as self._dropped:
            async with trio.open_nursery() as self._nursery:
                self._heard_at = trio.current_time()
                self._nursery.start_soon(self._watch)
                await self._read()
                self._nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        """Serve what the client sends, until it closes."""
        text = ""
        while (message := await self._receive())["type"] == "http.request":
            self._heard_at = trio.current_time()
            self._frames.receive_data(message.get("body", b""))
            for frame in self._frames.events():
                if isinstance(frame, CloseConnection):  # the client's, or the answer to a broken frame
                    await self._write(frame.response())
                    return
                if self._is_closing:
                    continue
                if isinstance(frame, TextMessage):
                    text += frame.data
                    if len(text) > self._message_bytes_max:
                        await self._close(CloseReason.MESSAGE_TOO_BIG, f"the limit is {self._message_bytes_max}")
                    elif frame.message_finished:
                        await self._serve(text)
                        text = ""
                elif isinstance(frame, Ping):
                    await self._write(frame.response())
                elif isinstance(frame, BytesMessage):
                    await self._close(CloseReason.UNSUPPORTED_DATA, "send JSON as text")

    async def _serve(self, text: str) -> None:
        """Start what one message asks for."""
        try:
            asked = _SENT.validate_json(text)
            if isinstance(asked, UnsubscribeRequest):
                if asked.id not in self._subscriptions:
                    raise InvalidInput(f"there is no subscription {asked.id!r}")
                self._subscriptions[asked.id].cancel()
            elif isinstance(asked, SubscribeRequest):
                if asked.id in self._subscriptions:
                    raise InvalidInput(f"there is already a subscription {asked.id!r}; choose another id")
                if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
                    raise Overloaded(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions", retry_after_s=1)
                self._subscriptions[asked.id] = trio.CancelScope()
                self._nursery.start_soon(self._follow, asked)
            elif self._requests >= REQUESTS_MAX:
                raise Overloaded(f"{REQUESTS_MAX} requests of this connection are running", retry_after_s=1)
            else:
                self._requests += 1
                self._nursery.start_soon(self._request, asked)
        except ValidationError as error:
            await self._refuse(_id_in(text), of_validation(RequestValidationError(error.errors())))
        except PatternError as error:
            await self._refuse(_id_in(text), of_error(error))

    async def _request(self, asked: SocketRequest) -> None:
        """Pass a request on to the border as if it had come alone, and send its answer."""
        path, _, query = asked.path.partition("?")
        given = {b"authorization": credentials_of(dict(self._scope["headers"])), b"content-type": b"application/json"}
        given |= {name.encode(): value.encode() for name, value in asked.headers.items()}
        given |= {name: value for name, value in self._scope["headers"] if name == b"host"}
        scope = {
            **{name: self._scope[name] for name in ("type", "asgi", "http_version", "scheme", "root_path", "client")},
            "method": asked.method,
            "path": self._base + unquote(path),
            "raw_path": quote(self._base + path, safe=string.punctuation).encode(),
            "query_string": quote(query, safe=string.punctuation).encode(),
            "headers": list({b"prefer": b"respond-async", **given}.items()),
            "server": None,
        }
        body = b"" if asked.body is None else json.dumps(asked.body).encode()
        begun: Message = {}
        pieces: list[bytes] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.update(message)
                if not dict(message["headers"]).get(b"content-type", b"json").endswith(b"json"):
                    running.cancel()
            pieces.append(message.get("body", b""))
            await trio.lowlevel.checkpoint()

        try:
            with trio.CancelScope() as running:
                await self._scope["app"](scope, receive, send)
        finally:
            self._requests -= 1
        if running.cancelled_caught:
            hint = "the answer is a stream or a file; send this request over HTTP"
            await self._refuse(asked.id, problem("invalid_input", hint))
            return
        headers = {name.decode(): value.decode() for name, value in begun["headers"] if name in _SHOWN_HEADERS}
        await self._answer(asked.id, begun["status"], b"".join(pieces), headers)

    async def _follow(self, asked: SubscribeRequest) -> None:
        """Send the events of a subscription until it ends, and say so."""
        try:
            async with self._use() as constellation:
                await self._send_events(constellation, asked)
        except (PatternError, DatabaseError) as error:
            await self._refuse(asked.id, of_error(error))
        else:
            await self._tell({"type": "ended", "id": asked.id})
        finally:
            del self._subscriptions[asked.id]

    async def _send_events(self, constellation: Constellation, asked: SubscribeRequest) -> None:
        after = constellation.events.latest if asked.after is None else asked.after
        owner = None
        if asked.agent is not None:
            owner = (await constellation.roster.get(asked.agent)).id
        elif asked.group is not None:
            owner = (await constellation.groups.get(asked.group)).id
        has_ended = await check_start(constellation, after, asked.turn)
        await self._tell({"type": "subscribed", "id": asked.id, "after": after})
        coming = constellation.events.subscribe(after=after, turn_id=asked.turn)
        events = stored(constellation, after, asked.turn) if has_ended else coming
        known: dict[str, bool] = {}
        has_caught_up = False
        while not (waiting := self._subscriptions[asked.id]).cancel_called:
            event = None
            with waiting:  # and not around what is sent: half a frame would end the connection
                event = await anext(events, None)
            if event is None:
                return
            if not waiting.cancel_called:
                self._subscriptions[asked.id] = trio.CancelScope()
            if owner is None or await _is_of(constellation, event, owner, known):
                await self._scope["state"][REAUTHENTICATE]()
                await self._tell({"type": "event", "id": asked.id, "event": event.name, "data": fields_of(event)})
            lag = constellation.events.latest - event.seq
            has_caught_up = has_caught_up or lag == 0
            if has_caught_up and lag > LAG_MAX and not has_ended:
                await self._close(CloseReason.TRY_AGAIN_LATER, f"too slow; subscribe again with after={event.seq}")
                return

    async def _watch(self) -> None:
        """Close the connection of a client that is silent or no longer allowed."""
        pinged_at = trio.current_time()
        while (now := trio.current_time()) < self._heard_at + SILENCE_MAX_S:
            if now >= pinged_at + PING_AFTER_S:
                pinged_at = now
                await self._write(Ping())
            await trio.sleep(RECHECK_S)
            try:
                await self._scope["state"][REAUTHENTICATE]()
            except Unauthorized as error:
                await self._close(CloseReason.POLICY_VIOLATION, error.message)
                return
            except DatabaseError as error:
                await self._close(CloseReason.TRY_AGAIN_LATER, error.message)
                return
        self._nursery.cancel_scope.cancel()

    async def _refuse(self, asked: int | str | None, refusal: Response) -> None:
        await self._answer(asked, refusal.status_code, bytes(refusal.body))

    async def _answer(
        self, asked: int | str | None, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        value = json.loads(body) if body else None
        await self._tell({"type": "answer", "id": asked, "status": status, "headers": headers or {}, "body": value})

    async def _tell(self, value: dict[str, object]) -> None:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        await self._write(TextMessage(data=text.encode("utf-8", "replace").decode()))

    async def _close(self, code: CloseReason, reason: str) -> None:
        self._dropped()
        await self._write(CloseConnection(code=code, reason=reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")))
        # What the client still sends is read: a connection that is closed before loses what was sent over it.
        self._is_closing = True
        self._nursery.cancel_scope.deadline = trio.current_time() + CLOSE_TIMEOUT_S

    async def _write(self, frame: Frame) -> None:
        """Send a frame; nothing may follow a closing one."""
        async with self._sending:
            with suppress(LocalProtocolError):
                await self._send({"type": "http.response.body", "body": self._frames.send(frame), "more_body": True})


def _accepted(headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers that accept a client's request for a WebSocket.

    Raises:
        UpgradeRequired: it is not one.
    """
    upgrade, connection = headers.get(b"upgrade", b""), headers.get(b"connection", b"").lower()
    is_asked = upgrade.lower() == b"websocket" and b"upgrade" in connection
    key = headers.get(b"sec-websocket-key", b"")
    if not is_asked or headers.get(b"sec-websocket-version") != b"13" or not key:
        raise UpgradeRequired("this address is for WebSocket connections (version 13)")
    answer = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]
    answer.append((b"sec-websocket-accept", generate_accept_token(key)))
    offered = [name.strip() for name in headers.get(b"sec-websocket-protocol", b"").split(b",")]
    return [*answer, (b"sec-websocket-protocol", PROTOCOL)] if PROTOCOL in offered else answer


async def _is_of(constellation: Constellation, event: Event, owner: str, known: dict[str, bool]) -> bool:
    """Return whether an event is of a turn of this agent or group. `known` keeps what was looked up."""
    if event.turn_id is None:
        return False
    if event.turn_id not in known:
        if len(known) >= OWNERS_KEPT:
            known.clear()
        known[event.turn_id] = owner in await constellation.database.read_aside(owners_of, event.turn_id)
    return known[event.turn_id]


def _id_in(text: str) -> int | str | None:
    """Return the `id` of a message that cannot be served; None if it has none."""
    try:
        found = json.loads(text)["id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if isinstance(found, int | str) else None
