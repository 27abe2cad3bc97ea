"""What each format's reader makes of a file, and what it refuses."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading import readers
from pattern_core.files.reading.readers import DOCX_BYTES_MAX, paged, read_docx, read_html, read_pdf, read_text
from tests.pattern_core.files.samples import bomb, docx_of, locked, pdf_of

TEXT = "Über den Gärten liegt Nebel. Die Bäume stehen früh im Grünen, und es ist schön.\n" * 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_every_form_of_unicode_is_read(encoding: str) -> None:
    assert read_text(TEXT.encode(encoding)) == TEXT


def test_big_endian_marks_are_known() -> None:
    assert read_text(codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be")) == TEXT
    assert read_text(codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be")) == TEXT


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_western_bytes_are_recognised(encoding: str) -> None:
    assert read_text(TEXT.encode(encoding)) == TEXT
    assert read_text("Grüße aus München, 20 £".encode(encoding)) == "Grüße aus München, 20 £"


def test_other_old_encodings_are_recognised() -> None:
    russian = "Привет, это длинное письмо о саде и деревьях, которые растут у реки.\n" * 4
    assert read_text(russian.encode("cp1251")) == russian
    japanese = "これは庭についての長い手紙です。木々は川のそばに立っています。\n" * 6
    assert read_text(japanese.encode("shift_jis")) == japanese


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF\x02\x01\x01" + bytes(200),
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"%PDF-1.7\n1 0 obj\n",
        b"PK\x03\x04rest",
        b"words\0and\0zeros\0here",
        bytes(range(256)) * 20,
        bytes(range(1, 32)) * 50,
        b"words\x01\x02\x03" * 50,
        b"{\\rtf1\\ansi words}",
        codecs.BOM_UTF16_LE + b"\x00\xd8\x00\xd8",  # half characters
        b"",
    ],
)
def test_binaries_that_call_themselves_text_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableFile):
        read_text(data)


def test_colours_of_terminals_do_not_make_a_log_binary() -> None:
    assert read_text(b"\x1b[31merror\x1b[0m at once\n" * 10).startswith("\x1b[31m")


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read_text(data).encode()
    except UnreadableFile as error:
        assert error.message


PAGE = b"""<!DOCTYPE html><html><head><title>Garden</title><style>p { color: red }</style></head>
<body><script>alert("no")</script><h1>Beds</h1><p>Four of <b>them</b>,
in a row.</p><ul><li>north<li>south</ul><h2>Code</h2><pre>a
  b</pre><table><tr><th>bed</th><td>soil</td></tr></table><!-- not this --><p>End&nbsp;&amp; out.</p></body></html>"""


def test_a_page_becomes_markdown() -> None:
    assert read_html(PAGE).split("\n") == [
        "# Beds",
        "",
        "Four of them, in a row.",
        "",
        "- north",
        "- south",
        "",
        "## Code",
        "",
        "```",
        "a",
        "  b",
        "```",
        "",
        "| bed | soil |",
        "",
        "End\u00a0& out.",
        "",
    ]


def test_a_title_stands_for_a_missing_heading() -> None:
    assert read_html(b"<title>Garden</title><p>Words") == "# Garden\n\nWords\n"


def test_the_encoding_is_what_the_page_says() -> None:
    page = '<meta charset="iso-8859-1"><p>Grün'.encode("latin-1")
    assert read_html(page) == "Grün\n"


def test_the_deepest_page_is_read() -> None:
    assert "deep" in read_html(b"<div>" * 20_000 + b"deep")


def test_the_pages_of_a_pdf_know_their_lines() -> None:
    text, pages = read_pdf(pdf_of(["First page.\nIts second line.", "Second page."]))
    assert text.split("\n") == ["First page.", "Its second line.", "Second page."]
    assert pages == [1, 3]


def test_pages_without_words_keep_their_number() -> None:
    assert paged(["", "x\fy"]) == ("\nx\ny", [1, 2])


def test_pictures_only_are_refused() -> None:
    with pytest.raises(UnreadableFile, match="scanned"):
        read_pdf(pdf_of(["", ""]))


def test_an_encrypted_pdf_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="encrypted"):
        read_pdf(locked(pdf_of(["words"])))


def test_a_damaged_pdf_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="damaged"):
        read_pdf(b"%PDF-1.4\nnothing of the sort")


def test_a_pdf_of_too_many_pages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PDF_PAGES_MAX", 1)
    with pytest.raises(UnreadableFile, match="2 pages"):
        read_pdf(pdf_of(["a", "b"]))


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
    data = bomb(DOCX_BYTES_MAX + 2**20)
    assert len(data) < 2**20
    with pytest.raises(UnreadableFile, match="unfolds"):
        read_docx(data)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\xd0\xcf\x11\xe0 old", b"no archive", bomb(2**20)])
def test_what_is_no_word_document_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableFile):
        read_docx(data)
