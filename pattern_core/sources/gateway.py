"""A connection that a service keeps open for an account, and what was said while there was none: for kinds that listen.

A kind says how a connection begins, which of its objects are events, and how to read what was missed in a place.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import trio

from pattern_core.errors import InvalidInput, NotFound, PatternError, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.service import ServiceKind
from pattern_core.sources.source import UNREADABLE, Arrivals, Receive, SourceAccount, SourceEvent
from pattern_core.web.websocket import WebSocket, WebSocketClosed, follow, open_websocket

BYTES_MAX = 16 * 1024 * 1024  # of what a service sends at once
POLLED_MAX = 500  # events of one poll, or a few more
AGAIN_S = 1.0  # before the next connection


class GatewayKind(ServiceKind):
    """A kind with a connection."""

    gateway: ClassVar[type[Gateway]]

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Hand over events for as long as a connection lasts, as `SourceKind.listen`."""
        gateway = self.gateway(account)
        after_s = await gateway.run(receive)
        await receive(gateway.arrivals())
        return after_s

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what was missed in the known places, as `SourceKind.poll`."""
        gateway, events = self.gateway(account), list[SourceEvent]()

        async def keep(arrived: Arrivals) -> None:
            events.extend(arrived.events)

        await gateway.prove()
        await gateway.missed(keep, lambda: len(events) >= POLLED_MAX)
        return gateway.arrivals(events)


class Gateway(ABC):
    """One connection. `cursor` is what is handed over: also the `places` that are known, by their ids, the one where
    something was said last at the end, with at most `places_max` of them.

    `failure` is why the connection is of no use, `is_connected` says that it was of some.
    """

    service: ClassVar[str]
    places_max: ClassVar[int]

    def __init__(self, account: SourceAccount) -> None:
        self.account = account
        self.cursor: dict[str, Any] = json.loads(json.dumps({"places": {}, **account.cursor}))
        self.places: dict[str, Any] = self.cursor["places"]
        self.failure: PatternError | None = None
        self.is_connected = False
        self.again_s = AGAIN_S

    async def run(self, receive: Receive) -> float:
        """Have `receive` store what comes until the connection ends; return when to connect again.

        Raises:
            PatternError: there was no connection that was of use.
        """
        async with await self.connected() as socket:
            beat, hear, store = None, partial(self.hear, socket), partial(self.store, socket, receive)
            try:
                with trio.move_on_after(self.account.settings.timeout_s):
                    beat = await self.begin(socket)
                if beat is not None:
                    await follow(socket, hear, store, beat)
            except WebSocketClosed as error:
                self.ended(error)
        if self.failure is not None:
            raise self.failure
        if not self.is_connected:
            raise Unavailable(f"{self.service} ended the connection before it was of use")
        return self.again_s

    async def open(self, url: str, *, silent_s: float = float("inf")) -> WebSocket:
        """Return a connection to an address of the service, which may hold what lets in, so no error shows it.

        Raises:
            InvalidInput: it is not encrypted, though the API is.
            PatternError: there is no connection.
        """
        settings = self.account.settings
        if self.account.config["base_url"].startswith("https:") and not url.startswith("wss:"):
            raise InvalidInput(f"{self.service} names a connection that is not encrypted")
        bounds = {"timeout_s": settings.timeout_s, "bytes_max": BYTES_MAX, "silent_s": silent_s}
        try:
            return await open_websocket(settings, url, **bounds)  # type: ignore[arg-type]  # by their names
        except (Unavailable, NotFound) as error:
            raise Unavailable(error.message.replace(url, f"the address that {self.service} gave")) from None

    def arrivals(self, events: Sequence[SourceEvent] = ()) -> Arrivals:
        """Return events with the cursor as it is now."""
        return Arrivals(events=events, cursor=json.loads(json.dumps(self.cursor)))

    def remember(self, place: str, about: object) -> None:
        """Note a place in which something was said; that in which nothing was said for longest is forgotten."""
        self.places.pop(place, None)
        self.places[place] = about
        while len(self.places) > self.places_max:
            del self.places[next(iter(self.places))]

    async def read(self, name: object, data: Any) -> Sequence[SourceEvent]:
        """Return the events of what the service sent; none if it cannot be read: one object stops no other."""
        with suppress(*UNREADABLE):
            return await self.events(name, data)
        return []

    async def missed(self, receive: Receive, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Hand over what was said in the known places, also those that are found with that, behind the last messages
        that are known.
        """
        read = set[str]()
        while (place := next((one for one in self.places if one not in read), None)) is not None and not is_enough():
            try:
                events, is_more = await self.behind(place)
            except PatternError as error:
                if not error.details.get(IS_FINAL):
                    raise
                self.places.pop(place, None)  # it was deleted, or may not be read any more
                continue
            read |= set() if is_more else {place}
            await receive(self.arrivals(events))

    # What differs

    @abstractmethod
    async def prove(self) -> None:
        """Ask whether the secrets are accepted, and note who the agent is. Raises a `PatternError` if they are not."""

    @abstractmethod
    async def connected(self) -> WebSocket:
        """Return a new connection. Raises a `PatternError` if there is none."""

    @abstractmethod
    async def begin(self, socket: WebSocket) -> Callable[[], Awaitable[None]]:
        """Begin on a connection, and return what runs next to it, such as heartbeats."""

    @abstractmethod
    async def hear(self, socket: WebSocket, found: Mapping[str, Any]) -> bool | None:
        """Return whether an object is to be stored; None if the connection is to end. It must not wait."""

    @abstractmethod
    async def store(self, socket: WebSocket, receive: Receive, batch: Sequence[Mapping[str, Any]]) -> None:
        """Have `receive` store the events of objects; only then may the service learn of it."""

    @abstractmethod
    async def events(self, name: object, data: Any) -> Sequence[SourceEvent]:
        """Return the events of what the service sent under a name. Raises any of `UNREADABLE`."""

    @abstractmethod
    async def behind(self, place: str) -> tuple[Sequence[SourceEvent], bool]:
        """Return what was said in a place behind the last message that is known, in order, and whether there is more.
        Raises a `PatternError`, final if the place is gone.
        """

    def ended(self, error: WebSocketClosed) -> None:  # noqa: B027  # most need not know
        """Note how the service ended the connection."""
