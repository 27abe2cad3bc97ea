"""What single rules leave for the next call."""

from __future__ import annotations

from pattern_core.rules.narrowing import narrowings, passed_over, starter, waiting_starts
from pattern_core.rules.rule import StartConstraint
from tests.pattern_core.rules.moments import after, call, ran, rules

FIRST = {"tool": "a", "type": "start_constraint", "alternatives": ["b"]}
REST = {"tool": "a", "type": "cooldown", "seconds": 60}


def test_first_tools_are_one_narrowing() -> None:
    given = rules(FIRST, {"tool": "c", "type": "start_constraint", "args": {"n": 1}})
    [one] = narrowings(given, after())
    assert (set(one.tools), one.is_forced, one.prefill) == ({"a", "b", "c"}, True, {"c": {"n": 1}})
    [rest] = narrowings(given, after(ran("b")))
    assert rest.tools == {"c"}
    assert list(narrowings(given, after(ran("b"), ran("c")))) == []


def test_a_first_tool_that_rests_keeps_nobody_waiting() -> None:
    only = rules({"tool": "a", "type": "start_constraint"}, REST)
    assert waiting_starts(only, after(now_ms=1_000, last_ms={"a": 0})) == []
    assert len(waiting_starts(only, after(now_ms=61_000, last_ms={"a": 0}))) == 1
    either = rules(FIRST, REST)
    [rule] = either.of_kind(StartConstraint)
    assert starter(either, rule, after(now_ms=1_000, last_ms={"a": 0})) == "b"
    assert starter(either, rule, after(tools=("c",))) is None


def test_decisions_that_pass_a_first_tool_over() -> None:
    [rule] = rules(FIRST).of_kind(StartConstraint)
    calls = [call("c", "denied"), call("d", "denied"), call("a", "denied", step=2), call("c", "error", step=3)]
    assert passed_over(rule, calls) == 1
    assert passed_over(rule, [*calls, call("c", "denied", step=4)]) == 2
