"""What earlier calls have used up."""

from __future__ import annotations

import pytest

from pattern_core.rules.rule import Cooldown
from pattern_core.rules.spent import is_spent, rest_s
from tests.pattern_core.rules.moments import after, ran, rules


@pytest.mark.parametrize(
    "rule",
    [
        {"tool": "a", "type": "max_calls", "count": 1},
        {"tool": "a", "type": "requires_following", "tools": ["b"]},
        {"type": "exclusive_groups", "groups": [["a", "b"]]},
        {"tool": "a", "type": "cooldown", "seconds": 5},
    ],
    ids=lambda rule: str(rule["type"]),
)
def test_a_tool_is_spent(rule: dict[str, object]) -> None:
    fresh, used = after(), after(ran("a"), ran("b"))
    assert not is_spent(rules(rule), fresh, "a")
    assert is_spent(rules(rule), used, "a")
    assert not is_spent(rules(rule), used, "c")


def test_what_can_still_change_is_not_spent() -> None:
    assert not is_spent(rules({"tool": "a", "type": "requires_preceding", "tools": ["b"]}), after(), "a")


def test_rest_in_seconds() -> None:
    rule = Cooldown(tool="a", seconds=10)
    assert rest_s(rule, after(now_ms=5_000)) == 0
    assert rest_s(rule, after(now_ms=5_000, last_ms={"a": 1_500, "b": 5_000})) == 6.5
    assert rest_s(rule, after(now_ms=50_000, last_ms={"a": 1_500})) < 0


def test_a_clock_that_was_set_back_makes_no_rest_longer_than_two() -> None:
    rule = Cooldown(tool="a*", seconds=10)
    assert rest_s(rule, after(now_ms=50_000, last_ms={"a": 51_000})) == 10  # by a second
    assert rest_s(rule, after(now_ms=50_000, last_ms={"a": 90_000_000})) == 0  # by a day
    assert rest_s(rule, after(now_ms=50_000, last_ms={"a": 90_000_000, "ab": 44_000})) == 4
