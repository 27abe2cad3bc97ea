"""Three-way merges of texts and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory.merging import Value, merge_texts, merge_values

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=3)
values: st.SearchStrategy[Value] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


def test_both_sides_words_are_kept() -> None:
    base = "Likes tea.\nLives in Lisbon.\n"
    mine = "Likes tea and figs.\nLives in Lisbon.\n"
    theirs = "Likes tea.\nLives in Lisbon.\nHas a sister.\n"
    assert merge_texts(base, mine, theirs) == "Likes tea and figs.\nLives in Lisbon.\nHas a sister.\n"
    assert merge_texts("one two", "one", "one two three") == "one three"
    assert merge_texts("", "mine", "theirs") in ("minetheirs", "theirsmine")


@given(st.text("ab\n🌍", max_size=12), st.text("ab\n🌍", max_size=12))
def test_a_side_that_changed_nothing_changes_nothing(base: str, other: str) -> None:
    assert merge_texts(base, base, other) == other
    assert merge_texts(base, other, base) == other
    assert merge_texts(base, other, other) == other


@given(values, values)
def test_the_same_for_values(base: Value, other: Value) -> None:
    assert merge_values(base, base, other) == other
    assert merge_values(base, other, base) == other
    assert merge_values(base, other, other) == other


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "merged"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, {"a": 3}, {"a": 3, "b": 2}),
        ({"a": 1, "b": 1}, {"a": 1}, {"a": 2, "b": 1}, {"a": 2}),
        ({"a": 1}, {}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": 2}, {}, {"a": 2}),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 2}),
        ({"a": {"b": "x"}}, {"a": {"b": "x", "c": 1}}, {"a": {"b": "xy"}}, {"a": {"b": "xy", "c": 1}}),
        ([1, 2], [1, 2, 3], [0, 1, 2], [0, 1, 2, 3]),
        ([1, 2], [2], [1, 2, 4], [2, 4]),
        ([{"a": 1}, {"a": 2}], [{"a": 1, "done": True}, {"a": 2}], [{"a": 1}, {"a": 2}, 5], None),
        ({"a": 1}, {"a": True}, {"a": 1, "b": 1}, {"a": True, "b": 1}),
        ("one two", "one", "one two three", "one three"),
        ([1], {"a": 1}, [1, 2], {"a": 1}),
    ],
)
def test_values(base: Value, mine: Value, theirs: Value, merged: Value) -> None:
    found = merge_values(base, mine, theirs)
    assert found == ([{"a": 1, "done": True}, {"a": 2}, 5] if merged is None else merged)


@pytest.mark.slow
def test_a_list_of_very_many_items_loses_none() -> None:
    base: list[Value] = list(range(70_000))
    merged = merge_values(base, [*base, "mine"], ["theirs", *base])
    assert isinstance(merged, list)
    assert len(merged) == 70_002
    assert merged[0] == "theirs"
    assert merged[-1] == "mine"
