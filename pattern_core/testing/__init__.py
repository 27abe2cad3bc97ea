"""Stand-ins that behave: clocks that a test moves by hand or that follow trio's, a scripted model and vendors' servers
on loopback; part of the product, tested too.
"""

from __future__ import annotations

import trio

from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together

__all__ = [
    "START_MS",
    "Paced",
    "ScriptedProvider",
    "StoppedClock",
    "TrioClock",
    "calls",
    "says",
    "together",
]

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00.000Z


class StoppedClock:
    """Wall time that stands still until it is moved; starts at `start_ms` (unix milliseconds)."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move by `ms` milliseconds (back if negative, as wall clocks do) and return the new time."""
        self._now_ms += ms
        return self._now_ms


class TrioClock:
    """Wall time that passes as trio's time does: with `trio.testing.MockClock`, sleeping moves both.

    The first reading, within `trio.run`, is `start_ms` (unix milliseconds).
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._zero_s: float | None = None  # trio's time has no fixed origin

    def now_ms(self) -> int:
        """Unix time in milliseconds.

        Raises:
            RuntimeError: called outside of `trio.run`.
        """
        now_s = trio.current_time()
        if self._zero_s is None:
            self._zero_s = now_s
        return self._start_ms + round((now_s - self._zero_s) * 1_000)
