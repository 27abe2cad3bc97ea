"""Calls on their way to a server, and the bounded row in which they wait for its owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from pattern_core.mcp_servers.answers import Answer

WAITING_MAX = 64  # calls that wait for one server


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
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


class Calls:
    """Calls that nobody works on yet, oldest first. Whoever does not wait any more leaves the row."""

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._came = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Call) -> bool:
        """Put the call at the end; False if there are `WAITING_MAX` already."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(call)
        self._came.set()
        return True

    def leave(self, call: Call) -> None:
        """Take the call out, if nobody took it yet."""
        if call in self._waiting:
            self._waiting.remove(call)

    async def next(self) -> Call:
        """Wait for a call and take it; being cancelled takes none."""
        while not self._waiting:
            self._came = trio.Event()
            await self._came.wait()
        return self._waiting.popleft()

    def give_up(self, error: Exception) -> None:
        """Answer all that wait with the error."""
        while self._waiting:
            self._waiting.popleft().settle(error)
