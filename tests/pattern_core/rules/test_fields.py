"""What a rule is written in."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules.fields import (
    DEPTH_MAX,
    PARTS_MAX,
    SOUGHT_CHARS_MAX,
    condition_in_words,
    covers,
    duration,
    holds,
    named,
    one_of,
    read_condition,
    times,
    tools_in,
)
from pattern_core.rules.ruleset import RuleSet
from tests.pattern_core.rules.moments import call, ran


def test_names_and_patterns() -> None:
    meant = {"a": "a", "*": "anything", "web_*": "web_fetch", "a?": "ab", "mcp__*__read": "mcp__disk__read"}
    assert [one for one in meant.items() if not covers(*one)] == []
    assert [one for one in (("a", "A"), ("a", "ab"), ("web_*", "web")) if covers(*one)] == []


def test_names_and_numbers_in_a_sentence() -> None:
    assert (named([]), named(["a"]), named(["a", "b"])) == ("", "`a`", "`a`, `b`")
    assert (one_of(["a"]), one_of(["a", "b"])) == ("`a`", "one of `a`, `b`")
    assert [duration(seconds) for seconds in (1, 0.5, 60, 90)] == ["1 second", "0.5 seconds", "1 minute", "90 seconds"]
    assert [duration(seconds) for seconds in (7200, 86_400, 90_000)] == ["2 hours", "1 day", "25 hours"]
    assert [times(count) for count in (0, 1, 2)] == ["0 times", "once", "2 times"]


A = {"tool": "a"}
PRECEDING = {**A, "type": "requires_preceding"}
CHILD = {**A, "type": "child", "children": ["b"]}


@pytest.mark.parametrize(
    ("rule", "name", "value", "stored"),
    [
        (PRECEDING, "tools", ["a", "b*"], ["a", "b*"]),
        ({**A, "type": "allowed_operations"}, "operations", ["read", "a b"], ["read", "a b"]),
        ({**A, "type": "max_calls"}, "count", "7", 7),
        ({**A, "type": "max_calls"}, "count", 7.0, 7),
        ({**A, "type": "cooldown"}, "seconds", 60.0, 60),
        ({**A, "type": "cooldown"}, "seconds", "0.5", 0.5),
        ({**A, "type": "cooldown"}, "seconds", {"secs": 1, "nanos": 5e8}, 1.5),
        (CHILD, "args", [{"name": "b", "args": None}], {"b": {}}),
        ({**A, "type": "conditional"}, "outputs", {"x": "b"}, {"x": "b"}),
        ({"type": "exclusive_groups"}, "groups", [["a", "b*"]], [["a", "b*"]]),
        ({**A, "type": "required_before_exit_if"}, "condition", ["a"], {"all": [{"tool_called": "a"}]}),
    ],
)
def test_what_fits(rule: dict[str, Any], name: str, value: Any, stored: Any) -> None:
    [found] = RuleSet.of([{**rule, name: value}]).to_json()
    assert found[name] == stored
    assert type(found[name]) is type(stored)


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        (PRECEDING, "tools", 3),
        (PRECEDING, "tools", []),
        (PRECEDING, "tools", ["a", ""]),
        (PRECEDING, "tools", ["a"] * 101),
        ({**A, "type": "requires_consent"}, "scope", ""),
        ({**A, "type": "requires_consent"}, "scope", "x" * 1001),
        ({**A, "type": "allowed_operations"}, "operations", [1]),
        ({**A, "type": "start_constraint"}, "args", [1]),
        (CHILD, "args", [3]),
        (CHILD, "args", [{"name": "b", "args": 3}]),
        ({**A, "type": "conditional"}, "outputs", {}),
        ({**A, "type": "conditional", "outputs": {"x": "b"}}, "strict", 1),
        ({"type": "exclusive_groups"}, "groups", ["ab"]),
        ({**A, "type": "max_calls"}, "count", "x"),
        ({**A, "type": "max_calls"}, "count", 10**400),
        ({**A, "type": "cooldown"}, "seconds", {"hours": 1}),
        ({**A, "type": "required_before_exit_if"}, "condition", []),
        ({**A, "type": "requires_trust"}, "levels", []),  # it may not mean the default levels
    ],
)
def test_what_does_not(rule: dict[str, Any], name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{rule['type']}[.]{name}"):
        RuleSet.of([{**rule, name: value}])


CALLS = (ran("web", "An Error occurred"), call("mail", "error", result="no such address"))


@pytest.mark.parametrize(
    ("value", "wanted", "words"),
    [
        ({"tool_called": "web"}, True, "`web` ran"),
        ({"tool_called": "w*"}, True, "`w*` ran"),
        ({"tool_called": "mail"}, False, "`mail` ran"),
        ({"tool_not_called": "mail"}, True, "`mail` did not run"),
        ({"result_contains": {"tool": "web", "text": "error"}}, True, "a result of `web` contains “error”"),
        ({"result_contains": {"tool": "web", "text": "address"}}, False, "a result of `web` contains “address”"),
        ({"result_contains": {"tool": "*", "text": "ADDRESS"}}, True, "a result of `*` contains “ADDRESS”"),
        ({"not": {"tool_called": "web"}}, False, "not (`web` ran)"),
        ({"all": [{"tool_called": "web"}, {"tool_called": "mail"}]}, False, "`web` ran and `mail` ran"),
        ({"any": [{"tool_called": "mail"}, {"all": [{"tool_called": "web"}]}]}, True, "`mail` ran or (`web` ran)"),
    ],
)
def test_conditions(value: dict[str, Any], wanted: bool, words: str) -> None:
    condition = read_condition(value)
    assert holds(condition, CALLS) is wanted
    assert condition_in_words(condition) == words
    assert condition == value


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"tool_called": ""},
        {"tool_called": 3},
        {"tool_called": "a", "tool_not_called": "b"},
        {"python": "1 + 1"},
        {"all": []},
        {"any": [{}]},
        {"not": []},
        {"result_contains": {"tool": "a"}},
        {"result_contains": "x" * 501},
        {"all": [{"tool_called": "a"}] * 21},
    ],
)
def test_what_is_no_condition(value: Any) -> None:
    with pytest.raises(ValueError):
        read_condition(value)


def test_a_result_is_searched_for_at_most_so_much_text() -> None:
    longest = {"result_contains": {"tool": "a", "text": "x" * SOUGHT_CHARS_MAX}}
    assert read_condition(longest) == longest
    with pytest.raises(ValueError, match="at most"):
        read_condition({"result_contains": {"tool": "a", "text": "x" * (SOUGHT_CHARS_MAX + 1)}})


def test_conditions_nest_within_a_bound() -> None:
    within: dict[str, Any] = {"tool_called": "a"}
    for number in range(DEPTH_MAX - 1):
        within = {"not": within} if number % 2 else {"any": [within] * PARTS_MAX}
    assert read_condition(within) == within
    for beyond in ({"not": within}, {"all": [within]}):
        with pytest.raises(ValueError, match="at most"):
            read_condition(beyond)


def test_the_tools_that_a_condition_asks_about() -> None:
    assert read_condition({"result_contains": "x"}) == {"result_contains": {"tool": "*", "text": "x"}}
    either = {"any": [{"tool_called": "b"}, {"not": {"tool_not_called": "a"}}, {"tool_called": "b"}]}
    assert tools_in(read_condition({"all": [either, {"result_contains": "x"}]})) == ("b", "a", "*")
