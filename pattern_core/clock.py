"""The clock, as one injected function: everything that asks for the time asks here."""

from __future__ import annotations

import time
from typing import Protocol

from pattern_db.columns import iso


class Clock(Protocol):
    """Tells the wall time; tests use `pattern_core.testing.StoppedClock`."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return time.time_ns() // 1_000_000


def now_text(clock: Clock) -> str:
    """The clock's time as stored: `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    return iso(clock.now_ms())
