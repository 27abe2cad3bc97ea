"""A WebSocket connection, of a client or of a stand-in for a server: whole messages of text, over any stream.

Source: RFC 6455, "The WebSocket Protocol"; the frames are wsproto's. Its connection is one object without tasks, so who
uses it decides which task waits and what its errors end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Message, Ping, Request, TextMessage
from wsproto.utilities import ProtocolError

from pattern_core.errors import PatternError, Unavailable
from pattern_core.web.download import Downloader
from pattern_core.web.policy import WebPolicy
from pattern_db.errors import DatabaseError

PIECE_BYTES = 64 * 1024  # that are read at once
LOST = 1006  # the code of a connection that ended without one (RFC 6455, 7.1.5)
TOO_BIG = 1009
_MALFORMED = (LookupError, TypeError, AttributeError, ValueError)
WAITING_MAX = 200  # objects of a connection that wait to be stored; later ones stay at the service
TOGETHER_MAX = 100  # of them that are stored at once


class WebSocketClosed(Exception):
    """The connection is at its end. `code` and `reason` are the other side's; the code is `LOST` if there was none, and
    `TOO_BIG` after a message that is too long.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the connection was closed with code {code}: {reason or 'no reason given'}")
        self.code = code
        self.reason = reason


class WebSocket(AbstractAsyncContextManager["WebSocket"]):
    """One task receives, any may send. As a context it closes the stream in the end, without a closing frame: services
    end what belongs to the connection when they read one. It ends after `silent_s` seconds in which nothing came.
    """

    def __init__(self, stream: trio.abc.Stream, *, is_client: bool, bytes_max: int, silent_s: float = math.inf) -> None:
        self._stream = stream
        self._frames = WSConnection(ConnectionType.CLIENT if is_client else ConnectionType.SERVER)
        self._bytes_max = bytes_max
        self._silent_s = silent_s
        self._sending = trio.StrictFIFOLock()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abort()

    async def abort(self) -> None:
        """Close the stream; waiting for a message then raises `WebSocketClosed`."""
        await trio.aclose_forcefully(self._stream)

    async def accept(self) -> str:
        """Accept a client, on the side of a server; return the path that it wants.

        Raises:
            WebSocketClosed: it left, or speaks another protocol.
        """
        event = await self._next()
        if not isinstance(event, Request):
            raise WebSocketClosed(LOST, "no handshake")
        await self._send(AcceptConnection())
        return event.target

    async def ask(self, host: str, target: str) -> None:
        """Ask a server for the connection.

        Raises:
            WebSocketClosed: it does not speak WebSocket there.
        """
        await self._send(Request(host=host, target=target))
        if not isinstance(await self._next(), AcceptConnection):
            raise WebSocketClosed(LOST, "the server refused a WebSocket")

    async def receive(self) -> str:
        """Return the next message.

        Raises:
            WebSocketClosed: none will come, or it is longer than `bytes_max`.
        """
        parts, size = list[str](), 0
        while True:
            match await self._next():
                case Message(data=data) as piece:
                    size += len(data)
                    if size > self._bytes_max:
                        raise WebSocketClosed(TOO_BIG, f"a message has more than {self._bytes_max} bytes")
                    parts.append(data if isinstance(data, str) else bytes(data).decode("utf-8", "replace"))
                    if piece.message_finished:
                        return "".join(parts)
                case Ping() as ping:
                    await self._send(ping.response())
                case CloseConnection(code=code, reason=reason):
                    raise WebSocketClosed(int(code), reason or "")

    async def send(self, text: str) -> None:
        """Send a message.

        Raises:
            WebSocketClosed: the connection is closed.
        """
        await self._send(TextMessage(data=text))

    async def ping(self) -> None:
        """Have the other side prove that it is there: it answers, which `receive` reads and leaves out.

        Raises:
            WebSocketClosed: the connection is closed.
        """
        await self._send(Ping())

    async def beat(self, every_s: float) -> None:
        """Ping again and again, until the connection is closed, so that `silent_s` ends one that is half open."""
        with suppress(WebSocketClosed):
            while True:
                await trio.sleep(every_s)
                await self.ping()

    async def close(self, code: int, reason: str = "") -> None:
        """Send the frame that ends the connection, with the reason.

        Raises:
            WebSocketClosed: the connection is closed.
        """
        await self._send(CloseConnection(code=code, reason=reason))

    async def _next(self) -> Event:
        try:
            while (event := next(self._frames.events(), None)) is None:
                with trio.fail_after(self._silent_s):
                    piece = bytes(await self._stream.receive_some(PIECE_BYTES))
                self._frames.receive_data(piece or None)
        except trio.TooSlowError:
            raise WebSocketClosed(LOST, f"nothing came for {self._silent_s:g} s") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError) as error:
            raise WebSocketClosed(LOST, str(error)) from None
        return event

    async def _send(self, event: Event) -> None:
        try:
            async with self._sending:
                await self._stream.send_all(self._frames.send(event))
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError) as error:
            raise WebSocketClosed(LOST, str(error)) from None


async def open_websocket(
    policy: WebPolicy, url: str, *, timeout_s: float, bytes_max: int, silent_s: float = math.inf
) -> WebSocket:
    """Return a connection to `url` (`wss://` or `ws://`), as a client: only where the operator's policy allows.

    Raises:
        PatternError: as `Downloader.connect`.
        Unavailable: the server does not speak WebSocket there.
    """
    with trio.move_on_after(timeout_s):
        stream, target = await Downloader(policy, timeout_s=timeout_s).connect(f"http{url.removeprefix('ws')}")
        socket = WebSocket(stream, is_client=True, bytes_max=bytes_max, silent_s=silent_s)
        is_open = False
        try:
            await socket.ask(target.url.netloc.decode("ascii"), target.url.raw_path.decode("ascii"))
            is_open = True
            return socket
        except WebSocketClosed as error:
            raise Unavailable(f"{target.host}: {error}", was_sent=False) from None
        finally:
            if not is_open:
                await socket.abort()
    raise Unavailable(f"{url} was not there within {timeout_s:g} s; try again later", was_sent=False)


async def follow(
    socket: WebSocket,
    hear: Callable[[Mapping[str, Any]], Awaitable[bool | None]],
    store: Callable[[Sequence[Mapping[str, Any]]], Awaitable[None]],
    beat: Callable[[], Awaitable[None]] = trio.sleep_forever,
) -> None:
    """Read JSON objects until the connection ends, while those that wait are stored together; `beat` runs next to it.

    `hear` is given each at once, and returns whether it is to be stored; None ends the connection. What was heard
    before the end is stored.

    Raises:
        WebSocketClosed: the other side ended the connection.
        PatternError, DatabaseError: as `store`.
    """
    send, waiting = trio.open_memory_channel[Mapping[str, Any]](WAITING_MAX)
    errors = list[Exception]()

    async def read() -> None:
        async with send:
            try:
                while (is_kept := await hear(found := json_object(await socket.receive()))) is not None:
                    if is_kept:
                        await send.send(found)
            except WebSocketClosed as error:
                errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(beat)
        try:
            async for first in waiting:
                batch = [first]
                with suppress(trio.WouldBlock, trio.EndOfChannel):
                    while len(batch) < TOGETHER_MAX:
                        batch.append(waiting.receive_nowait())
                await store(batch)
        except (PatternError, DatabaseError, WebSocketClosed, *_MALFORMED) as error:
            errors.insert(0, error)  # raised below, outside of the nursery's group
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]


def json_object(text: str) -> Mapping[str, Any]:
    """Return a JSON object; an empty one if it is none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}
