from __future__ import annotations

import pytest

from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading.document import TEXT_CHARS_MAX, Reader, Syntax, clean, kind_of


def test_the_name_says_who_reads() -> None:
    assert (kind_of("a/B.PDF").reader, kind_of("x.htm").reader) == (Reader.PDF, Reader.HTML)
    assert (kind_of("x.md").syntax, kind_of("x.py").syntax) == (Syntax.MARKDOWN, Syntax.CODE)
    assert kind_of("Makefile").reader is Reader.TEXT
    assert kind_of("notes.unheard-of").syntax is Syntax.PROSE


@pytest.mark.parametrize(
    ("name", "advice"),
    [("a.doc", r"\.docx"), ("a.xlsx", r"\.csv"), ("a.PNG", "image"), ("a.zip", "unpack"), ("a.exe", "programs")],
)
def test_what_is_not_read_says_what_would_be(name: str, advice: str) -> None:
    with pytest.raises(UnreadableFile, match=advice):
        kind_of(name)


def test_lines_end_in_one_way() -> None:
    assert clean("a\r\nb\rc\fd\0e\ud800") == "a\nb\nc\nde?"


@pytest.mark.parametrize("text", ["", " \n\t\n", "\ufeff", "\u200b\n"])
def test_nothing_to_read_is_refused(text: str) -> None:
    with pytest.raises(UnreadableFile, match="empty"):
        clean(text)


def test_too_much_to_read_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="split"):
        clean("x" * (TEXT_CHARS_MAX + 1))
