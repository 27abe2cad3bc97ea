"""Texts cut to tokens: never longer than asked, and unchanged where they fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.compaction.clip import ELLIPSIS, clip, clip_middle
from pattern_core.models.tokens import estimate_text


@given(st.text(max_size=300), st.integers(0, 80))
def test_a_clipped_text_fits(text: str, tokens: int) -> None:
    cut = clip(text, tokens)
    assert estimate_text(cut) <= tokens
    if estimate_text(text) <= tokens:
        assert cut == text
    elif cut:
        assert cut.endswith(ELLIPSIS)
        assert text.startswith(cut.removesuffix(ELLIPSIS))


def test_a_text_is_cut_after_a_sentence_if_one_ends_late_enough() -> None:
    assert clip("One sentence that is here. Another one follows it now.", 9) == "One sentence that is here.…"
    assert clip("One. Another sentence without an end in sight", 8) == "One. Another sentence witho…"


@given(st.text(alphabet="ab. é中", max_size=400), st.integers(10, 60))
def test_the_middle_gives_way(text: str, tokens: int) -> None:
    cut = clip_middle(text, tokens, " | ")
    assert estimate_text(cut) <= tokens + 2
    if estimate_text(text) <= tokens:
        assert cut == text
    else:
        head, tail = cut.split(" | ")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert head
        assert tail
