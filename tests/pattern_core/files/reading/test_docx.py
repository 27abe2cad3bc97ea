from __future__ import annotations

import pytest

from pattern_core.files.disk import Unreadable
from pattern_core.files.reading.docx import UNPACKED_BYTES_MAX, read_docx
from tests.pattern_core.files.samples import bomb, docx_of


def test_a_word_document_becomes_markdown() -> None:
    data = docx_of(
        ("Title", "Garden book"),
        ("Heading 1", "Beds"),
        ("Normal", "Four of them."),
        ("List Bullet", "north"),
        ("List Bullet", "south"),
        ("Heading 2", "Soil"),
        table=[["bed", "soil"], ["north", "clay"]],
    )
    assert read_docx(data).split("\n") == [
        "# Garden book",
        "",
        "# Beds",
        "",
        "Four of them.",
        "",
        "- north",
        "- south",
        "",
        "## Soil",
        "",
        "| bed | soil |",
        "| north | clay |",
        "",
    ]


def test_an_archive_that_would_unfold_to_gigabytes_is_refused() -> None:
    data = bomb(UNPACKED_BYTES_MAX + 2**20)
    assert len(data) < 2**20
    with pytest.raises(Unreadable, match="unfolds"):
        read_docx(data)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\xd0\xcf\x11\xe0 old", b"no archive", bomb(2**20)])
def test_what_is_no_word_document_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        read_docx(data)
