"""The MCP servers of one constellation, each owned by one task: it starts the server, lists its tools, and ends it.

Only in that task is a connection entered and left. Callers call over it from their own tasks, and may leave at any
time: the library tells the server, and nothing waits for that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

import outcome
import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, Unavailable
from pattern_core.mcp_servers.connection import McpConnection
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.mcp_servers.tools import enables, may_have_happened, server_of, tools_of
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass

RUNNING_MAX = 16  # servers of one constellation at once; the one that is needed least makes room for the next
READY_WAIT_S = 20.0  # of a turn, for servers that are about to say what they offer
WAITING_MAX = 64  # calls that wait for one server
HANGS_MAX = 3  # calls in a row without an answer, before the connection is given up
RELIST_S = 1.0  # between two looks at a list that changes and changes
# Before the next start: at once after a connection that answered a call, later after each in a row that did not.
BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
END_S = 5.0  # for a connection to be left
REASON_CHARS_MAX = 500
NOT_SENT = "The call did not happen."
KEY = "pattern/idempotency-key"  # in the `_meta` of calls that may come again

State = Literal["resting", "starting", "ready", "failed", "stopped"]
"""`resting` until it is needed; `failed` until it is tried again; `stopped` with its constellation."""

_log = logging.getLogger(__name__)


def own(error: BaseException) -> Exception:
    """Return the error, if it is one; cancellation is passed on.

    Raises:
        BaseException: `error` is a cancellation, or holds one.
    """
    if isinstance(error, Exception):
        return error
    rest = error.split(Exception)[1] if isinstance(error, BaseExceptionGroup) else error
    assert rest is not None  # or it were an Exception
    raise rest


def reason_of(error: BaseException) -> str:
    """Return what went wrong, for people: of a group the first that says something."""
    if isinstance(error, BaseExceptionGroup):
        return reason_of(error.exceptions[0])
    if isinstance(error, PatternError):
        return error.message
    words = str(error).strip().partition("\n")[0]
    return words or type(error).__name__


class McpServer:
    """A configured server of one constellation. Its tools are in `registry` as they were when it was last asked.

    `room` is entered while it runs: it bounds how many do. `tools` is None until they are known.
    """

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        registry: ToolRegistry,
        room: Callable[[McpServer], AbstractAsyncContextManager[None]],
    ) -> None:
        self.name = name
        self.settings = settings
        self.state: State = "resting" if settings.lazy else "starting"
        self.last_error: str | None = None
        self.last_used = -math.inf  # trio's time
        self.tools: Sequence[Tool] | None = None
        self._registry = registry
        self._room = room
        self._calls = 0  # waiting or under way
        self._slots = trio.Semaphore(settings.calls_max)
        self._connection = McpConnection(settings)  # while `ready`; else the last one, or the one that is being made
        self._hangs = 0  # in a row
        self._useless = 1  # the place in BACKOFF_S, if the connection fails now
        self._rests = False
        self._has_changed = False  # what it offers
        self._retry_at = -math.inf
        self._moved = trio.lowlevel.ParkingLot()  # wakes tasks when anything of this changes
        registry.expect(name)

    @property
    def is_idle(self) -> bool:
        """Whether it runs and no call waits for it."""
        return self.state == "ready" and not self._calls

    def rest(self) -> None:
        """Let it end as soon as no call is under way; the next call starts it again."""
        self._rests = True
        self._moved.unpark_all()

    async def known(self) -> None:
        """Wait until it is known what it offers, or that this cannot be known now; starts it if need be."""
        if self.tools is None and self._want():
            await self._settled()

    async def tried(self) -> None:
        """Start it if it does not run, also where it was to be left alone for a while, and wait how that goes."""
        self._retry_at = -math.inf
        if self._want():
            await self._settled()

    async def call(self, tool: Tool, name: str, arguments: Mapping[str, object], key: str) -> str:
        """Call its tool `name`; returns the result's text. `key` is sent with calls that may come again.

        Raises:
            InvalidInput: the server refused the call, or the tool failed.
            Overloaded: too many calls wait for it.
            Unavailable: it cannot be reached, went away, or took too long; the message says which.
        """
        if not self._want():
            raise Unavailable(self._not_now())
        if self._calls >= WAITING_MAX + self.settings.calls_max:
            raise Overloaded(f"{WAITING_MAX} calls wait for the MCP server {self.name}; try again later")
        start_s = 0.0 if self.state == "ready" else self.settings.start_timeout_s
        seconds = self.settings.call_timeout_s
        sent: McpConnection | None = None  # over which the call went
        self._calls += 1
        try:
            with trio.move_on_after(start_s + seconds) as patience:
                async with self._slots:
                    sent = await self._connected()
                    patience.deadline = trio.current_time() + seconds
                    return await self._answer(sent, tool, name, arguments, key)
        finally:
            self._calls -= 1
            self.last_used = trio.current_time()
            self._moved.unpark_all()
        if sent is not None:
            self._hangs += 1
            if self._hangs >= HANGS_MAX:
                sent.lose(f"it did not answer {HANGS_MAX} calls in a row")
        outlook = may_have_happened(tool) if sent is not None else NOT_SENT
        raise Unavailable(f"the MCP server {self.name} did not answer within {seconds:g} s. {outlook}")

    async def _connected(self) -> McpConnection:
        if self._connection.lost.is_set():  # too late for this one, and just in time for the next
            await self._connection.over.wait()
        if self._want():
            await self._settled()
        if self.state != "ready":
            raise Unavailable(self._unusable(self.last_error or "its constellation stops", NOT_SENT))
        return self._connection

    async def _answer(
        self, connection: McpConnection, tool: Tool, name: str, arguments: Mapping[str, object], key: str
    ) -> str:
        try:
            answer = await connection.call(name, arguments, {KEY: key} if tool.effect is EffectClass.IDEMPOTENT else {})
        except InvalidInput as error:
            raise InvalidInput(f"the MCP server {self.name} refused the call: {error.message}") from error
        except Unavailable as error:
            if connection.lost.is_set():
                await connection.over.wait()
            raise Unavailable(self._unusable(connection.reason or error.message, may_have_happened(tool))) from error
        self._useless = self._hangs = 0
        if answer.is_error:
            raise InvalidInput(f"the tool failed, as the MCP server {self.name} says: {answer.text}")
        return answer.text

    def _unusable(self, reason: str, outlook: str) -> str:
        return f"the MCP server {self.name} cannot be used ({reason}). {outlook}"

    def _want(self) -> bool:
        """Have it started unless it runs; False if it is to be left alone for now."""
        if self.state == "stopped" or (self.state == "failed" and trio.current_time() < self._retry_at):
            return False
        if self.state in ("resting", "failed"):
            self._move("starting")
        return True

    def _not_now(self) -> str:
        if self.state == "stopped":
            return f"the MCP server {self.name} is stopped, as its constellation is; try again in a while"
        wait_s = max(math.ceil(self._retry_at - trio.current_time()), 1)
        return (
            f"the MCP server {self.name} cannot be used ({self.last_error}). It is tried again in {wait_s} s; go on"
            " without it, or tell somebody who can look at it with `pattern mcp list`"
        )

    def _move(self, state: State) -> None:
        self.state = state
        self._moved.unpark_all()

    async def _settled(self) -> None:
        while self.state == "starting":
            await self._moved.park()

    async def run(self) -> None:
        """Own the server until cancelled."""
        try:
            while True:
                await self._until_wanted()
                await self._serve()
        finally:
            self._move("stopped")

    async def _until_wanted(self) -> None:
        while self.state != "starting":
            is_due = self.state == "failed" and not self.settings.lazy
            with trio.move_on_at(self._retry_at if is_due else math.inf) as waiting:
                await self._moved.park()
            if waiting.cancelled_caught:
                self._move("starting")

    async def _serve(self) -> None:
        """Run the server once, from its start to its end."""
        connection = self._connection = McpConnection(self.settings)
        self._rests = False
        self._hangs = 0
        self._useless = max(self._useless, 1)
        reason = f"it did not start within {self.settings.start_timeout_s:g} s"
        try:
            with trio.move_on_after(self.settings.start_timeout_s) as scope:
                served = await outcome.acapture(self._run_connection, connection, scope)
                if isinstance(served, outcome.Error):
                    reason = reason_of(own(served.error))
        finally:
            connection.over.set()
        if self.state == "ready" or not self._rests:
            is_late = scope.cancelled_caught and self.state != "ready"
            self._failed(reason if is_late else connection.reason or reason)

    def _failed(self, reason: str) -> None:
        self.last_error = reason[:REASON_CHARS_MAX]
        _log.warning("MCP server %s: %s", self.name, self.last_error)
        self._retry_at = trio.current_time() + BACKOFF_S[min(self._useless, len(BACKOFF_S) - 1)]
        self._useless += 1
        self._move("failed")

    async def _run_connection(self, connection: McpConnection, scope: trio.CancelScope) -> None:
        """Use the connection until it is lost or not needed; `scope` bounds how long entering and leaving it takes.

        Raises:
            Exception: it cannot be made, or was lost.
        """
        if self.settings.missing:
            raise Unavailable(f"not set in the server's environment: {', '.join(self.settings.missing)}")
        async with self._room(self), connection.opened(self._change):
            await self._list(connection)
            scope.deadline = math.inf
            self.last_error = None
            self.last_used = trio.current_time()
            self._move("ready")
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_listed, connection)
                    nursery.start_soon(self._listen, connection)
                    nursery.start_soon(connection.until_lost)
                    await self._until_unneeded()
                    nursery.cancel_scope.cancel()
            finally:
                # Leaving may hang too, where it is a request to a server that does not answer.
                scope.deadline = trio.current_time() + END_S

    async def _until_unneeded(self) -> None:
        while True:
            rest_at = math.inf
            if not self._calls and (self._rests or self.settings.lazy):
                rest_at = self.last_used + (0 if self._rests else self.settings.idle_s)
            if trio.current_time() >= rest_at:
                break
            with trio.move_on_at(rest_at):
                await self._moved.park()
        self._rests = True
        self._move("resting")

    def _change(self) -> None:
        self._has_changed = True
        self._moved.unpark_all()

    async def _list(self, connection: McpConnection) -> None:
        self._has_changed = False
        self.tools = tools_of(self.name, self.settings, await connection.tools(), self.call)
        self._registry.replace(self.name, self.tools)

    async def _keep_listed(self, connection: McpConnection) -> None:
        while True:
            while not self._has_changed:
                await self._moved.park()
            with trio.move_on_after(self.settings.call_timeout_s):
                listed = await outcome.acapture(self._list, connection)
                if isinstance(listed, outcome.Error):
                    _log.warning("the tools of an MCP server cannot be listed again: %s", own(listed.error))
            await trio.sleep(RELIST_S)

    async def _listen(self, connection: McpConnection) -> None:
        heard = await outcome.acapture(connection.listen, self._change)
        if isinstance(heard, outcome.Error):
            _log.debug("an MCP server does not say when its tools change: %s", own(heard.error))


class McpServers:
    """All servers that the operator configured, for one constellation; their tools are kept in its `registry`."""

    def __init__(
        self, settings: Mapping[str, McpSettings], registry: ToolRegistry, *, running_max: int = RUNNING_MAX
    ) -> None:
        self._servers = {name: McpServer(name, settings[name], registry, self._room) for name in sorted(settings)}
        self._free = trio.Semaphore(running_max)

    async def run(self) -> None:
        """Own the servers until cancelled; none of their processes survives this."""
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                nursery.start_soon(server.run, name=f"MCP server {server.name}")

    def pending(self, enabled: Sequence[str]) -> list[McpServer]:
        """Return the servers that an agent with these names uses and that have not said yet what they offer."""
        return [server for server in self._servers.values() if server.tools is None and enables(enabled, server.name)]

    async def ready(self, enabled: Sequence[str]) -> None:
        """Wait until the tools are known of all servers that an agent with these names uses, as far as they can be.

        It starts those that were not needed before. One that does not answer within `READY_WAIT_S` is left out.
        """
        with trio.move_on_after(READY_WAIT_S):
            async with trio.open_nursery() as nursery:
                for server in self.pending(enabled):
                    nursery.start_soon(server.known)

    def all(self) -> list[McpServer]:
        """Return all servers, by name."""
        return list(self._servers.values())

    async def tried(self, name: str) -> McpServer:
        """Start a server now, unless it runs, and return it when it is known how that went.

        Raises:
            NotFound: no server of this name is configured.
        """
        server = self._servers.get(name)
        if server is None:
            raise NotFound(f"there is no MCP server {name!r}; it needs a section [mcp.{name}] in the configuration")
        await server.tried()
        return server

    @asynccontextmanager
    async def _room(self, server: McpServer) -> AsyncIterator[None]:
        """While a server runs. If too many do, the one that has been idle longest is asked to rest."""
        idle = [other for other in self._servers.values() if other.is_idle and other is not server]
        if self._free.value == 0 and idle:
            min(idle, key=lambda other: other.last_used).rest()
        async with self._free:
            yield


def missing(server: McpServer, enabled: Iterable[str]) -> list[str]:
    """Return the enabled names of this server that it does not offer; none as long as its tools are unknown."""
    offered = {tool.name for tool in server.tools or ()}
    mine = {name for name in enabled if server_of(name) == server.name and not name.endswith("*")}
    return [] if server.tools is None else sorted(mine - offered)
