from __future__ import annotations

from typing import Any

import pytest

from pattern_core.budgets.turn_budget import TurnBudget
from pattern_core.errors import InvalidInput, LimitReached
from pattern_core.limits import TurnLimits


def test_a_config_says_what_differs() -> None:
    assert TurnBudget.of(None) == TurnBudget.of({}) == TurnBudget()
    own = TurnBudget.of({"steps": 3, "wall_s": 1.5, "tokens": 100, "children": 0, "microdollars": None})
    assert own == TurnBudget(steps=3, wall_s=1.5, tokens=100, children=0)
    limits = TurnLimits()
    assert own.over(limits) == TurnBudget(steps=3, wall_s=1.5, tokens=100, children=0, tool_calls=limits.tool_calls_max)
    assert TurnBudget().over(limits).wall_s == limits.turn_timeout_s


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "limits must be an object"),
        ({"step": 3}, r"limits\.step is not known"),
        ({"steps": 0}, r"limits\.steps must be a whole number from 1"),
        ({"steps": 2.0}, r"limits\.steps"),
        ({"steps": True}, r"limits\.steps"),
        ({"steps": "3"}, r"limits\.steps"),
        ({"steps": 10**9}, r"to 10,000"),
        ({"wall_s": float("nan")}, r"limits\.wall_s must be a number of seconds"),
        ({"children": -1}, r"limits\.children must be a whole number from 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        TurnBudget.of(value)


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
