from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.search.snippets import CHARS_MAX, pattern_of, snippet


def test_the_place_with_the_most_different_words_is_shown() -> None:
    text = "needle " + "filler " * 300 + "a needle in the haystack is here " + "filler " * 300
    shown = snippet(text, pattern_of(["needles", "haystack"]))
    assert "needle in the haystack" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_a_text_without_the_words_shows_its_beginning() -> None:
    assert snippet("start " + "filler " * 300, pattern_of(["needle"])).startswith("start filler")
    assert snippet("start " * 100, None).startswith("start")
    assert pattern_of([]) is None


@given(st.text(max_size=600), st.lists(st.text(max_size=6), max_size=3))
def test_it_is_short_and_of_the_text(text: str, words: list[str]) -> None:
    shown = snippet(text, pattern_of(words))
    assert len(shown) <= CHARS_MAX + 2
    assert shown.strip("…") in " ".join(text.split()) or "…" in text
