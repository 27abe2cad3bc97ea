"""Conditions on what happened in a turn."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules.conditions import DEPTH_MAX, holds, in_words, read, tools_in
from tests.pattern_core.rules.moments import call, ran

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
    condition = read(value)
    assert holds(condition, CALLS) is wanted
    assert in_words(condition) == words
    assert condition == value


def test_a_text_alone_is_of_any_tool() -> None:
    assert read({"result_contains": "x"}) == {"result_contains": {"tool": "*", "text": "x"}}


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
        read(value)


def test_conditions_nest_within_a_bound() -> None:
    value: dict[str, Any] = {"tool_called": "a"}
    for _ in range(DEPTH_MAX - 1):
        value = {"not": value}
    read(value)
    with pytest.raises(InvalidInput, match="at most"):
        read({"not": value})


def test_the_tools_that_a_condition_asks_about() -> None:
    either = {"any": [{"tool_called": "b"}, {"not": {"tool_not_called": "a"}}, {"tool_called": "b"}]}
    assert tools_in(read({"all": [either, {"result_contains": "x"}]})) == ("b", "a", "*")
