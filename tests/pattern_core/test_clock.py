from __future__ import annotations

import time

from pattern_core.clock import Clock, SystemClock, now_text
from pattern_core.testing.clock import StoppedClock


def test_the_systems_clock_tells_unix_milliseconds() -> None:
    clock: Clock = SystemClock()
    before = time.time() * 1000
    assert before - 1 <= clock.now_ms() <= time.time() * 1000 + 1


def test_the_time_as_it_is_stored() -> None:
    clock = StoppedClock(1_795_000_000_007)
    assert now_text(clock) == "2026-11-18T11:06:40.007Z"
    clock.advance(-8)
    assert now_text(clock) == "2026-11-18T11:06:39.999Z"
