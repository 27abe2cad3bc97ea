"""A connection while it lasts: calls side by side, the list of tools kept up to date, and the moment to rest.

The calls wait in a bounded row, which outlives the connection.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import outcome
import trio

from pattern_core.errors import PatternError, Unavailable
from pattern_core.mcp_servers.connection import McpConnection
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.mcp_servers.stdio import McpLink
from pattern_core.mcp_servers.tools import Answer, OfferedTool

WAITING_MAX = 64  # calls that wait for one server
HANGS_MAX = 3  # calls in a row without an answer, before the connection is given up
RELIST_S = 1.0  # between two looks at a list that changes and changes

_log = logging.getLogger(__name__)


class Hung(Exception):
    """The server did not answer in time."""


def own(error: BaseException) -> Exception:
    """The error, if it is one; cancellation goes on.

    Raises:
        BaseException: `error` is a cancellation, or holds one.
    """
    if isinstance(error, Exception):
        return error
    rest = error.split(Exception)[1] if isinstance(error, BaseExceptionGroup) else error
    assert rest is not None  # or it were an Exception
    raise rest


def reason_of(error: BaseException) -> str:
    """What went wrong, for people: of a group the first that says something."""
    if isinstance(error, BaseExceptionGroup):
        return reason_of(error.exceptions[0])
    if isinstance(error, PatternError):
        return error.message
    words = str(error).strip().partition("\n")[0]
    return words or type(error).__name__


@dataclass(slots=True, eq=False, kw_only=True)
class McpCall:
    """A call on its way. `scope` is the owner's work on it; whoever waits cancels it when leaving."""

    tool: str
    arguments: Mapping[str, object]
    meta: Mapping[str, object]
    seconds: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    was_sent: bool = False
    answer: Answer | Exception | None = None

    def settle(self, answer: Answer | Exception) -> None:
        """The first answer counts."""
        if self.answer is None:
            self.answer = answer
            self.done.set()


class CallQueue:
    """Calls that nobody works on yet, oldest first. Whoever does not wait any more leaves the row."""

    def __init__(self) -> None:
        self._waiting: deque[McpCall] = deque()
        self._came = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: McpCall) -> bool:
        """Put the call at the end; False if there are `WAITING_MAX` already."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(call)
        self._came.set()
        return True

    def leave(self, call: McpCall) -> None:
        """Take the call out, if nobody took it yet."""
        if call in self._waiting:
            self._waiting.remove(call)

    async def next(self) -> McpCall:
        """Wait for a call and take it; being cancelled takes none."""
        while not self._waiting:
            self._came = trio.Event()
            await self._came.wait()
        return self._waiting.popleft()

    def give_up(self, error: Exception) -> None:
        """Answer all that wait with the error."""
        while self._waiting:
            self._waiting.popleft().settle(error)


class Life:
    """What the owner of a server does while it is connected. `was_useful`: it answered a call."""

    def __init__(
        self, settings: McpSettings, calls: CallQueue, on_tools: Callable[[Sequence[OfferedTool]], None]
    ) -> None:
        self.running = 0
        self.was_useful = False
        self._settings = settings
        self._calls = calls
        self._on_tools = on_tools
        self._slots = trio.Semaphore(settings.calls_max)
        self._waiting: trio.CancelScope | None = None
        self._shall_rest = False
        self._hangs = 0
        self._has_changed = trio.Event()

    def rest(self) -> None:
        """End as soon as nothing is under way."""
        self._shall_rest = True
        if self._waiting is not None:
            self._waiting.cancel()

    def changed(self) -> None:
        """The server says that its tools are others."""
        self._has_changed.set()

    async def serve(self, connection: McpConnection, link: McpLink) -> None:
        """Hand on calls until it is time to rest.

        Raises:
            Unavailable: the connection is lost; in a group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_listed, connection)
            nursery.start_soon(self._hear, connection)
            nursery.start_soon(_until_lost, link)
            while (call := await self._next()) is not None:
                self.running += 1
                nursery.start_soon(self._do, connection, link, call)
            nursery.cancel_scope.cancel()

    async def _next(self) -> McpCall | None:
        """The next call; None when it is time to rest."""
        await self._slots.acquire()
        while True:
            idle_s = self._settings.idle_s if self._settings.lazy else math.inf
            with trio.move_on_after(idle_s) as self._waiting:
                if self._shall_rest:
                    self._waiting.cancel()
                return await self._calls.next()
            if self.running == 0:
                return None
            # Whoever asked for rest gets it when the last call has ended.
            await trio.sleep(RELIST_S)

    async def _do(self, connection: McpConnection, link: McpLink, call: McpCall) -> None:
        try:
            if call.scope.cancel_called or (link.lost.is_set() and self._calls.add(call)):
                return  # given up; or it came too late for this connection, and just in time for the next
            call.scope.deadline = trio.current_time() + call.seconds
            with call.scope:
                call.was_sent = True
                answer = await outcome.acapture(connection.call, call.tool, call.arguments, call.meta)
                said = own(answer.error) if isinstance(answer, outcome.Error) else answer.value
                call.settle(said)
                self._hangs = 0
                self.was_useful = self.was_useful or not isinstance(said, Unavailable)
            if call.scope.cancelled_caught and trio.current_time() >= call.scope.deadline:
                self._hangs += 1
                if self._hangs >= HANGS_MAX:
                    link.lose(f"it did not answer {HANGS_MAX} calls in a row")
        finally:
            if call.was_sent:
                call.settle(Unavailable(link.reason) if link.lost.is_set() else Hung())
            self.running -= 1
            self._slots.release()

    async def _keep_listed(self, connection: McpConnection) -> None:
        while True:
            await self._has_changed.wait()
            self._has_changed = trio.Event()
            with trio.move_on_after(self._settings.call_timeout_s):
                listed = await outcome.acapture(connection.tools)
                if isinstance(listed, outcome.Value):
                    self._on_tools(listed.value)
                else:
                    _log.warning("the tools of an MCP server cannot be listed anew: %s", own(listed.error))
            await trio.sleep(RELIST_S)

    async def _hear(self, connection: McpConnection) -> None:
        heard = await outcome.acapture(connection.listen, self.changed)
        if isinstance(heard, outcome.Error):
            _log.debug("changes of an MCP server's tools are not told: %s", own(heard.error))


async def _until_lost(link: McpLink) -> None:
    try:
        await link.lost.wait()
        raise Unavailable(link.reason)
    finally:
        link.hang_up()
