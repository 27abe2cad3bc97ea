"""What a rule is written in."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules.fields import (
    DEPTH_MAX,
    condition_in_words,
    covers,
    duration,
    holds,
    named,
    one_of,
    read_condition,
    read_value,
    times,
    tools_in,
)
from tests.pattern_core.rules.moments import call, ran


@pytest.mark.parametrize(
    ("pattern", "tool", "wanted"),
    [
        ("a", "a", True),
        ("a", "A", False),
        ("a", "ab", False),
        ("*", "anything", True),
        ("web_*", "web_fetch", True),
        ("web_*", "web", False),
        ("a?", "ab", True),
        ("mcp__*__read", "mcp__disk__read", True),
    ],
)
def test_names_and_patterns(pattern: str, tool: str, wanted: bool) -> None:
    assert covers(pattern, tool) is wanted


def test_names_in_a_sentence() -> None:
    assert (named([]), named(["a"]), named(["a", "b"])) == ("", "`a`", "`a`, `b`")
    assert (one_of(["a"]), one_of(["a", "b"])) == ("`a`", "one of `a`, `b`")


def test_numbers_in_a_sentence() -> None:
    assert [duration(seconds) for seconds in (1, 0.5, 60, 90)] == ["1 second", "0.5 seconds", "1 minute", "90 seconds"]
    assert [duration(seconds) for seconds in (7200, 86_400, 90_000)] == ["2 hours", "1 day", "25 hours"]
    assert [times(count) for count in (0, 1, 2)] == ["0 times", "once", "2 times"]


@pytest.mark.parametrize(
    ("form", "value", "read"),
    [
        ("names", ["a", "b"], ("a", "b")),
        ("texts", ["read", "a b"], ("read", "a b")),
        ("count", "7", 7),
        ("seconds", 60.0, 60),
        ("seconds", {"secs": 1, "nanos": 5e8}, 1.5),
        ("child_args", [{"name": "b", "args": None}], {"b": {}}),
        ("outputs", {"x": "b"}, {"x": "b"}),
        ("groups", [["a", "b*"]], (("a", "b*"),)),
        ("yes_no", False, False),
        ("condition", ["a"], {"all": [{"tool_called": "a"}]}),
    ],
)
def test_what_fits(form: str, value: Any, read: Any) -> None:
    assert read_value(form, value) == read


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("name", 3),
        ("name", "a*"),
        ("names", []),
        ("names", ["a", ""]),
        ("names", ["a"] * 101),
        ("text", ""),
        ("text", "x" * 1001),
        ("texts", [1]),
        ("args", [1]),
        ("child_args", [3]),
        ("child_args", [{"name": "b", "args": 3}]),
        ("outputs", {}),
        ("groups", ["ab"]),
        ("count", "x"),
        ("count", 10**400),
        ("seconds", {"hours": 1}),
        ("seconds", -1),
        ("yes_no", 1),
        ("condition", []),
    ],
)
def test_what_does_not(form: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        read_value(form, value)


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
        (
            {"any": [{"tool_called": "mail"}, {"all": [{"tool_called": "web"}]}]},
            True,
            "`mail` ran or (`web` ran)",
        ),
    ],
)
def test_conditions(value: dict[str, Any], wanted: bool, words: str) -> None:
    condition = read_condition(value)
    assert holds(condition, CALLS) is wanted
    assert condition_in_words(condition) == words
    assert condition == value


def test_a_text_alone_is_of_any_tool() -> None:
    assert read_condition({"result_contains": "x"}) == {"result_contains": {"tool": "*", "text": "x"}}


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
    with pytest.raises(InvalidInput):
        read_condition(value)


def test_conditions_nest_within_a_bound() -> None:
    value: dict[str, Any] = {"tool_called": "a"}
    for _ in range(DEPTH_MAX - 1):
        value = {"not": value}
    read_condition(value)
    with pytest.raises(InvalidInput, match="at most"):
        read_condition({"not": value})


def test_the_tools_that_a_condition_asks_about() -> None:
    either = {"any": [{"tool_called": "b"}, {"not": {"tool_not_called": "a"}}, {"tool_called": "b"}]}
    assert tools_in(read_condition({"all": [either, {"result_contains": "x"}]})) == ("b", "a", "*")
