"""Parts of long texts: nothing lost, none too long, cut where a reader would cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.archive.chunks import CHUNK_CHARS_MAX, split

TEXTS = st.text(alphabet=st.sampled_from("ab .!?\n\t。é🍵"), max_size=400)


@given(TEXTS, st.integers(2, 60))
def test_parts_joined_are_the_text(text: str, chars_max: int) -> None:
    parts = split(text, chars_max)
    assert "".join(parts) == text
    assert all(len(part) <= chars_max for part in parts)
    assert text == "" or all(parts)


@given(TEXTS, st.integers(2, 60))
def test_no_part_but_the_last_is_shorter_than_half(text: str, chars_max: int) -> None:
    assert all(len(part) > chars_max // 2 for part in split(text, chars_max)[:-1])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One two.\n\nThree four. Five", ["One two.\n\n", "Three four. Five"]),
        ("One two three. Four", ["One two three. ", "Four"]),
        ('He said "No." Then he left', ['He said "No." ', "Then he left"]),
        ("one two so\nthree four five", ["one two so\n", "three four five"]),
        ("one two three four", ["one two three ", "four"]),
        ("你好。再见你好再见你好再见你好", ["你好。再见你好再见你好再见你好"]),
        ("x" * 35, ["x" * 16, "x" * 16, "x" * 3]),
    ],
)
def test_where_it_is_cut(text: str, parts: list[str]) -> None:
    assert split(text, 16) == parts


def test_chinese_is_cut_after_its_full_stop() -> None:
    assert split("我喜欢喝茶和咖啡。他也喜欢", 12) == ["我喜欢喝茶和咖啡。", "他也喜欢"]


def test_short_texts_stay_whole() -> None:
    text = "word " * (CHUNK_CHARS_MAX // 5)
    assert split(text) == [text]
    assert len(split(text + "more")) == 2
