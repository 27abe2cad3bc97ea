"""What in an agent's rules contradicts or can never be met."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules.engine import warnings_of
from tests.pattern_core.rules.moments import rules

FIRST = {"tool": "a", "type": "start_constraint"}
REQUIRED = {"tool": "b", "type": "required_before_exit"}
CHILD = {"tool": "a", "type": "child", "children": ["b"]}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([FIRST, {"tool": "a", "type": "requires_preceding", "tools": ["b"]}], "must run first, but"),
        ([{"tool": "a", "type": "requires_preceding", "tools": ["a"]}], "only after itself"),
        (
            [{"tool": x, "type": "requires_preceding", "tools": [y]} for x, y in ("ab", "ba")],
            "`a`, `b` wait for each other",
        ),
        (
            [{"tool": "a", "type": kind, "tools": ["b"]} for kind in ("requires_preceding", "requires_following")],
            "it never runs",
        ),
        (
            [{"tool": x, "type": "requires_preceding", "tools": [y]} for x, y in ("ab", "bc", "ca", "da")],
            "`a`, `b`, `c`, `d` wait for each other",
        ),
        ([FIRST, {"tool": "b", "type": "parent", "children": ["a"]}], "only directly after `b`"),
        ([CHILD, {"tool": "a", "type": "exit_loop"}], "so `b` never can follow it"),
        ([CHILD, {**CHILD, "children": ["c"]}], "both `b` and `c` must follow"),
        ([CHILD, FIRST, {**FIRST, "tool": "c"}], "`a` and `c` must run first, but"),
        ([REQUIRED, {"tool": "*", "type": "max_calls", "count": 0}], "allows it no call"),
        ([{"tool": "a", "type": "exit_loop"}, {"tool": "a", "type": "continue_loop"}], "continue_loop counts"),
        (
            [{"tool": "a", "type": "exit_loop", "priority": 9}, {"tool": "a", "type": "continue_loop"}],
            "exit_loop counts",
        ),
        ([FIRST, REQUIRED, {"type": "exclusive_groups", "groups": [["a", "b"]]}], "must both run"),
        ([FIRST, {"type": "exclusive_groups", "groups": [["a", "c"]]}], "`a` always runs first, so `c`"),
        (
            [{"tool": "a", "type": "periodic", "seconds": 5}, {"tool": "*", "type": "cooldown", "seconds": 9}],
            "rests for 9 s",
        ),
        (
            [{"tool": "a", "type": "allowed_operations", "operations": [one]} for one in ("x", "y")],
            "no operation in common",
        ),
    ],
)
def test_contradictions_are_told(given: list[dict[str, Any]], says: str) -> None:
    warnings = rules(*given).warnings()
    assert any(says in one for one in warnings), warnings
    assert all(rules(one).warnings() == () for one in given if "itself" not in says)


def test_what_can_be_met_is_no_contradiction() -> None:
    assert rules(REQUIRED, {"tool": "*", "type": "max_calls", "count": 1}).warnings() == ()
    assert rules({**CHILD, "children": ["b*"]}, {**CHILD, "children": ["c"]}).warnings() == ()


def test_tools_that_wait_for_each_other_are_named_once() -> None:
    waiting = rules(*({"tool": x, "type": "requires_preceding", "tools": [y]} for x, y in ("ab", "ba", "cc")))
    assert waiting.warnings() == (
        "`c` may run only after itself, so it never runs",
        "`a`, `b` wait for each other, so none of them ever runs",
    )


def test_rules_about_tools_that_are_not_there() -> None:
    given = rules(FIRST, {"tool": "b", "type": "requires_preceding", "tools": ["x"]})
    assert given.warnings(("b",)) == (
        "the rule start_constraint is about `a`, which is not enabled",
        "`b` may run only after `x`, which is not enabled: it never runs",
    )


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({**CHILD, "children": ["x", "b*", "y"]}, "child of `a` names `x`, `y`, which are not enabled"),
        ({"tool": "a", "type": "parent", "children": ["x"]}, "parent of `a` names `x`, which is not enabled"),
        ({"tool": "a", "type": "conditional", "outputs": {"1": "b"}, "default": "x"}, "names `x`"),
        ({"tool": "a", "type": "start_constraint", "alternatives": ["x"]}, "names `x`"),
        (
            {
                "tool": "a",
                "type": "required_before_exit_if",
                "condition": {"all": [{"not": {"tool_called": "x"}}, {"result_contains": "y"}]},
            },
            "required_before_exit_if of `a` names `x`, which is not enabled",
        ),
    ],
)
def test_rules_that_name_tools_that_are_not_there(rule: dict[str, Any], says: str) -> None:
    [warning] = rules(rule).warnings(("a", "b"))
    assert says in warning


def test_tools_of_a_server_are_enabled_with_it() -> None:
    given = rules({"tool": "git__log", "type": "child", "children": ["git__show"]})
    assert given.warnings(("git__*",)) == given.warnings(("git__log", "git__show")) == ()
    assert len(given.warnings(("hub__*",))) == 1


def test_stored_rules_that_cannot_be_read_are_told() -> None:
    assert warnings_of(None, ("a",)) == warnings_of([FIRST], ("a",)) == ()
    [told] = warnings_of([FIRST, {"type": "sing"}], ("a",))
    assert told.startswith("tool_rules, rule 2: there is no type 'sing'")
