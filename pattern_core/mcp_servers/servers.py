"""The MCP servers of one constellation, each owned by one task: it starts the server, lists its tools, and ends it.

Only in that task is a connection entered and left. Callers call over it from their own tasks, and may leave at any
time: the library notifies the server, and nothing waits for that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, Unavailable
from pattern_core.mcp_servers.connection import McpConnection
from pattern_core.mcp_servers.tools import may_have_happened, server_of, tools_of
from pattern_core.mcp_settings import McpSettings
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass

READY_WAIT_S = 5.0  # after a server's first start, during which turns wait for it; then they go without its tools
WAITING_MAX = 64  # calls that wait for one server
# Before the next start: at once after a connection that answered a call, later after each in a row that did not.
BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
END_S = 5.0  # for a connection to be left
REASON_CHARS_MAX = 500
KEY = "pattern/idempotency-key"  # in the `_meta` of calls that may come again

State = Literal["resting", "starting", "ready", "failed", "stopped"]
"""`resting` until it is needed; `failed` until it is retried; `stopped` with its constellation."""

_log = logging.getLogger(__name__)


def reason_of(error: BaseException) -> str:
    """Return what went wrong, for people: of a group that of the first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).strip().partition("\n")[0] or type(error).__name__


class McpServer:
    """A configured server of one constellation. Its tools are in `registry` as they were when it was last asked.

    They are listed at each start and by `tried`. `tools` is None until they are known.
    """

    def __init__(self, name: str, settings: McpSettings, registry: ToolRegistry) -> None:
        self.name = name
        self.settings = settings
        self.state: State = "resting"
        self.last_error: str | None = None
        self.tools: Sequence[Tool] | None = None
        self._registry = registry
        self._calls = 0  # waiting or running
        self._used_at = self._began_at = -math.inf  # trio's time
        self._slots = trio.Semaphore(settings.calls_max)
        self._useless = 0  # connections in a row that failed before they answered a call; -1 after one that answered
        self._has_rested = False  # the connection ends because it is not needed
        self._retry_at = -math.inf
        self._moved = trio.lowlevel.ParkingLot()  # wakes tasks when anything of this changes
        self._connection = McpConnection(settings, self._moved)  # the newest, also while it is made
        registry.replace(name, ())

    async def started(self, patience_s: float = math.inf) -> None:
        """Start it, unless it runs or its retry is not due; wait for the outcome until this long after its start."""
        if self._want():
            with trio.move_on_at(self._began_at + patience_s):
                while self.state == "starting":
                    await self._moved.park()

    async def tried(self) -> None:
        """Start it, also before its next try is due, or list its tools again if it runs; wait for the outcome."""
        self._retry_at = -math.inf
        if self.state != "ready":
            await self.started()
            return
        connection = self._connection
        reason = f"it did not list its tools within {self.settings.start_timeout_s:g} s"
        with self._in_use(), trio.move_on_after(self.settings.start_timeout_s):
            try:
                await self._list(connection)
                return
            except PatternError as error:
                reason = error.message
        connection.lose(reason)
        await connection.over.wait()

    async def call(self, tool: Tool, name: str, arguments: Mapping[str, object], key: str) -> str:
        """Call its tool `name`; returns the result's text. `key` is sent with calls that may come again.

        Raises:
            InvalidInput: the server refused the call, or the tool failed.
            Overloaded: too many calls wait for it.
            Unavailable: it cannot be reached, disconnected, or was too slow; the message has the reason.
        """
        if not self._want():
            raise Unavailable(self._not_now())
        if self._calls >= WAITING_MAX + self.settings.calls_max:
            raise Overloaded(f"{WAITING_MAX} calls wait for the MCP server {self.name}; try again later")
        start_s = 0.0 if self.state == "ready" else self.settings.start_timeout_s
        seconds = self.settings.call_timeout_s
        outlook = "The call did not happen."
        with self._in_use(), trio.move_on_after(start_s + seconds) as patience:
            async with self._slots:
                if self._connection.lost.is_set():  # too late for this one, and just in time for the next
                    await self._connection.over.wait()
                await self.started()
                if self.state != "ready":
                    raise Unavailable(self._not_now())
                patience.deadline = trio.current_time() + seconds
                outlook = may_have_happened(tool)
                meta = {KEY: key} if tool.effect is EffectClass.IDEMPOTENT else {}
                return await self._answer(name, arguments, meta, outlook)
        raise Unavailable(f"the MCP server {self.name} did not answer within {seconds:g} s. {outlook}")

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Prevent it from becoming idle."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._used_at = trio.current_time()
            self._moved.unpark_all()

    async def _answer(self, name: str, arguments: Mapping[str, object], meta: Mapping[str, str], outlook: str) -> str:
        connection = self._connection
        try:
            text, is_error = await connection.call(name, arguments, meta)
        except InvalidInput as error:
            raise InvalidInput(f"the MCP server {self.name} refused the call: {error.message}") from error
        except Unavailable as error:
            if connection.lost.is_set():
                await connection.over.wait()
            reason = connection.reason or error.message
            raise Unavailable(f"the MCP server {self.name} cannot be used ({reason}). {outlook}") from error
        self._useless = -1
        if is_error:
            raise InvalidInput(f"the tool failed, as the MCP server {self.name} says: {text}")
        return text

    def _want(self) -> bool:
        """Let it start unless it runs; return False if its retry is not due."""
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
            f"the MCP server {self.name} cannot be used ({self.last_error}). It is tried again in {wait_s} s; continue"
            " without it, or tell a person, who can look at it with `pattern mcp list`"
        )

    def _move(self, state: State) -> None:
        self.state = state
        if state == "starting":
            self._began_at = trio.current_time()
        self._moved.unpark_all()

    async def run(self) -> None:
        """Own the server until cancelled."""
        if not self.settings.lazy:
            self._want()
        try:
            while True:
                while self.state != "starting":
                    is_due = self.state == "failed" and not self.settings.lazy
                    with trio.move_on_at(self._retry_at if is_due else math.inf) as waiting:
                        await self._moved.park()
                    if waiting.cancelled_caught:
                        self._move("starting")
                await self._serve()
        finally:
            self._move("stopped")

    async def _serve(self) -> None:
        """Run the server once, from its start to its end."""
        connection = self._connection = McpConnection(self.settings, self._moved)
        self._has_rested = False
        reason = f"it did not start within {self.settings.start_timeout_s:g} s"
        try:
            with trio.move_on_after(self.settings.start_timeout_s) as scope:
                try:
                    await self._use(connection, scope)
                except* Exception as errors:  # noqa: BLE001  # the border of one server
                    reason = reason_of(errors)
        finally:
            connection.over.set()
        if not self._has_rested:
            is_late = scope.cancelled_caught and self.state == "starting"
            self.last_error = (reason if is_late else connection.reason or reason)[:REASON_CHARS_MAX]
            _log.warning("MCP server %s: %s", self.name, self.last_error)
            self._useless += 1
            self._retry_at = trio.current_time() + BACKOFF_S[min(self._useless, len(BACKOFF_S) - 1)]
            self._move("failed")

    async def _use(self, connection: McpConnection, scope: trio.CancelScope) -> None:
        """Use the connection until it is lost or not needed; `scope` bounds how long entering and leaving it takes."""
        if faults := self.settings.faults:
            raise Unavailable("; ".join(faults))
        async with connection.opened():
            await self._list(connection)
            scope.deadline = math.inf
            self.last_error = None
            self._used_at = trio.current_time()
            self._move("ready")
            try:
                await self._until_unneeded(connection)
            finally:
                # Leaving may hang too, where it is a request to a server that does not answer.
                scope.deadline = trio.current_time() + END_S

    async def _until_unneeded(self, connection: McpConnection) -> None:
        while not connection.lost.is_set():
            is_needed = self._calls or not self.settings.lazy
            rest_at = math.inf if is_needed else self._used_at + self.settings.idle_s
            if trio.current_time() >= rest_at:
                self._has_rested = True
                self._move("resting")
                break
            with trio.move_on_at(rest_at):
                await self._moved.park()

    async def _list(self, connection: McpConnection) -> None:
        self.tools = tools_of(self.name, self.settings, await connection.tools(), self.call)
        self._registry.replace(self.name, self.tools)


class McpServers:
    """All servers that the operator configured, for one constellation; their tools are kept in its `registry`."""

    def __init__(self, settings: Mapping[str, McpSettings], registry: ToolRegistry) -> None:
        self.by_name = {name: McpServer(name, settings[name], registry) for name in sorted(settings)}

    async def run(self) -> None:
        """Own the servers until cancelled; none of their processes survives this."""
        async with trio.open_nursery() as nursery:
            for server in self.by_name.values():
                nursery.start_soon(server.run, name=f"MCP server {server.name}")

    def pending(self, enabled: Sequence[str]) -> list[McpServer]:
        """Return the servers that an agent with these names uses and that have not said yet what they offer."""
        used = {server_of(name) for name in enabled}
        return [server for name, server in self.by_name.items() if name in used and server.tools is None]

    async def ready(self, enabled: Sequence[str]) -> None:
        """Wait until the tools are known of all servers that an agent with these names uses, as far as they can be.

        It starts those that were not needed before. One that has not listed its tools `READY_WAIT_S` after its start
        continues to start, and no turn waits for it, nor for the next starts of one that failed to.
        """
        async with trio.open_nursery() as nursery:
            for server in self.pending(enabled):
                nursery.start_soon(server.started, 0.0 if server.last_error else READY_WAIT_S)

    def absent(self, enabled: Sequence[str]) -> list[str]:
        """Return what a model has to know of the servers that it should have tools of, a sentence for each."""
        why = {"starting": "it is starting; they come in a later step or turn"}
        return [
            f"The tools of the MCP server {one.name} are not there: {why.get(one.state, 'it cannot be used now')}."
            for one in self.pending(enabled)
        ]

    async def tried(self, name: str) -> McpServer:
        """Start a server now, or list its tools again if it runs, and return it when the outcome is known.

        Raises:
            NotFound: no server of this name is configured.
        """
        server = self.by_name.get(name)
        if server is None:
            raise NotFound(f"there is no MCP server {name!r}; it needs a section [mcp.{name}] in the configuration")
        await server.tried()
        return server


def missing(server: McpServer, enabled: Iterable[str]) -> list[str]:
    """Return the enabled names of this server that it does not offer; none as long as its tools are unknown."""
    offered = {tool.name for tool in server.tools or ()}
    mine = {name for name in enabled if server_of(name) == server.name and not name.endswith("*")}
    return [] if server.tools is None else sorted(mine - offered)
