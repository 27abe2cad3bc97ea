"""What each format's reader makes of a file, and what it refuses."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.files import readers, reading
from pattern_core.files.disk import FILE_BYTES_MAX, UnreadableFile
from pattern_core.files.readers import (
    DOCX_BYTES_MAX,
    HTML_DEPTH_MAX,
    RECURSION_MAX,
    TEXT_CHARS_MAX,
    Format,
    clean,
    paged,
    read_docx,
    read_file,
    read_html,
    read_page,
    read_pdf,
    read_text,
    web_page,
)
from pattern_core.files.reading import kind_of, read_document
from tests.pattern_core.files.samples import bomb, docx_of, locked, pdf_of


@pytest.fixture(autouse=True)
def _recursion() -> Iterator[None]:
    """As deep as in the child."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_MAX)
    yield
    sys.setrecursionlimit(before)


TEXT = "Über den Gärten liegt Nebel. Die Bäume stehen früh im Grünen, und es ist schön.\n" * 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_every_form_of_unicode_is_read(encoding: str) -> None:
    assert read_text(TEXT.encode(encoding)) == TEXT
    for mark in (codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE):
        assert read_text(mark + TEXT.encode("utf-16-be" if len(mark) == 2 else "utf-32-be")) == TEXT


RUSSIAN = "Привет, это длинное письмо о саде и деревьях, которые растут у реки.\n" * 4
JAPANESE = "これは庭についての長い手紙です。木々は川のそばに立っています。\n" * 6
SHORT = "Grüße aus München, 20 £"


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [("latin-1", [TEXT, SHORT]), ("cp1252", [TEXT, SHORT]), ("cp1251", [RUSSIAN]), ("shift_jis", [JAPANESE])],
)
def test_old_encodings_are_recognised(encoding: str, texts: list[str]) -> None:
    for text in texts:
        assert read_text(text.encode(encoding)) == text


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
    assert read_html(PAGE) == (
        "# Beds\n\nFour of them, in a row.\n\n- north\n- south\n\n## Code\n\n```\na\n  b\n```\n\n"
        "| bed | soil |\n| --- | --- |\n\nEnd\u00a0& out."
    )
    assert read_html(b"<title>Garden</title><p>Words") == "# Garden\n\nWords"  # for a missing heading
    assert read_html('<meta charset="iso-8859-1"><p>Grün'.encode("latin-1")) == "Grün"
    assert "deep" in read_html(b"<div>" * 20_000 + b"deep")


def test_what_was_not_closed_is_not_nested() -> None:
    assert read_html(b"<ul>" + b"<li>owl" * 500 + b"</ul><p>one<p>two") == "- owl\n" * 500 + "\none\n\ntwo"
    table = b"<table><tr><th>a<th>b<tr><td>c<td>d</table>"
    assert read_html(table) == "| a | b |\n| --- | --- |\n| c | d |"
    assert read_html(b"<ul><li>a<ul><li>b</li></ul></li></ul>") == "- a\n  - b"


def test_the_pages_of_a_pdf_know_their_lines() -> None:
    text, pages = read_pdf(pdf_of(["First page.\nIts second line.", "Second page."]))
    assert text.split("\n") == ["First page.", "Its second line.", "Second page."]
    assert pages == [1, 3]
    assert paged(["", "x\fy"]) == ("\nx\ny", [1, 2])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pdf_of(["", ""]), "scanned"),
        (locked(pdf_of(["words"])), "encrypted"),
        (b"%PDF-1.4\nnothing of the sort", "damaged"),
        (pdf_of(["a", "b", "c"]), "3 pages"),
    ],
)
def test_a_pdf_that_is_refused(data: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PDF_PAGES_MAX", 2)
    with pytest.raises(UnreadableFile, match=why):
        read_pdf(data)


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
    assert read_docx(data) == (
        "# Garden book\n\n# Beds\n\nFour of them.\n\n- north\n- south\n\n## Soil\n\n| bed | soil |\n| north | clay |\n"
    )


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"\xd0\xcf\x11\xe0 old", b"no archive", bomb(2**20), bomb(DOCX_BYTES_MAX + 2**20)]
)
def test_what_is_no_word_document_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableFile):
        read_docx(data)


URL = "https://example.org/garden/page.html"
WEB_PAGE = """<!DOCTYPE html>
<html><head><title>Tea &amp;
 gardens</title><style>p { color: red }</style><base href="/base/"></head>
<body>
<header>Site name</header><nav><a href="/">Home</a></nav>
<!-- a secret -->
<main><h1>Tea</h1><header>By Ruth</header>
<p>Ruth likes <b>Darjeeling</b> and <a href="tea_list.html#x">many_others</a>.
 See <a href="#top">above</a>, <a href="javascript:alert(1)">this</a>.</p>
<ul><li>first</li><li>second</li></ul>
<pre><code>brew(tea)
  wait()</code></pre>
<table><tr><th>Tea</th><th>°C</th></tr><tr><td>green</td><td>80</td></tr></table>
<img src="cup.png" alt="A cup"><img src="pixel.gif"><img src="data:image/png;base64,AAAA" alt="Dot">
<div class="box ads">Buy now</div><div id="cookie-banner">We like cookies</div><p style="display: none">hidden words</p>
<div class="shadow adspace">kept</div><p hidden>gone</p><script>alert(1)</script><svg><text>drawn</text></svg>
<p>The owl sleeps by day and hunts by night, and it is rather fond of the small garden behind the house, where mice
live under the shed and nobody ever mows the grass before the end of June in any year that Ruth remembers.</p>
</main><footer>Imprint</footer></body></html>"""
GONE = ["Site name", "Home", "secret", "Buy now", "cookies", "hidden", "gone", "alert", "drawn", "Imprint", "color"]


def test_a_page_of_the_web_becomes_markdown() -> None:
    title, text = web_page(WEB_PAGE.encode(), "markdown", URL, None)
    assert title == "Tea & gardens"
    assert text.startswith("# Tea\n\nBy Ruth\n\nRuth likes **Darjeeling** and")
    assert "[many_others](https://example.org/base/tea_list.html#x)" in text
    assert "See above, this." in text
    assert "- first\n- second" in text
    assert "```\nbrew(tea)\n  wait()\n```" in text
    assert "| Tea | °C |" in text and "| green | 80 |" in text
    assert "![A cup](https://example.org/base/cup.png)" in text
    assert "Dot" in text and "kept" in text
    assert [word for word in (*GONE, "AAAA") if word in text] == []
    assert "\n\n\n" not in text


def test_its_text_has_no_links_and_marks_and_its_html_is_tidied() -> None:
    _title, text = web_page(WEB_PAGE.encode(), "text", URL, None)
    assert "Ruth likes Darjeeling and many_others." in text
    assert "http" not in text and "**" not in text
    assert "green" in text and "brew(tea)" in text
    _title, html = web_page(WEB_PAGE.encode(), "html", URL, None)
    assert html.startswith("<main>") and '<a href="https://example.org/base/tea_list.html#x">' in html
    assert [word for word in GONE if word in html] == []


def test_a_page_without_a_main_part_is_read_whole() -> None:
    assert web_page(b"<p>one</p><article>two</article><p>three", "markdown", URL, None)[1] == "one\n\ntwo\n\nthree"
    assert web_page(b"just words", "markdown", URL, None) == ("", "just words")
    assert web_page(b"", "markdown", URL, None) == ("", "")
    assert web_page("<p>Grüße</p>".encode("latin-1"), "text", URL, "latin-1")[1] == "Grüße"
    assert web_page('<meta charset="cp1251"><p>чай</p>'.encode("cp1251"), "text", URL, None)[1] == "чай"


@pytest.mark.parametrize("wanted", ["markdown", "html", "text"])
def test_depth_does_no_harm(wanted: Format) -> None:
    deep = b"<div><b>" * (HTML_DEPTH_MAX * 5) + b"the owl" + b"</b></div>" * (HTML_DEPTH_MAX * 5)
    assert "the owl" in web_page(deep, wanted, URL, None)[1]


def test_a_child_answers_in_json() -> None:
    data = "<title>T</title><p>Grüße</p>".encode("latin-1")
    assert json.loads(read_page(data, "text", URL, "latin-1")) == {"title": "T", "text": "Grüße"}
    assert json.loads(read_file(pdf_of(["one", "two"]), "pdf")) == {"text": "one\ntwo", "pages": [1, 2]}
    assert json.loads(read_file(docx_of(("Normal", "words")), "docx")) == {"text": "words\n", "pages": []}
    assert json.loads(read_file(b"<p>x", "html")) == {"text": "x", "pages": []}
    with pytest.raises(UnreadableFile, match="empty"):
        read_file(b"<p> </p>", "html")


def test_the_name_says_who_reads() -> None:
    assert (kind_of("a/B.PDF").reader, kind_of("x.htm").reader) == ("pdf", "html")
    assert (kind_of("x.md").syntax, kind_of("x.py").syntax) == ("markdown", "code")
    assert kind_of("Makefile").reader == ""
    assert kind_of("notes.unheard-of").syntax == "prose"


def test_lines_end_in_one_way_and_are_neither_none_nor_too_many() -> None:
    assert clean("a\r\nb\rc\fd\0e\ud800") == "a\nb\nc\nde?"
    for text, why in (("", "empty"), (" \n\t\n", "empty"), ("\ufeff", "empty"), ("x" * (TEXT_CHARS_MAX + 1), "split")):
        with pytest.raises(UnreadableFile, match=why):
            clean(text)


async def test_text_is_read_here_and_the_rest_in_a_child() -> None:
    text = await read_document("a.py", b"x = 1\n")
    assert (text.text, text.kind.syntax) == ("x = 1\n", "code")
    page = await read_document("a.html", b"<h1>Beds</h1>")
    assert (page.text, page.kind.syntax, page.kind.content_type) == ("# Beds", "markdown", "text/html")
    assert (await read_document("a.pdf", pdf_of(["one", "two"]))).pages == (1, 2)
    assert (await read_document("a.docx", docx_of(("Heading 1", "Beds")))).text == "# Beds\n"


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.txt", b"", "empty"),
        ("a.txt", b"\x7fELF\0\0", "program"),
        ("a.pdf", b"words", "damaged"),
        ("a.docx", b"words", "not a Word document"),
        ("a.zip", b"PK", "unpack"),
        ("a.html", b"<p></p>", "empty"),
        ("a.txt", b"x" * (FILE_BYTES_MAX + 1), "at most"),
        ("a.doc", b"words", r"\.docx"),
        ("a.xlsx", b"words", r"\.csv"),
        ("a.PNG", b"words", "image"),
    ],
)
async def test_what_cannot_be_read_says_why(name: str, data: bytes, why: str) -> None:
    with pytest.raises(UnreadableFile, match=why):
        await read_document(name, data)


def die(_data: bytes) -> bytes:
    os.abort()


async def test_what_kills_its_reader_kills_nothing_else() -> None:
    # Ten thousand pages that are each other's parents: the library's own guard or ours, but an answer.
    loop = (
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[2 0 R 2 0 R]/Count 9>>endobj"
    )
    with pytest.raises(UnreadableFile, match="PDF"):
        await read_document("a.pdf", loop + b"\ntrailer<</Root 1 0 R>>")
    with pytest.raises(UnreadableFile, match=r"the page is damaged.*the process that read it ended with signal 6"):
        await reading.read_in_child(die, b"", what="the page", timeout_s=60)


async def test_reading_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_TIMEOUT_S", 0.01)
    with trio.fail_after(60), pytest.raises(UnreadableFile, match="did not finish within"):
        await read_document("a.html", b"<p>x")
