"""Patterns match in a child, or are given up."""

from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.patterns import PATTERN_CHARS_MAX, Match, first_match, matching_lines


async def test_lines_are_matched_one_by_one() -> None:
    texts = [[(3, "a beet\nno\nA bean")], [(1, "bean"), (7, "beak")]]
    lines = [(0, 3, "a beet"), (0, 5, "A bean"), (1, 1, "bean"), (1, 7, "beak")]
    assert await matching_lines("be.", texts, limit=10, ignore_case=False) == lines
    assert await matching_lines("^a", texts, limit=10, ignore_case=True) == lines[:2]
    assert await matching_lines("be.", texts, limit=1, ignore_case=False) == lines[:1]


async def test_the_first_match_with_its_groups() -> None:
    found = await first_match(r"(b\w+) (\w+)", r"\2 \1", "a big 🌍 blue sky")
    assert found == Match(start=8, end=16, text="sky blue")
    assert await first_match("x", "y", "abc") is None
    assert await first_match("$", "!", "tea") == Match(start=3, end=3, text="!")


@pytest.mark.parametrize(("pattern", "template"), [("(", ""), ("a", r"\9"), ("a", r"\g<none>")])
async def test_malformed_patterns_and_templates_are_told(pattern: str, template: str) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        await first_match(pattern, template, "a")


async def test_lines_are_not_matched_by_what_is_malformed() -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        await matching_lines("(", [], limit=1, ignore_case=False)


async def test_a_pattern_without_end_is_given_up() -> None:
    with pytest.raises(InvalidInput, match="too long to match; make it simpler or replace plain text"):
        await first_match(r"(a|a)*b", "", "a" * 60)
    with pytest.raises(InvalidInput, match="too long to match; make it simpler, or name one file"):
        await matching_lines("(a|a)*b", [[(1, "a" * 60)]], limit=1, ignore_case=False)


async def test_a_long_pattern_is_refused_and_one_at_the_bound_is_not() -> None:
    assert await first_match("a" * PATTERN_CHARS_MAX, "b", "a") is None
    with pytest.raises(InvalidInput, match="at most 1000"):
        await first_match("a" * (PATTERN_CHARS_MAX + 1), "b", "a")
