"""Texts of blocks as files, their names, and merges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_db.columns import Json
from pattern_server.cli.memory_edits import dumped
from pattern_server.cli.memory_texts import ending_of, file_name, like, merge_values, merged, read_text, text_of


def test_forms_by_schema() -> None:
    assert ending_of({}) == ".md"
    assert ending_of({"schema": "Text"}) == ".md"
    assert ending_of({"schema": {"Text": {"viewport": {}}}}) == ".md"
    assert ending_of({"schema": {"Map": {"fields": []}}}) == ".json"
    assert ending_of({"schema": {"Log": {}}}) == ".jsonl"


def test_texts_of_blocks() -> None:
    assert text_of({"content": "shown", "value": "all of it"}) == "all of it"
    assert text_of({"content": "old server"}) == "old server"
    value = {"mood": "よい", "tags": [1]}
    written = text_of({"schema": {"Map": {}}, "content": "", "value": value})
    assert written == '{\n  "mood": "よい",\n  "tags": [\n    1\n  ]\n}\n'
    log = text_of({"schema": {"Log": {}}, "content": "", "value": [{"a": 1}, {"b": 2}]})
    assert log == '{"a": 1}\n{"b": 2}\n'


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_a_text_that_was_written_reads_as_itself(text: str) -> None:
    read = read_text((text + "\n").encode(), ".md")
    assert like(read, text) == text


@pytest.mark.parametrize("saved", ["one\ntwo\n", "one\r\ntwo\r\n", "\ufeffone\ntwo", "one\ntwo"])
def test_what_editors_do_by_themselves_is_no_change(saved: str) -> None:
    assert like(saved, "one\ntwo") == "one\ntwo"


def test_another_indentation_is_no_change() -> None:
    assert read_text(b'{"a":1,\r\n"b":[2]}', ".json") == dumped({"a": 1, "b": [2]})


@pytest.mark.parametrize(
    ("raw", "ending", "words"),
    [
        (b"\xff\xfe", ".md", "UTF-8"),
        (b"a\0b", ".md", "zero byte"),
        (b'{"a":', ".json", "not JSON"),
        (b'{"a": NaN}', ".json", "NaN"),
        (b"[" * 100_000, ".json", "not JSON"),
    ],
)
def test_what_cannot_be_read_says_why(raw: bytes, ending: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_text(raw, ending)


def test_merging_by_form() -> None:
    assert merged(".md", "a\n", "a\nmine\n", "theirs\na\n") == "theirs\na\nmine\n"
    base, mine, theirs = ({"a": 1}, {"a": 1, "b": 2}, {"a": 3})
    both = merged(".json", *(dumped(one) for one in (base, mine, theirs)))
    assert json.loads(both) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ("human", "human"),
        ("日記 2026", "日記 2026"),
        ("file:notes", "file%3Anotes"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("#draft", "%23draft"),
        ("50%", "50%25"),
        ("日" * 128, "mem_1"),
    ],
)
def test_names_that_any_system_takes(label: str, written: str) -> None:
    assert file_name(label, "mem_1") == written


# Merges of values: both sides began with the same one.

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab\n🌍", max_size=8)
anything: st.SearchStrategy[Json] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@given(anything, anything)
def test_a_side_that_changed_nothing_changes_nothing(base: Json, other: Json) -> None:
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
        ("tea.\nLisbon.\n", "tea and figs.\nLisbon.\n", "tea.\nLisbon.\nHi.\n", "tea and figs.\nLisbon.\nHi.\n"),
        ([1], {"a": 1}, [1, 2], {"a": 1}),
    ],
)
def test_what_both_changed_is_in_the_merged_value(base: Json, mine: Json, theirs: Json, merged: Json) -> None:
    found = merge_values(base, mine, theirs)
    assert found == ([{"a": 1, "done": True}, {"a": 2}, 5] if merged is None else merged)


@pytest.mark.slow
def test_a_list_of_very_many_items_loses_none() -> None:
    base: list[Json] = list(range(70_000))
    both = merge_values(base, [*base, "mine"], ["theirs", *base])
    assert isinstance(both, list)
    assert len(both) == 70_002
    assert both[0] == "theirs"
    assert both[-1] == "mine"
