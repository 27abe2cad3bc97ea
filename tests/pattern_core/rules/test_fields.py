"""What a rule is written in."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules.fields import RuleField, covers, duration, named, one_of, times


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
    assert RuleField(form=form).read(value) == read


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
        RuleField(form=form).read(value)
