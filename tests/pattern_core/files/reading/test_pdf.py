from __future__ import annotations

import pytest

from pattern_core.files.disk import Unreadable
from pattern_core.files.reading import pdf
from pattern_core.files.reading.pdf import paged, read_pdf
from tests.pattern_core.files.samples import locked, pdf_of


def test_the_pages_of_a_pdf_know_their_lines() -> None:
    text, pages = read_pdf(pdf_of(["First page.\nIts second line.", "Second page."]))
    assert text.split("\n") == ["First page.", "Its second line.", "Second page."]
    assert pages == [1, 3]


def test_pages_without_words_keep_their_number() -> None:
    assert paged(["", "x\fy"]) == ("\nx\ny", [1, 2])


def test_pictures_only_are_refused() -> None:
    with pytest.raises(Unreadable, match="scanned"):
        read_pdf(pdf_of(["", ""]))


def test_an_encrypted_pdf_is_refused() -> None:
    with pytest.raises(Unreadable, match="encrypted"):
        read_pdf(locked(pdf_of(["words"])))


def test_a_damaged_pdf_is_refused() -> None:
    with pytest.raises(Unreadable, match="damaged"):
        read_pdf(b"%PDF-1.4\nnothing of the sort")


def test_a_pdf_of_too_many_pages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "PAGES_MAX", 1)
    with pytest.raises(Unreadable, match="2 pages"):
        read_pdf(pdf_of(["a", "b"]))
