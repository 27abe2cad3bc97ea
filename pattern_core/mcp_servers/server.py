"""One MCP server and the task that owns it: starts it, hands it calls, ends it.

`run` is that task. Only there is a connection entered and left; callers put a call into a bounded queue and wait for
its answer. They may leave at any time: the owner cancels the call at the server, and nobody waits for that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

import outcome
import trio

from pattern_core.errors import InvalidInput, Overloaded, Unavailable
from pattern_core.mcp_servers.connection import connected, load_library
from pattern_core.mcp_servers.life import WAITING_MAX, CallQueue, Hung, Life, McpCall, own, reason_of
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.mcp_servers.stdio import McpLink
from pattern_core.mcp_servers.tools import Answer, OfferedTool, may_have_happened, tools_of
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # after so many lives in a row that were of no use
END_S = 5.0  # for a connection to be left
PATIENCE_S = 0.5  # with the owner, beyond a call's own time
REASON_CHARS_MAX = 500
KEY = "pattern/idempotency-key"  # in the `_meta` of calls that may come again

State = Literal["resting", "starting", "ready", "failed", "stopped"]
"""`resting` until somebody needs it; `failed` until it is tried again; `stopped` with its constellation."""

_log = logging.getLogger(__name__)


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
        self._calls = CallQueue()
        self._life: Life | None = None
        self._useless = 0  # lives in a row
        self._retry_at = -math.inf
        self._moved = trio.Event()  # set, and replaced, at each change of state
        registry.expect(name)

    @property
    def is_idle(self) -> bool:
        """Whether it runs and nobody waits for it."""
        return self.state == "ready" and self._life is not None and not self._life.running and not self._calls

    def rest(self) -> None:
        """Let it end as soon as no call is under way; the next call starts it again."""
        if self._life is not None:
            self._life.rest()

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
        self.last_used = trio.current_time()
        seconds = self.settings.call_timeout_s
        meta = {KEY: key} if tool.effect is EffectClass.IDEMPOTENT else {}
        call = McpCall(tool=name, arguments=arguments, meta=meta, seconds=seconds)
        if not self._calls.add(call):
            raise Overloaded(f"{WAITING_MAX} calls wait for the MCP server {self.name}; try again later")
        start_s = 0.0 if self.state == "ready" else self.settings.start_timeout_s
        try:
            with trio.move_on_after(start_s + seconds + PATIENCE_S):
                await call.done.wait()
        finally:
            self._calls.leave(call)
            call.scope.cancel()
        return self._text(tool, call)

    def _text(self, tool: Tool, call: McpCall) -> str:
        """The text of the answer, or why there is none, in words for the agent."""
        answer = call.answer or Hung()
        if isinstance(answer, Answer):
            if answer.is_error:
                raise InvalidInput(f"the tool failed, as the MCP server {self.name} says: {answer.text}")
            return answer.text
        outlook = may_have_happened(tool) if call.was_sent else "The call did not happen."
        match answer:
            case InvalidInput(message=message):
                raise InvalidInput(f"the MCP server {self.name} refused the call: {message}")
            case Hung():
                limit = f"{call.seconds:g} s"
                raise Unavailable(f"the MCP server {self.name} did not answer within {limit}. {outlook}")
            case error:
                raise Unavailable(f"the MCP server {self.name} cannot be used ({reason_of(error)}). {outlook}")

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
        self._moved.set()
        self._moved = trio.Event()

    async def _settled(self) -> None:
        while self.state == "starting":
            await self._moved.wait()

    async def run(self) -> None:
        """Own the server until cancelled."""
        try:
            while True:
                await self._until_wanted()
                lived = await outcome.acapture(self._live)
                if isinstance(lived, outcome.Error):
                    self._failed(own(lived.error))
                else:
                    self._move("starting" if self._calls else "resting")
        finally:
            self._move("stopped")
            self._calls.give_up(Unavailable("its constellation stops"))

    async def _until_wanted(self) -> None:
        while self.state != "starting":
            is_due = self.state == "failed" and not self.settings.lazy
            with trio.move_on_at(self._retry_at if is_due else math.inf) as waiting:
                await self._moved.wait()
            if waiting.cancelled_caught:
                self._move("starting")

    def _failed(self, error: Exception) -> None:
        self.last_error = reason_of(error)[:REASON_CHARS_MAX]
        _log.warning("MCP server %s: %s", self.name, self.last_error)
        was_useful = self._life is not None and self._life.was_useful
        wait_s = 0.0 if was_useful else BACKOFF_S[min(self._useless, len(BACKOFF_S) - 1)]
        self._useless = 0 if was_useful else self._useless + 1
        self._life = None
        self._retry_at = trio.current_time() + wait_s
        if was_useful and self._calls:  # they came too late for it, and just in time for the next
            self._move("starting")
            return
        self._move("failed")
        self._calls.give_up(Unavailable(self.last_error))

    async def _live(self) -> None:
        """One life of a connection, from its start to its end.

        Raises:
            Exception: it could not be made, or was lost.
        """
        link, error = McpLink(), None
        self._life = Life(self.settings, self._calls, self._take)
        with trio.move_on_after(self.settings.start_timeout_s) as scope:
            lived = await outcome.acapture(self._connect, self._life, link, scope)
            error = own(lived.error) if isinstance(lived, outcome.Error) else None
        if link.lost.is_set():
            raise Unavailable(link.reason)
        if error is not None:
            raise error
        if scope.cancelled_caught and self.state != "ready":
            raise Unavailable(f"it did not start within {self.settings.start_timeout_s:g} s")

    async def _connect(self, life: Life, link: McpLink, scope: trio.CancelScope) -> None:
        if self.settings.missing:
            raise Unavailable(f"not set in the server's environment: {', '.join(self.settings.missing)}")
        async with self._room(self):
            await load_library()
            async with connected(self.settings, link, life.changed) as connection:
                self._take(await connection.tools())
                scope.deadline = math.inf
                self.last_error = None
                self.last_used = trio.current_time()
                self._move("ready")
                try:
                    await life.serve(connection, link)
                finally:
                    # Leaving may hang too, where it is a request to a server that does not answer.
                    scope.deadline = trio.current_time() + END_S

    def _take(self, offered: Sequence[OfferedTool]) -> None:
        self.tools = tools_of(self.name, self.settings, offered, self.call)
        self._registry.replace(self.name, self.tools)
