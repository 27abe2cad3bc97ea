from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from pattern_core.testing import StoppedClock, TrioClock
from pattern_core.testing.clock import START_MS


def test_stopped_clock_moves_only_by_hand() -> None:
    clock = StoppedClock(1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    assert clock.advance(250) == 1_250
    assert clock.advance(-500) == clock.now_ms() == 750
    assert StoppedClock().now_ms() == START_MS


def test_trio_clock_follows_virtual_time() -> None:
    async def readings() -> list[int]:
        clock = TrioClock(5_000)
        first = clock.now_ms()
        await trio.sleep(3_600)
        return [first, clock.now_ms()]

    assert trio.run(readings, clock=MockClock(autojump_threshold=0)) == [5_000, 3_605_000]


def test_trio_clock_needs_trio() -> None:
    with pytest.raises(RuntimeError):
        TrioClock().now_ms()
