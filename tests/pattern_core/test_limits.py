from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from pattern_core.limits import Limits, PromptLimits, TurnLimits

UNITS = ("_max", "_s", "_chars", "_default")


@pytest.mark.parametrize("limits", [Limits(), TurnLimits(), PromptLimits()])
def test_every_bound_is_positive_and_says_its_unit(limits: Limits | TurnLimits | PromptLimits) -> None:
    for name, value in asdict(limits).items():
        if not isinstance(value, dict):
            assert value > 0, name
            assert name.endswith(UNITS), name


def test_bounds_that_lie_within_each_other() -> None:
    limits = Limits()
    assert limits.turn.tool_timeout_s < limits.turn.turn_timeout_s
    assert limits.turn.model_idle_timeout_s < limits.turn.model_timeout_s < limits.turn.turn_timeout_s
    assert limits.block_chars_default <= limits.block_chars_max


def test_limits_are_changed_by_making_new_ones() -> None:
    few = replace(Limits(), turn=TurnLimits(steps_max=3))
    assert (few.turn.steps_max, Limits().turn.steps_max) == (3, 50)
    with pytest.raises(FrozenInstanceError):
        few.agents_max = 1  # type: ignore[misc]  # that it is refused is the test
