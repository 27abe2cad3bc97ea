"""The HTTP engine: HTTP/1.1 over TCP for an ASGI application; the one module that knows h11.

A connection is two tasks: one reads the socket, the other answers one request after another. So a disconnecting client
is noticed immediately, whatever its request waits for. HTTP/2 is not supported. An application that answers a request
with status 101 gets the bytes of the connection from then on, as pieces of the body in both directions.

The connections of one peer address are bounded, and all of them together. At a bound, a new connection replaces the
oldest one over which no valid token came, else the one that has waited longest for a request. So clients without a
token cannot keep others out, even from the same address.

Sources: RFC 9112, "HTTP/1.1"; ASGI 3.0, "HTTP & WebSocket ASGI Message Format" 2.3.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import chain
from typing import Any, TypeAlias
from urllib.parse import unquote

import h11
import trio

from pattern_core.errors import PatternError
from pattern_server.http import ABORT, GONE, KEEP

FIRST_TIMEOUT_S = 10.0  # from a connection's start to the end of its first request's headers
KEEP_ALIVE_S = 75.0  # from the end of one request to the end of the next one's headers
WRITE_TIMEOUT_S = 60.0  # until a client that reads nothing is disconnected; event streams can be resumed
BACKLOG = 4_096  # connections that the kernel keeps until they are accepted; it may keep fewer (somaxconn)
ACCEPTED_AT_ONCE = 64  # before other tasks run
NO_ROOM_WAIT_S = 0.1  # until the next attempt to accept a connection, after one failed for lack of a descriptor
LOG_AGAIN_AFTER_S = 60.0  # between two log lines about that
HEAD_BYTES_MAX = 16 * 1024  # of a request's line and headers
READ_BYTES = 64 * 1024

App: TypeAlias = Callable[..., Awaitable[None]]  # called with scope, receive and send
Message: TypeAlias = MutableMapping[str, Any]

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_log = logging.getLogger("pattern.listener")


class ListenFailed(PatternError):
    """The address cannot be listened on."""

    code = "listen_failed"
    remedy = "Choose another port with `--port`, or stop the program that uses it."


async def listen(
    app: App,
    *,
    host: str,
    port: int,
    stop: trio.Event,
    grace_s: float = 2.0,
    connections_max: int = 4_000,
    connections_per_address_max: int = 3_000,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the ASGI application `app` until `stop` is set; report the URL once it listens (port 0 takes a free one).

    After `stop` no connections are accepted, running requests get `grace_s` seconds, and the rest is cancelled.

    Raises:
        ListenFailed: the address is in use or not of this machine.
    """
    listeners = await _open(host, port)
    total = _ConnectionSet(connections_max)
    peers: dict[str, _ConnectionSet] = {}

    async def serve(stream: trio.SocketStream, client: tuple[str, int]) -> None:
        peer = peers.setdefault(client[0], _ConnectionSet(connections_per_address_max))
        try:
            if peer.has_room() and total.has_room():
                await _Connection(app, stream, client, (peer, total)).serve(stop)
        finally:
            stream.socket.close()
            if not peer.members and peers.get(client[0]) is peer:
                del peers[client[0]]

    async with trio.open_nursery() as serving:
        async with trio.open_nursery() as accepting:
            for listener in listeners:
                accepting.start_soon(_accept, listener, total, lambda *found: serving.start_soon(serve, *found))
            task_status.started(_url(listeners[0]))
            await stop.wait()
            accepting.cancel_scope.cancel()
        for connection in total.members:
            connection.idle.cancel()
        serving.cancel_scope.deadline = trio.current_time() + grace_s


async def _accept(
    listener: socket.socket, total: _ConnectionSet, start: Callable[[trio.SocketStream, tuple[str, int]], None]
) -> None:
    """Accept connections until cancelled. If there is no free descriptor, close the least important connection.

    A connection that its client has already closed gets no task. So clients that only open and close connections do
    not fill the kernel's queue, in which others wait.
    """
    log_at = -math.inf
    with listener:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(ACCEPTED_AT_ONCE):
                    connection, address = listener.accept()
                    if _has_left(connection):
                        connection.close()
                    else:
                        start(trio.SocketStream(trio.socket.from_stdlib_socket(connection)), address[:2])
            except (BlockingIOError, ConnectionAbortedError):  # none is left, or one has left the queue
                pass
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if trio.current_time() >= log_at:
                    log_at = trio.current_time() + LOG_AGAIN_AFTER_S
                    hint = "raise the limit of open files (ulimit -n), or lower http.connections_max"
                    _log.error("a connection cannot be accepted", {"reason": error.strerror, "hint": hint})
                if not total.close_one():
                    await trio.sleep(NO_ROOM_WAIT_S)


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client has closed the connection without sending anything."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # it was reset
        return True


async def _open(host: str, port: int) -> list[socket.socket]:
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ListenFailed(
            f"cannot listen on {host}:{port}: {reason}; choose another address with --host and --port"
        ) from None
    if port == 0:  # each of several addresses would get a port of its own
        for surplus in listeners[1:]:
            await surplus.aclose()
        del listeners[1:]
    return [socket.socket(fileno=listener.socket.detach()) for listener in listeners]


def _url(listener: socket.socket) -> str:
    """Return an address at which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(slots=True)
class _ConnectionSet:
    """The connections of one peer, or of all, in the order in which new ones replace them."""

    bound: int
    members: set[_Connection] = field(default_factory=set)
    unauthenticated: dict[_Connection, None] = field(
        default_factory=dict
    )  # no valid token came yet; the oldest ones first
    waiting: dict[_Connection, None] = field(default_factory=dict)  # waiting for a request, the longest ones first

    def has_room(self) -> bool:
        """Return whether another connection may be accepted, after closing one for it if necessary."""
        return len(self.members) < self.bound or self.close_one()

    def close_one(self) -> bool:
        """Close the least important connection; False if each one serves a client with a valid token."""
        found = next(chain(self.unauthenticated, self.waiting), None)
        if found is not None:
            found.close()
        return found is not None


class _Connection:
    """One client, with its requests one after another."""

    def __init__(
        self, app: App, stream: trio.SocketStream, client: tuple[str, int], sets: tuple[_ConnectionSet, ...]
    ) -> None:
        self._app = app
        self._stream = stream
        self._client = client
        self._sets = sets
        for each in sets:
            each.members.add(self)
            each.unauthenticated[self] = None
        self._parser = h11.Connection(h11.SERVER, HEAD_BYTES_MAX)
        self._arrived, self._received = trio.open_memory_channel[bytes](1)
        self.closed = trio.Event()
        self._request = trio.CancelScope()  # offered to the application, see `GONE`
        self._head = b""  # of the answer, until it is sent with the first piece of the body
        self._early = b""  # what a client sent behind its request, before the protocol was switched
        self._may_have_body = True
        self.idle = trio.CancelScope()  # around the wait for the next request

    async def serve(self, stop: trio.Event) -> None:
        """Serve one request after another, until either side closes or `stop` is set."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.read)
                timeout_s = FIRST_TIMEOUT_S
                while not (stop.is_set() or self.closed.is_set()) and await self.serve_one(timeout_s):
                    timeout_s = KEEP_ALIVE_S
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    async def read(self) -> None:
        """Forward what the client sends. Return when the client closes, also in the middle of an answer."""
        with self._arrived:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while data := await self._stream.receive_some(READ_BYTES):
                    await self._arrived.send(bytes(data))
            self.close()

    def keep(self) -> None:
        """Do not replace this connection while it serves a request. Called by the application, for a valid token."""
        for each in self._sets:
            each.unauthenticated.pop(self, None)

    def close(self) -> None:
        """Close the connection immediately, even during a request. Safe to call twice."""
        for each in self._sets:
            each.members.discard(self)
            each.unauthenticated.pop(self, None)
            each.waiting.pop(self, None)
        self._stream.socket.close()
        self.closed.set()
        self._request.cancel()

    async def serve_one(self, timeout_s: float) -> bool:
        """Serve one request; return whether another one may follow."""
        self.idle = trio.CancelScope(deadline=trio.current_time() + timeout_s)
        with self.idle:
            request = await self._next_event()
        if self.idle.cancelled_caught or not isinstance(request, h11.Request):
            return False
        for each in self._sets:
            each.waiting.pop(self, None)
        path, _, query = request.target.partition(b"?")
        self._may_have_body = request.method != b"HEAD"
        self._request = trio.CancelScope()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": self._client,
            "server": None,
            "state": {ABORT: self.close, GONE: self._request, KEEP: self.keep},
        }
        await self._app(scope, self._receive, self._send)
        if self._parser.their_state is h11.SEND_BODY:  # the body was not read; without a body, this is its end
            with suppress(h11.RemoteProtocolError):
                self._parser.next_event()
        if self._parser.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return False
        self._parser.start_next_cycle()
        for each in self._sets if not self.closed.is_set() else ():
            each.waiting[self] = None
        return True

    async def _receive(self) -> Message:
        """Return the next piece of the request's body, or the disconnection. Called by the application."""
        if self._parser.their_state is h11.SEND_BODY:
            if self._parser.they_are_waiting_for_100_continue:
                await self._write(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])))
            event = await self._next_event()
            if event is not None:
                body = bytes(event.data) if isinstance(event, h11.Data) else b""
                return {"type": "http.request", "body": body, "more_body": isinstance(event, h11.Data)}
        if self._parser.their_state is h11.SWITCHED_PROTOCOL:
            with suppress(trio.EndOfChannel):
                data, self._early = self._early or await self._received.receive(), b""
                return {"type": "http.request", "body": data, "more_body": True}
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def _next_event(self) -> Any:
        """Return what the client sent next; None if it closed, or broke the protocol and was refused."""
        try:
            while (event := self._parser.next_event()) is h11.NEED_DATA:
                self._parser.receive_data(await self._received.receive())
            if isinstance(event, h11.Request) and event.http_version not in (b"1.0", b"1.1"):
                raise h11.RemoteProtocolError("unsupported HTTP version; use HTTP/1.1", error_status_hint=505)
        except trio.EndOfChannel:
            return None
        except h11.RemoteProtocolError as error:
            if self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                headers = [(b"content-length", b"0"), (b"connection", b"close")]
                await self._write(self._parser.send(h11.Response(status_code=error.error_status_hint, headers=headers)))
            self.close()
            return None
        return event

    async def _send(self, message: Message) -> None:
        """Send a piece of the answer; nothing if the client has closed. Called by the application."""
        if self.closed.is_set():
            await trio.lowlevel.checkpoint()
        elif self._parser.our_state is h11.SWITCHED_PROTOCOL:
            await self._write(message.get("body", b""))
        elif message["type"] == "http.response.start" and message["status"] == 101:
            switch = h11.InformationalResponse(status_code=101, headers=message["headers"])
            await self._write(self._parser.send(switch))
            self._early, _ = self._parser.trailing_data
        elif message["type"] == "http.response.start":
            self._may_have_body = self._may_have_body and message["status"] not in (204, 304)
            headers = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
            self._head = self._parser.send(h11.Response(status_code=message["status"], headers=headers)) or b""
        else:
            data, self._head = self._head, b""
            if self._may_have_body and (body := message.get("body", b"")):
                data += self._parser.send(h11.Data(data=body)) or b""
            if not message.get("more_body", False):
                data += self._parser.send(h11.EndOfMessage()) or b""
            await self._write(data)

    async def _write(self, data: bytes | None) -> None:
        is_whole = False
        try:
            with trio.move_on_after(WRITE_TIMEOUT_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_all(data or b"")
                is_whole = True
        finally:
            if not is_whole:  # nothing may follow an incomplete frame
                self.close()
