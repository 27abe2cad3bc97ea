"""Chunks lose nothing and end where a reader would cut; what says the same, and what only uses the same words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.archive.texts import CHUNK_CHARS_MAX, content_hash, is_near, split, telling_groups

TEXTS = st.text(alphabet=st.sampled_from("ab .!?\n\t。é🍵"), max_size=400)
LONG = (
    "On Monday the team met in the small room and talked about the garden behind the office, which nobody has looked"
    " after since spring. Ruth offered to water the beds twice a week until the holidays, and the others agreed to"
    " bring seeds, soil and two better hoses. A list hangs in the kitchen, where everybody may add what is missing"
    " or broken, and Tom will read it aloud at the next meeting."
)


@given(TEXTS, st.integers(2, 60))
def test_parts_joined_are_the_text(text: str, chars_max: int) -> None:
    parts = split(text, chars_max)
    assert "".join(parts) == text
    assert len(parts[-1]) <= chars_max
    assert [part for part in parts[:-1] if not chars_max // 2 < len(part) <= chars_max] == []
    assert parts[-1] or not text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One two.\n\nThree four. Five", ["One two.\n\n", "Three four. Five"]),
        ("One two three. Four", ["One two three. ", "Four"]),
        ('He said "No." Then he left', ['He said "No." ', "Then he left"]),
        ("one two so\nthree four five", ["one two so\n", "three four five"]),
        ("one two three four", ["one two three ", "four"]),
        ("你好。再见你好再见你好再见你好", ["你好。再见你好再见你好再见你好"]),
        ("我喜欢喝茶和咖啡。他也很喜欢喝咖啡", ["我喜欢喝茶和咖啡。", "他也很喜欢喝咖啡"]),
        ("x" * 35, ["x" * 16, "x" * 16, "x" * 3]),
    ],
)
def test_where_it_is_cut(text: str, parts: list[str]) -> None:
    assert split(text, 16) == parts


def test_short_texts_stay_whole() -> None:
    text = "word " * (CHUNK_CHARS_MAX // 5)
    assert split(text) == [text]
    assert len(split(text + "more")) == 2


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        # The same but for case, blanks and the full stop.
        ("Ruth likes Darjeeling tea.", "ruth likes  darjeeling tea", True),
        ("Ruth lives in Lisbon", "Ruth lives\nin Lisbon.\n", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("The user lives in Lisbon.", "User lives in Lisbon", False),
        ("Ruth likes Darjeeling tea, with milk.", "Ruth really likes Darjeeling tea with milk", False),
        ("Tom's birthday is on 4 May", "Tom's birthday is on the 4 May.", False),
        (LONG, LONG.replace("better hoses", "longer hoses"), False),
        (LONG, LONG.replace("A list hangs", "The list hangs").replace(", which", " which"), False),
    ],
)
def test_what_says_the_same_is_near(one: str, other: str, is_same: bool) -> None:
    assert (content_hash(one) == content_hash(other)) is is_same
    assert is_near(one, other) and is_near(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna is 30", "Anna is 31"),
        ("Anna likes Bob", "Bob likes Anna"),
        ("Anna likes tea", "Anna does not like tea"),
        ("Anna likes tea", "Anna dislikes tea"),
        ("Anna has a dog", "Anna has dogs"),
        ("Bob writes C++", "Bob writes C#"),
        ("It was -5 degrees", "It was 5 degrees"),
        ("Is Anna in Rome?", "Is Anna in Rome"),
        ("Ruth likes Darjeeling tea", "Ruth likes Darjeeling tea with milk"),
        ("Report of 2026-01-01: all is well", "Report of 2026-01-02: all is well"),
        ("x² = 4", "x2 = 4"),
        (LONG, LONG.replace("Ruth", "Anna")),
        (LONG, LONG.replace("twice", "3 times")),
        (LONG, LONG.replace("Monday", "Friday")),
        (LONG, LONG.replace("will read", "will not read")),
        (LONG, LONG.replace("small", "large").replace("seeds", "forks").replace("kitchen", "hall")),
        (LONG, LONG[: len(LONG) // 2]),
        ("", ""),
    ],
)
def test_another_fact_in_nearly_the_same_words_is_not_near(one: str, other: str) -> None:
    assert not is_near(one, other)
    assert not is_near(other, one)


def test_a_long_text_is_looked_up_by_words_from_several_places() -> None:
    groups = telling_groups(LONG)
    assert len(groups) == 3
    changed = {word for group in telling_groups(LONG.replace("offered", "promised")) for word in group}
    assert sum(set(group) <= changed for group in groups) == 2  # one word exchanged leaves two groups whole
    assert telling_groups("The tea.") == [["tea"]]
    assert telling_groups("+ - !") == []
    assert telling_groups('say "hello" to O"Neil') == [['o"neil', "hello", "say", "to"]]
