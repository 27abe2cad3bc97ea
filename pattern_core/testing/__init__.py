"""Stand-ins that behave: clocks, a scripted model and vendors' servers on loopback; part of the product, tested too."""

from __future__ import annotations

from pattern_core.testing.clock import StoppedClock, TrioClock
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together

__all__ = [
    "Paced",
    "ScriptedProvider",
    "StoppedClock",
    "TrioClock",
    "calls",
    "says",
    "together",
]
