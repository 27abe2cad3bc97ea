"""The HTTP engine: the one module that knows hypercorn (0.18).

Hypercorn's own `serve` cannot be stopped while a client does not read, since it shields every write. So its parts are
run here by a listener that knows its connections: a write has a deadline, and what is open after the grace time is
closed at once. A connection that fails inside the engine ends alone.

Source: hypercorn 0.18, `hypercorn/trio/run.py` and `tcp_server.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as EngineConfig
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import UnexpectedMessageError

from pattern_core.errors import PatternError
from pattern_server.http import ABORT

WRITE_TIMEOUT_S = 60.0  # a client that does not read for so long loses its connection; an event stream can be resumed
KEEP_ALIVE_S = 75.0
CONNECTIONS_MAX = 4_000
BACKLOG = 512
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

# What the engine is known to raise where a client breaks off or breaks the protocol at a bad moment. Not contained,
# such an error would end the whole server: AttributeError and KeyError come from half-built streams of the engine.
_ENGINE_ERRORS = (
    OSError,
    ValueError,
    AttributeError,
    KeyError,
    h11.ProtocolError,
    UnexpectedMessageError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.BusyResourceError,
)

_log = logging.getLogger("pattern.listener")


class ListenFailed(PatternError):
    """The address cannot be listened on."""

    code = "listen_failed"


async def listen(
    app: Callable[..., Any],
    *,
    host: str,
    port: int,
    stop: trio.Event,
    grace_s: float = 2.0,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the ASGI application `app` until `stop` is set; reports its URL once it listens (port 0 takes a free one).

    After `stop` nothing new is accepted, requests under way get `grace_s` seconds, and the rest is cut off.

    Raises:
        ListenFailed: the address is in use or not ours.
    """
    listeners = await _open(host, port)
    engine = _Engine(app)
    async with trio.open_nursery() as serving:
        try:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(partial(trio.serve_listeners, engine.serve, listeners, handler_nursery=serving))
                task_status.started(_url(listeners[0]))
                await stop.wait()
                accepting.cancel_scope.cancel()
            await engine.finish(grace_s)
        finally:
            with trio.CancelScope(shield=True):
                await engine.cut_off()
            serving.cancel_scope.cancel()


async def _open(host: str, port: int) -> list[trio.SocketListener]:
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
    return listeners


def _url(listener: trio.SocketListener) -> str:
    """An address at which this machine reaches the listener."""
    host, port = listener.socket.getsockname()[:2]
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Engine:
    """What all connections share, and which there are."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = ASGIWrapper(cast(ASGIFramework, app))
        self._config = EngineConfig()
        self._config.include_server_header = False
        self._config.keep_alive_timeout = KEEP_ALIVE_S
        self._config.errorlog = _log
        self._config.accesslog = None
        self._context = WorkerContext(None)
        self._connections: set[_Connection] = set()
        self._all_ended = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        if len(self._connections) >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        connection = _Connection(self._app, self._config, self._context, stream)
        self._connections.add(connection)
        try:
            await connection.run()
        except* _ENGINE_ERRORS as group:
            _log.warning("a connection failed: %r", group.exceptions[0])
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._all_ended.set()
            with trio.CancelScope(shield=True):
                await connection.abort()

    async def finish(self, grace_s: float) -> None:
        """Close idle connections and wait for the others, for `grace_s` at most."""
        await self._context.terminated.set()
        if self._connections:
            self._all_ended = trio.Event()
            with trio.move_on_after(grace_s):
                await self._all_ended.wait()

    async def cut_off(self) -> None:
        """Close whatever is open."""
        for connection in list(self._connections):
            await connection.abort()


class _Connection(TCPServer):
    """A connection whose writes end."""

    def __init__(
        self, app: ASGIWrapper, config: EngineConfig, context: WorkerContext, stream: trio.SocketStream
    ) -> None:
        super().__init__(app, config, context, ConnectionState({ABORT: self.abort}), cast(Any, stream))

    async def abort(self) -> None:
        """Close the socket at once; whoever waits on it is told."""
        await trio.aclose_forcefully(self.stream)

    async def protocol_send(self, event: Event) -> None:
        """Carry out what the protocol wants. Called by the engine."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            is_broken = False
            # Shielded, because half a frame would be worse than none.
            with trio.move_on_after(WRITE_TIMEOUT_S, shield=True) as deadline:
                try:
                    await self.stream.send_all(event.data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    is_broken = True
            if deadline.cancelled_caught:
                await self.abort()
            if is_broken or deadline.cancelled_caught:
                await self.protocol.handle(Closed())
