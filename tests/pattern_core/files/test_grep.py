from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.files.grep import Line, Searched, grep


async def test_lines_are_found() -> None:
    texts = [Searched(name="a", passages=[(1, "x\nbean"), (5, "beans")]), Searched(name="b", passages=[(1, "BEAN")])]
    assert await grep(r"bean\b", texts, limit=5, ignore_case=True) == [
        Line(name="a", line=2, text="bean"),
        Line(name="b", line=1, text="BEAN"),
    ]


@pytest.mark.parametrize("pattern", ["", "(", "x" * 2_000, r"\g"])
async def test_patterns_that_do_not_fit_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput):
        await grep(pattern, [], limit=1, ignore_case=False)


async def test_a_pattern_without_end_is_given_up() -> None:
    with pytest.raises(InvalidInput, match="too long"):
        await grep("(a|a)*b", [Searched(name="a", passages=[(1, "a" * 60)])], limit=1, ignore_case=False)
