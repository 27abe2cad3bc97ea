from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory import regex_child
from pattern_core.memory.text_edits import PATTERN_CHARS_MAX, replace_first_match


async def test_the_first_match_with_its_groups() -> None:
    assert await replace_first_match(r"(b\w+) (\w+)", r"\2 \1", "a big 🌍 blue sky") == (8, 16, "sky blue")


async def test_no_match_is_none() -> None:
    assert await replace_first_match("x", "y", "abc") is None


@pytest.mark.parametrize(("pattern", "template"), [("(", ""), ("a", r"\9"), ("a", r"\g<none>")])
async def test_malformed_patterns_and_templates_are_told(pattern: str, template: str) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        await replace_first_match(pattern, template, "a")


async def test_a_long_pattern_is_refused_and_one_at_the_bound_is_not() -> None:
    assert await replace_first_match("a" * PATTERN_CHARS_MAX, "b", "a") is None
    with pytest.raises(InvalidInput, match="at most 1000"):
        await replace_first_match("a" * (PATTERN_CHARS_MAX + 1), "b", "a")


@pytest.mark.slow
async def test_a_pattern_that_never_ends_is_ended() -> None:
    with pytest.raises(InvalidInput, match="takes too long"):
        await replace_first_match(r"(a|a)*b", "", "a" * 60)


def test_answers() -> None:
    assert regex_child.answer("b+", "x", "abbc") == {"start": 1, "end": 3, "text": "x"}
    assert regex_child.answer("z", "x", "abbc") is None
    assert "error" in (regex_child.answer("(", "x", "") or {})
    assert "error" in (regex_child.answer("(" * 5000 + ")" * 5000, "x", "") or {})


def test_it_runs_without_site_packages_and_keeps_any_character() -> None:
    question = json.dumps({"pattern": "é\\x00", "template": "🌍", "text": "aé\x00"}).encode()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(regex_child.__file__)], input=question, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {"start": 1, "end": 3, "text": "🌍"}
