"""What a rule is about."""

from __future__ import annotations

import pytest

from pattern_core.rules.rule import ExitLoop, covers, is_pattern, named


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
    assert ExitLoop(tool=pattern).covers(tool) is wanted


def test_what_is_a_pattern() -> None:
    assert [is_pattern(name) for name in ("a", "*", "a?", "a.b:c")] == [False, True, True, False]


def test_names_in_a_sentence() -> None:
    assert (named([]), named(["a"]), named(["a", "b"])) == ("", "`a`", "`a`, `b`")
