"""Stand-ins that behave: a clock that a test moves by hand, a scripted model and vendors' servers on loopback."""

from __future__ import annotations

from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together

__all__ = [
    "START_MS",
    "Paced",
    "ScriptedProvider",
    "StoppedClock",
    "calls",
    "says",
    "together",
]

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00.000Z


class StoppedClock:
    """Wall time that stays constant until it is moved; starts at `start_ms` (unix milliseconds)."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move by `ms` milliseconds (back if negative, as wall clocks do) and return the new time."""
        self._now_ms += ms
        return self._now_ms
