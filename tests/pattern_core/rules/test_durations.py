"""Seconds in words."""

from __future__ import annotations

import pytest

from pattern_core.rules.durations import in_words, times


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 second"),
        (0.5, "0.5 seconds"),
        (60, "1 minute"),
        (90, "90 seconds"),
        (7200, "2 hours"),
        (86_400, "1 day"),
        (90_000, "25 hours"),
    ],
)
def test_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_how_often() -> None:
    assert [times(count) for count in (0, 1, 2)] == ["0 times", "once", "2 times"]
