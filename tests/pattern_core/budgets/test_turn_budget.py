from __future__ import annotations

from typing import Any

import pytest

from pattern_core.budgets.turn_budget import TurnBudget
from pattern_core.errors import LimitReached


def test_a_turn_may_go_as_far_as_its_bounds() -> None:
    bounds = TurnBudget(steps=3, tool_calls=2, wall_s=10, children=0, output_chars=100)
    bounds.check(steps=3, tool_calls=2, wall_s=10.0, children=0, output_chars=100)
    TurnBudget().check(steps=10**6)


@pytest.mark.parametrize(
    ("use", "named", "words"),
    [
        ({"steps": 4}, "steps", "took 3 steps and wants more"),
        ({"tool_calls": 3}, "tool_calls", "more than 2 tool calls"),
        ({"wall_s": 10.1}, "wall_s", "longer than 10 s"),
        ({"children": 1}, "children", "other agents more than 0 times"),
        ({"output_chars": 1_001}, "output_chars", "more than 1,000 characters"),
    ],
)
def test_a_turn_that_passes_a_bound_is_told_which(use: dict[str, Any], named: str, words: str) -> None:
    bounds = TurnBudget(steps=3, tool_calls=2, wall_s=10, children=0, output_chars=1_000)
    with pytest.raises(LimitReached, match=words) as refused:
        bounds.check(**use)
    assert refused.value.details["limit"] == named
