"""The part of a text that shows why it was found. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

CHARS_MAX = 220
_ELLIPSIS = "…"
_MATCHES_MAX = 200  # beyond this the best place among the first ones is good enough
_STEM_MIN = 4


def pattern_of(words: Sequence[str]) -> re.Pattern[str] | None:
    """What finds any of the words in a text, in any form; None without words."""
    alternatives = sorted({re.escape(_stem(word)) for word in words if word}, key=len, reverse=True)
    # Within a word only where there are no blanks between words.
    return re.compile(rf"(?<![a-z0-9])(?:{'|'.join(alternatives)})", re.IGNORECASE) if alternatives else None


def snippet(text: str, pattern: re.Pattern[str] | None) -> str:
    """At most about 220 characters of `text` around the place with the most different matches; its beginning if there
    is none.
    """
    if len(text) <= CHARS_MAX:
        return " ".join(text.split())
    places = _places(text, pattern)
    middle = _densest(places) if places else 0
    start = min(max(middle - CHARS_MAX // 2, 0), len(text) - CHARS_MAX)
    start = _word_begin(text, start) if start > 0 else 0
    end = min(start + CHARS_MAX, len(text))
    end = _word_end(text, end) if end < len(text) else end
    before = _ELLIPSIS if start > 0 else ""
    after = _ELLIPSIS if end < len(text) else ""
    return before + " ".join(text[start:end].split()) + after


def _stem(word: str) -> str:
    """Enough of the word's beginning that its other forms match too."""
    return word if len(word) <= _STEM_MIN else word[: max(_STEM_MIN, len(word) - 2)]


def _places(text: str, pattern: re.Pattern[str] | None) -> list[tuple[int, str]]:
    if pattern is None:
        return []
    places: list[tuple[int, str]] = []
    for found in pattern.finditer(text):
        places.append((found.start(), found[0].lower()))
        if len(places) >= _MATCHES_MAX:
            break
    return places


def _densest(places: Sequence[tuple[int, str]]) -> int:
    """The middle of the window that holds most different words, the first of equals."""
    best_middle, best_count = places[0][0], 0
    for index, (start, _) in enumerate(places):
        within = [place for place in places[index : index + 32] if place[0] < start + CHARS_MAX]
        count = len({word for _, word in within})
        if count > best_count:
            best_count, best_middle = count, (start + within[-1][0]) // 2
    return best_middle


def _word_begin(text: str, at: int) -> int:
    blank = text.find(" ", at, at + 20)
    return blank + 1 if blank >= 0 else at


def _word_end(text: str, at: int) -> int:
    blank = text.rfind(" ", at - 20, at)
    return blank if blank >= 0 else at
