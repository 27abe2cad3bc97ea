"""The rules of an agent together."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules import RuleSet
from pattern_core.rules.rule import Cooldown, MaxCalls
from pattern_core.rules.ruleset import warnings_of
from tests.pattern_core.rules.moments import rules


def test_no_rules() -> None:
    assert RuleSet.of(None) == RuleSet.of([]) == RuleSet.of({}) == RuleSet()
    assert RuleSet().to_json() == []


def test_rules_are_judged_by_rank() -> None:
    given = rules(
        *({"tool": tool, "type": "max_calls", "count": number} for number, tool in enumerate(["*", "a*", "ab", "c"])),
        {"tool": "*", "type": "max_calls", "count": 9, "priority": 6},
        {"tool": "a", "type": "max_calls", "count": 8, "priority": 0},
    )
    ordered = [rule.count for rule in given.of_kind(MaxCalls)]
    assert ordered == [9, 2, 3, 1, 0, 8]
    assert [rule.count for rule in given.of_kind(MaxCalls, "ab")] == [9, 2, 1, 0]
    assert list(given.of_kind(Cooldown)) == []


def test_what_is_needed_must_be_enabled() -> None:
    given = rules({"tool": "calendar", "type": "needed"}, {"tool": "web", "type": "needed"})
    given.check_enabled(("web", "calendar", "x"))
    rules({"tool": "git__log", "type": "needed"}).check_enabled(("git__*",))
    with pytest.raises(InvalidInput, match="needs calendar: add it"):
        given.check_enabled(("web",))


def test_tools_whose_past_matters() -> None:
    given = rules(
        {"tool": "web*", "type": "cooldown", "seconds": 5},
        {"tool": "diary", "type": "periodic", "seconds": 5},
        {"tool": "x", "type": "max_calls", "count": 1},
    )
    assert given.timed(("x", "web_fetch", "diary", "web")) == ("web_fetch", "diary", "web")
    assert rules({"tool": "*", "type": "cooldown", "seconds": 5}).timed(("x", "y")) == ("x", "y")


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
