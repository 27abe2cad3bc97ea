"""Edits as the tools and the API ask for them; the examples are those of the memory design."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.memory.edits.edit import (
    SPLICES_MAX,
    AppendText,
    Change,
    EditRange,
    Patch,
    ReplaceText,
    SetText,
    Splice,
    TextEdit,
    change_of,
    operation_of,
    parse_range,
)
from pattern_core.memory.permission import Operation


def spliced(text: str, splices: tuple[Splice, ...]) -> str:
    """What a document does with the splices, in their order."""
    for splice in splices:
        text = text[: splice.at] + splice.insert + text[splice.at + splice.delete :]
    return text


async def after(text: str, edit: TextEdit) -> str:
    change = await change_of(text, edit)
    assert change.splices is None or spliced(text, change.splices) == change.after
    return change.after


async def test_append() -> None:
    assert await after("Hello", AppendText(text=", world!")) == "Hello, world!"


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("Hello 🌍 world", "world", "universe", "Hello 🌍 universe"),
        ("你好世界", "世界", "朋友", "你好朋友"),
        ("Hello 🌍 world", "🌍", "🌎🌏", "Hello 🌎🌏 world"),
        ("a a a", "a", "", " a a"),
    ],
)
async def test_replace_first_counts_code_points(text: str, old: str, new: str, result: str) -> None:
    assert await after(text, ReplaceText(old=old, new=new)) == result


async def test_replace_all_tells_how_many() -> None:
    change = await change_of("foo bar foo baz foo", ReplaceText(old="foo", new="qux", mode="all"))
    assert (change.after, change.note) == ("qux bar qux baz qux", "Replaced 3 occurrences")


@pytest.mark.parametrize("old", ["2: foo", "2 foo", "2:foo"])
async def test_replace_nth(old: str) -> None:
    change = await change_of("foo bar foo baz foo", ReplaceText(old=old, new="second", mode="nth"))
    assert (change.after, change.note) == ("foo bar second baz foo", "Replaced occurrence #2 of 3")


async def test_replace_regex() -> None:
    edit = ReplaceText(old=r"\b[bB]\w+", new="blue", mode="regex")
    assert await after("The quick brown fox", edit) == "The quick blue fox"
    with pytest.raises(InvalidInput, match="matches nothing"):
        await change_of("quick", edit)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (ReplaceText(old="zzz", new=""), "'zzz' is not in the block"),
        (ReplaceText(old="", new="x"), "say in `old`"),
        (ReplaceText(old="foo", new="x", mode="nth"), "write `old` as `N: text`"),
        (ReplaceText(old="0: foo", new="x", mode="nth"), "with N from 1"),
        (ReplaceText(old="9: foo", new="x", mode="nth"), "3 times, so there is no #9"),
        (ReplaceText(old="foo", new="\udc00"), "surrogate"),
        (AppendText(text="\udc00"), "surrogate"),
        (SetText(text="\udc00"), "surrogate"),
        (EditRange(first=1, last=1, text="\udc00"), "surrogate"),
        (EditRange(first=2, last=2, text="x"), "the block has 1 line; line 2 is past the end"),
        (EditRange(first=0, last=1, text="x"), "no range"),
        (EditRange(first=3, last=2, text="x"), "no range"),
    ],
)
async def test_edits_that_do_not_fit_say_what_does(edit: TextEdit, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await change_of("foo bar foo baz foo", edit)


async def test_very_many_replacements_are_left_to_the_document() -> None:
    change = await change_of("a" * (SPLICES_MAX + 1), ReplaceText(old="a", new="b", mode="all"))
    assert change == Change(after="b" * (SPLICES_MAX + 1), note=f"Replaced {SPLICES_MAX + 1} occurrences")


async def test_set_and_patch_leave_the_difference_to_the_document() -> None:
    assert await change_of("a", SetText(text="b")) == Change(after="b", note="Set the text to 1 characters")
    patched = await change_of("a\n", Patch(patch="@@ -1 +1 @@\n-a\n+b\n"))
    assert patched == Change(after="b\n", note="Applied 1 hunk")


@pytest.mark.parametrize(
    ("text", "content", "result"),
    [
        ("1\n2\n3\n4\n5", "2-4: replaced line A\nreplaced line B", "1\nreplaced line A\nreplaced line B\n5"),
        ("A\nB\nC\nD", "1..2: X\nY", "X\nY\nC\nD"),
        ("A\nB\nC", "2\nX", "A\nX\nC"),
        ("A\nB\nC", "2-9: X", "A\nX"),
        ("A\nB\n", "2: X", "A\nX\n"),
        ("A\nB\nC", "2-2:    indented", "A\n   indented\nC"),
        ("A\nB\nC", "2-2:\n    indented\n", "A\n    indented\nC"),
        ("A\nB\nC", "2-2\n\tindented", "A\n\tindented\nC"),
        ("A\r\nB\r\nC\r\n", "2: X\nY", "A\r\nX\r\nY\r\nC\r\n"),
        ("A\nB\nC", "2: ", "A\nC"),
        ("", "1: X", "X"),
    ],
)
async def test_ranges(text: str, content: str, result: str) -> None:
    assert await after(text, parse_range(content)) == result


async def test_what_a_range_edit_tells() -> None:
    assert (await change_of("a\nb\nc", parse_range("1-2: x"))).note == "Replaced lines 1-2"
    assert (await change_of("a\nb\nc", parse_range("2:"))).note == "Deleted line 2"


@pytest.mark.parametrize("content", ["", "x", "two: x", "-1: x", "1- x: y"])
def test_ranges_that_cannot_be_read(content: str) -> None:
    with pytest.raises(InvalidInput, match="begin with the lines"):
        parse_range(content)


def test_only_appending_is_appending() -> None:
    assert operation_of(AppendText(text="")) is Operation.APPEND
    for edit in (SetText(text=""), ReplaceText(old="", new=""), EditRange(first=1, last=1, text=""), Patch(patch="")):
        assert operation_of(edit) is Operation.OVERWRITE


@given(
    st.text(alphabet="ab🌍\r\n"), st.text(alphabet="ab🌍", min_size=1, max_size=2), st.text(alphabet="ab", max_size=3)
)
async def test_splices_do_what_str_replace_does(text: str, old: str, new: str) -> None:
    if old not in text:
        with pytest.raises(InvalidInput):
            await after(text, ReplaceText(old=old, new=new))
        text += old
    assert await after(text, ReplaceText(old=old, new=new, mode="all")) == text.replace(old, new)
    assert await after(text, ReplaceText(old=old, new=new)) == text.replace(old, new, 1)
