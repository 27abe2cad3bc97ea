from __future__ import annotations

import difflib
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.memory.text_edits import apply_patch, lines_of, with_endings

TEXT = "line one\nline two\nline three"
PATCH = "@@ -1,3 +1,3 @@\n line one\n-line two\n+line TWO MODIFIED\n line three\n"


def test_a_hunk_changes_its_line() -> None:
    assert apply_patch(TEXT, PATCH) == ("line one\nline TWO MODIFIED\nline three", "Applied 1 hunk")


def test_file_headers_trailing_words_and_missing_final_line_feed_are_fine() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -2 +2 @@ section\n-line two\n+2"
    assert apply_patch(TEXT, patch)[0] == "line one\n2\nline three"


def test_a_context_mismatch_is_refused_with_both_lines() -> None:
    with pytest.raises(InvalidInput, match="expects 'line 1' at line 1, there is 'line one'"):
        apply_patch(TEXT, PATCH.replace(" line one", " line 1"))


def test_a_hunk_past_the_end_says_so() -> None:
    with pytest.raises(InvalidInput, match="the block ends before it"):
        apply_patch(TEXT, "@@ -9 +9 @@\n-nine\n+9\n")


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("not a diff", "no unified diff"),
        ("", "no unified diff"),
        ("@@ line 1 @@\n-a\n+b\n", "hunk 1 begins with"),
        ("@@ -1,2 +1,1 @@\n-line one\n", "says 2 old and 1 new lines but has 1 and 0"),
        ("@@ -1 +1 @@\n-line one\n+1\n?what\n", "hunk 2 begins with '\\?what'"),
        ("@@ -7,0 +8 @@\n+x\n", "inserts after line 7"),
        ("@@ -2 +2 @@\n-line two\n+2\n@@ -1 +1 @@\n-line one\n+1\n", "overlaps the hunk before it"),
    ],
)
def test_malformed_patches_are_refused(patch: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        apply_patch(TEXT, patch)


def test_too_many_hunks() -> None:
    with pytest.raises(InvalidInput, match="more than 200 hunks"):
        apply_patch("a\n", "@@ -1 +1 @@\n-a\n+a\n" * 201)


def test_a_hunk_is_found_elsewhere_and_the_answer_says_so() -> None:
    text = "a\nb\nc\nd\ne\n"
    after, note = apply_patch(text, "@@ -1 +1 @@\n-d\n+D\n@@ -2 +2 @@\n-e\n+E\n")
    assert after == "a\nb\nc\nD\nE\n"
    assert note == "Applied 2 hunks (hunk 1 found 3 lines further down)"


def test_the_nearest_place_is_taken_and_a_tie_refused() -> None:
    text = "x\na\nb\nc\nx\n"
    assert apply_patch(text, "@@ -4 +4 @@\n-x\n+y\n")[0] == "x\na\nb\nc\ny\n"
    with pytest.raises(InvalidInput, match="stand at lines 1 and 5; add context"):
        apply_patch(text, "@@ -3 +3 @@\n-x\n+y\n")


def test_insertions_into_empty_and_full_texts() -> None:
    assert apply_patch("", "@@ -0,0 +1,2 @@\n+a\n+b\n")[0] == "a\nb\n"
    assert apply_patch("a\nb\n", "@@ -1,0 +2 @@\n+x\n")[0] == "a\nx\nb\n"


def test_line_endings_stay_and_a_marker_of_a_missing_one_is_understood() -> None:
    assert apply_patch("a\r\nb\r\nc", "@@ -2 +2,2 @@\n-b\n+B\n+B2\n")[0] == "a\r\nB\r\nB2\r\nc"
    patch = "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"
    assert apply_patch("a", patch)[0] == "b"


def test_an_empty_line_may_stand_for_empty_context() -> None:
    assert apply_patch("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+B\n")[0] == "a\n\nB\n"


def test_only_line_feeds_end_lines() -> None:
    assert lines_of("a\x0bb\u2028c\r\nd") == ["a\x0bb\u2028c\r\n", "d"]
    assert lines_of("") == []


def test_endings_follow_the_lines_that_are_replaced() -> None:
    assert with_endings("x\ny", like=["a\r\n", "b\r\n"]) == "x\r\ny\r\n"
    assert with_endings("x\n", like=["a"]) == "x"
    assert with_endings("x", like=["a\n"]) == "x\n"
    assert with_endings("", like=["a\n"]) == ""


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
