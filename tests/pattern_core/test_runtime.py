from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from pattern_core.ids import SystemClock, seeded_randomness
from pattern_core.models.model import Usage
from pattern_core.runtime import Meters, Runtime
from pattern_core.testing.clock import StoppedClock


def test_by_default_it_is_the_real_world() -> None:
    one, two = Runtime(), Runtime()
    assert isinstance(one.clock, SystemClock)
    assert one.randomness.getrandbits(80) != two.randomness.getrandbits(80)


def test_tests_bring_their_own() -> None:
    clock = StoppedClock()
    one, two = (Runtime(clock=clock, randomness=seeded_randomness(3)) for _time in range(2))
    assert one.clock is clock
    assert one.randomness.getrandbits(80) == two.randomness.getrandbits(80)
    with pytest.raises(FrozenInstanceError):
        one.clock = SystemClock()  # type: ignore[misc]  # that it is refused is the test


def test_next_to_nothing_is_counted_where_nobody_listens() -> None:
    nobody = Meters()
    nobody.working += 1
    nobody.commits += 2
    nobody.turn_ended("completed", 1.0)
    nobody.step_done("p", "m", 1.0)
    nobody.tokens("p", "m", Usage(input_tokens=1, output_tokens=1), None)
    nobody.call_ended("search", "done", 1.0)
    assert vars(nobody) == {"working": 1, "commits": 2}
