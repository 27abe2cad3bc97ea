"""A constellation's events as server-sent events.

Source: WHATWG HTML, section 9.2 "Server-sent events". `id` is the event's number, so a client that reconnects with
`Last-Event-ID` continues after the last event it saw. A slow or disconnected reader never slows down a turn: the stream
is a position in the log, not a queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, PatternError, Unavailable
from pattern_core.events import READ_MAX, Event, check_kept, read
from pattern_db.errors import DatabaseError, StorageFailed
from pattern_server.accounts import RECHECK_S, Unauthorized
from pattern_server.http import REAUTHENTICATE, STREAM

KEEP_ALIVE_S = 15.0
RETRY_MS = 1_000
MEDIA_TYPE = "text/event-stream"

_NUMBER = re.compile(r"[0-9]{1,19}")

Use = Callable[[], AbstractAsyncContextManager[Constellation]]


def fields_of(event: Event) -> dict[str, object]:
    """Return the data of an event as clients see it: `seq`, `turn_id`, `created_at` and its own fields."""
    return {"seq": event.seq, "turn_id": event.turn_id, "created_at": event.created_at, **event.data}


def encode(event: Event) -> bytes:
    """Return one event as sent."""
    return sent(fields_of(event), event.name, event.seq)


def sent(data: Mapping[str, object], name: str = "", number: object = None) -> bytes:
    """Return an event of a stream, with its number if it has one. Its data is one line of JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = "" if number is None else f"id: {number}\n"
    return f"{head}{f'event: {name}' + chr(10) if name else ''}data: {text}\n\n".encode("utf-8", "replace")


def place_of(last_event_id: str | None, after: int | None) -> int:
    """Return the event after which to begin. `Last-Event-ID` has priority, because a reconnecting client repeats the
    first URL.

    Raises:
        InvalidInput: the header is not the number of an event.
    """
    if last_event_id is None or not last_event_id.strip():
        return after or 0
    if not _NUMBER.fullmatch(last_event_id.strip()):
        raise InvalidInput(
            "Last-Event-ID is not the number of an event; send the `id` of the last one that you received"
        )
    return int(last_event_id)


async def check_start(constellation: Constellation, after: int, turn_id: str | None) -> bool:
    """Check that a stream can begin after this event. Return whether the turn, if one is given, has ended.

    Raises:
        InvalidInput: there is no such event yet.
        EventsPruned: events after it have been deleted.
        RowNotFound: there is no such turn.
    """
    latest = constellation.events.latest
    if after > latest:
        raise InvalidInput(
            f"there is no event {after}, the newest is {latest}; if the constellation was restored from a backup,"
            " start again with after=0",
            newest=latest,
        )
    await constellation.database.read(check_kept, after, turn_id)
    # Read after `latest`, so that the end of a running turn comes after the starting position.
    return turn_id is not None and (await constellation.turn(turn_id)).has_ended


async def stored(constellation: Constellation, after: int, turn_id: str | None) -> AsyncGenerator[Event]:
    """Yield the events of a turn that has ended."""
    while True:
        batch = await constellation.database.read_aside(read, after, turn_id=turn_id)
        for event in batch:
            yield event
        if len(batch) < READ_MAX:
            return
        after = batch[-1].seq


class EventStream(Response):
    """Streams events after `after`: all of the constellation, or those of one turn up to its end.

    If the turn `is_new`, all its events come after `after`; otherwise its end may come before.
    Other protocols are subclasses: they `encode` events in their own way, say when a stream `is_over` before the turn
    has ended, and what is sent `first`, at the end (`last`) and if it is `broken`.

    `use()` keeps the constellation awake during the stream, which ends when the caller's token or user is no longer
    valid. Errors before the first byte are raised, for a problem document; later the stream just ends, and the client
    resumes it.
    """

    media_type = MEDIA_TYPE
    is_over = False

    def __init__(self, use: Use, *, after: int, turn_id: str | None = None, is_new: bool = False) -> None:
        self._use = use
        self._after = after
        self._turn_id = turn_id
        self._is_new = is_new
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        """Leave the stream to the border. Called by the framework."""
        self._reauthenticate = scope["state"][REAUTHENTICATE]
        scope["state"][STREAM] = self._serve

    async def _serve(self, send: Send, dropped: Callable[[], None]) -> None:
        has_started, rest = False, b""
        self._send = send
        try:
            async with self._use() as constellation:
                has_ended = not self._is_new and await check_start(constellation, self._after, self._turn_id)
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                has_started = True
                await self._send_piece(await self.first(constellation))
                if has_ended:
                    async with aclosing(stored(constellation, self._after, self._turn_id)) as events:
                        async for event in events:
                            await self._send_piece(await self.piece(constellation, event))
                            if self.is_over:
                                break
                else:
                    await self._send_coming(constellation)
                rest = await self.last(constellation)
        except (Unauthorized, Unavailable, StorageFailed) as error:
            if not has_started:
                raise
            dropped()
            rest = self.broken(error)
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def first(self, _constellation: Constellation) -> bytes:
        """Return what is sent before the first event."""
        return f"retry: {RETRY_MS}\n\n".encode()

    encode: Callable[[Event], bytes] = staticmethod(encode)  # an event as sent; maybe nothing

    async def piece(self, _constellation: Constellation, event: Event) -> bytes:
        """Return an event as sent, where that needs more than the event."""
        return self.encode(event)

    async def last(self, _constellation: Constellation) -> bytes:
        """Return what is sent after the last event."""
        return b""

    def broken(self, _error: PatternError | DatabaseError) -> bytes:
        """Return what is sent if the stream ends early."""
        return b""

    async def _send_piece(self, piece: bytes) -> None:
        """Send a piece, which may be empty, if the caller's token and user are still valid.

        Raises:
            Unauthorized: they are not.
            Unavailable: the global database does not respond; the constellation is not affected.
        """
        try:
            await self._reauthenticate()
        except DatabaseError as error:
            raise Unavailable(error.message, retry_after_s=RECHECK_S) from error
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _send_coming(self, constellation: Constellation) -> None:
        """Send events as they come, with a comment at intervals, so that proxies keep the connection open."""
        events = constellation.events.subscribe(after=self._after, turn_id=self._turn_id, is_new=self._is_new)
        quiet_until = trio.current_time() + KEEP_ALIVE_S
        while True:
            event = None
            with trio.move_on_after(min(KEEP_ALIVE_S, RECHECK_S)):
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            piece = b"" if event is None else await self.piece(constellation, event)
            if not piece and trio.current_time() >= quiet_until:
                piece = b": still here\n\n"
            await self._send_piece(piece)
            if self.is_over:
                return
            if piece:
                quiet_until = trio.current_time() + KEEP_ALIVE_S
