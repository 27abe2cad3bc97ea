"""Edits as the tools and the API ask for them; the examples are those of the memory design."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import Operation
from pattern_core.memory.document import Spliced
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    EditRange,
    InsertItem,
    ListAppend,
    Patch,
    ReplaceText,
    SetField,
    SetText,
    SetValue,
    TextEdit,
    from_json_value,
    parse_range,
    to_json_value,
)
from pattern_core.memory.fields import Written
from pattern_core.memory.text_edits import SPLICES_MAX, apply_patch, edit_text
from tests.pattern_core.memory.life import Pen


async def applied(text: str, edit: TextEdit) -> tuple[str, str, Spliced | str]:
    """What the edit makes of the text; a document makes the same of it."""
    edited = await edit_text(text, edit, "the block")
    document = Pen(1)
    document.append(text)
    document.apply({"content": edited[2]})
    assert document.text == edited[0]
    return edited


async def after(text: str, edit: TextEdit) -> str:
    return (await applied(text, edit))[0]


def nth(old: str) -> ReplaceText:
    return ReplaceText(old=old, new="second", mode="nth")


FOO = "foo bar foo baz foo"
MANY = SPLICES_MAX + 1
COLOUR = ReplaceText(old=r"\b[cC]\w+", new="blue", mode="regex")


@pytest.mark.parametrize(
    ("text", "edit", "after", "note"),
    [
        (FOO, ReplaceText(old="foo", new="qux", mode="all"), "qux bar qux baz qux", "Replaced 3 occurrences"),
        (FOO, nth("2: foo"), "foo bar second baz foo", "Replaced occurrence #2 of 3"),
        (FOO, nth("2 foo"), "foo bar second baz foo", "Replaced occurrence #2 of 3"),
        (FOO, nth("2:foo"), "foo bar second baz foo", "Replaced occurrence #2 of 3"),
        ("a Cyan cat", COLOUR, "a blue cat", "Replaced the first match"),
        ("a" * MANY, ReplaceText(old="a", new="b", mode="all"), "b" * MANY, f"Replaced {MANY} occurrences"),
        ("a", SetText(text="b"), "b", "Set the text to 1 characters"),
        ("a\n", Patch(patch="@@ -1 +1 @@\n-a\n+b\n"), "b\n", "Applied 1 hunk"),
        ("a\nb\nc", parse_range("1-2: x"), "x\nc", "Replaced lines 1-2"),
        ("a\nb\nc", parse_range("2:"), "a\nc", "Deleted line 2"),
    ],
)
async def test_an_edit_says_what_it_did_and_large_differences_are_left_to_the_document(
    text: str, edit: TextEdit, after: str, note: str
) -> None:
    change = await applied(text, edit)
    assert change[:2] == (after, note)
    assert isinstance(change[2], str) == (len(text) == MANY or isinstance(edit, SetText | Patch))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (ReplaceText(old="zzz", new=""), "'zzz' is not in the block"),
        (ReplaceText(old="z" * 81, new=""), "'z{80}…' is not in the block"),
        (ReplaceText(old="", new="x"), "say in `old`"),
        (COLOUR, "matches nothing"),
        (ReplaceText(old="foo", new="x", mode="nth"), "write `old` as `N: text`"),
        (ReplaceText(old="0: foo", new="x", mode="nth"), "with N from 1"),
        (ReplaceText(old="9: foo", new="x", mode="nth"), "3 times, so there is no #9"),
        (ReplaceText(old="foo", new="\udc00"), "surrogate"),
        (AppendText(text="\udc00"), "surrogate"),
        (SetText(text="\udc00"), "surrogate"),
        (EditRange(first=1, last=1, text="\udc00"), "surrogate"),
        (EditRange(first=2, last=2, text="x"), "the block has 1 line; line 2 is past the end"),
        (EditRange(first=0, last=1, text="x"), "not a range"),
        (EditRange(first=3, last=2, text="x"), "not a range"),
    ],
)
async def test_edits_that_do_not_fit_say_what_does(edit: TextEdit, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await applied(FOO, edit)


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
        ("A\nB", "2\nX\n", "A\nX"),
        ("A\x0bB\u2028C\nD", "2: X", "A\x0bB\u2028C\nX"),  # only line feeds end lines
    ],
)
async def test_ranges(text: str, content: str, result: str) -> None:
    assert await after(text, parse_range(content)) == result


@pytest.mark.parametrize("content", ["", "x", "two: x", "-1: x", "1- x: y"])
def test_ranges_that_cannot_be_read(content: str) -> None:
    with pytest.raises(InvalidInput, match="begin with the lines"):
        parse_range(content)


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


def test_some_edits_only_append() -> None:
    appending = {kind for kind in get_args(BlockEdit) if kind.operation is Operation.APPEND}
    assert appending == {AppendText, ListAppend, InsertItem}
    assert {kind.operation for kind in get_args(BlockEdit)} == {Operation.APPEND, Operation.OVERWRITE}


# Every edit survives being written down as JSON.


def example(kind: type[BlockEdit]) -> BlockEdit:
    """An edit of a kind, with something in every field that needs something."""
    values: dict[str, Any] = {
        field.name: 3 if field.type == "int" else "3" for field in fields(kind) if field.default is MISSING
    }
    return kind(**values)


@pytest.mark.parametrize(
    "edit",
    [
        *map(example, get_args(BlockEdit)),
        SetField(field="age", value=Written("41"), section="profile"),
        SetField(field="age", value=None),
        InsertItem(number=1, value={"written": "a field of that name", "done": False}),
        SetValue(value={"a": [1, None, "é"]}),
    ],
)
def test_an_edit_reads_back(edit: BlockEdit) -> None:
    assert from_json_value(json.loads(json.dumps(to_json_value(edit)))) == edit


def test_an_unknown_edit_is_an_error() -> None:
    with pytest.raises(KeyError, match="Explode"):
        from_json_value({"edit": "Explode"})


TEXT = "line one\nline two\nline three"
PATCH = "@@ -1,3 +1,3 @@\n line one\n-line two\n+line TWO MODIFIED\n line three\n"


@pytest.mark.parametrize(
    ("text", "patch", "after"),
    [
        (TEXT, PATCH, "line one\nline TWO MODIFIED\nline three"),
        (TEXT, "--- a/x\n+++ b/x\n@@ -2 +2 @@ section\n-line two\n+2", "line one\n2\nline three"),
        ("", "@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n"),
        ("a\nb\n", "@@ -1,0 +2 @@\n+x\n", "a\nx\nb\n"),
        # Line endings stay; a marker of a missing one is understood, and an empty line is empty context.
        ("a\r\nb\r\nc", "@@ -2 +2,2 @@\n-b\n+B\n+B2\n", "a\r\nB\r\nB2\r\nc"),
        ("a", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n", "b"),
        ("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+B\n", "a\n\nB\n"),
    ],
)
def test_a_hunk_changes_its_lines(text: str, patch: str, after: str) -> None:
    assert apply_patch(text, patch) == (after, "Applied 1 hunk")


@pytest.mark.parametrize(
    ("text", "patch", "words"),
    [
        (TEXT, PATCH.replace(" line one", " line 1"), "expects 'line 1' at line 1, there is 'line one'"),
        (TEXT, "@@ -9 +9 @@\n-nine\n+9\n", "the block ends before it"),
        (TEXT, "not a diff", "not a unified diff"),
        (TEXT, "", "not a unified diff"),
        (TEXT, "@@ line 1 @@\n-a\n+b\n", "hunk 1 begins with"),
        (TEXT, "@@ -1,2 +1,1 @@\n-line one\n", "says 2 old and 1 new lines but has 1 and 0"),
        (TEXT, "@@ -1 +1 @@\n-line one\n+1\n?what\n", "hunk 2 begins with '\\?what'"),
        (TEXT, "@@ -7,0 +8 @@\n+x\n", "inserts after line 7"),
        (TEXT, "@@ -2 +2 @@\n-line two\n+2\n@@ -1 +1 @@\n-line one\n+1\n", "overlaps the hunk before it"),
        ("a\n", "@@ -1 +1 @@\n-a\n+a\n" * 201, "more than 200 hunks"),
        ("x\na\nb\nc\nx\n", "@@ -3 +3 @@\n-x\n+y\n", "occur at lines 1 and 5; add context"),
    ],
)
def test_patches_that_do_not_fit_are_refused(text: str, patch: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        apply_patch(text, patch)


def test_a_hunk_is_found_at_the_nearest_place_and_the_answer_reports_it() -> None:
    assert apply_patch("x\na\nb\nc\nx\n", "@@ -4 +4 @@\n-x\n+y\n")[0] == "x\na\nb\nc\ny\n"
    after, note = apply_patch("a\nb\nc\nd\ne\n", "@@ -1 +1 @@\n-d\n+D\n@@ -2 +2 @@\n-e\n+E\n")
    assert after == "a\nb\nc\nD\nE\n"
    assert note == "Applied 2 hunks (hunk 1 found 3 lines further down)"


lines = st.lists(st.text(alphabet="ab -+@\\", max_size=4), max_size=12)


@given(lines, lines)
def test_what_difflib_writes_is_applied(before: list[str], after: list[str]) -> None:
    old, new = [line + "\n" for line in before], [line + "\n" for line in after]
    assume(old != new)
    patch = "".join(difflib.unified_diff(old, new))
    assert apply_patch("".join(old), patch)[0] == "".join(new)


@given(st.text(alphabet="ab\n"), st.text(alphabet="@-+1, ab\n\\"))
def test_no_patch_does_anything_but_apply_or_be_refused(text: str, patch: str) -> None:
    """What is applied leaves the lines that it does not name."""
    try:
        changed, _note = apply_patch(text, patch)
    except InvalidInput as error:
        assert error.message
        return
    removed = [line[1:] for line in patch.split("\n") if line.startswith("-")]
    added = [line[1:] for line in patch.split("\n") if line.startswith("+")]
    before, after = Counter(text.split("\n")), Counter(changed.split("\n"))
    assert sum(((before - after) - Counter(removed)).values()) <= 1  # a last line may lose or get its end
    assert sum(((after - before) - Counter(added)).values()) <= 1
