from __future__ import annotations

import pytest
import trio

from pattern_core.files.disk import FILE_BYTES_MAX, UnreadableFile
from pattern_core.files.reading import read as reading
from pattern_core.files.reading.document import Syntax
from pattern_core.files.reading.read import read_document
from tests.pattern_core.files.samples import bomb, docx_of, pdf_of


async def test_text_is_read_here_and_the_rest_in_a_child() -> None:
    text = await read_document("a.py", b"x = 1\n")
    assert (text.text, text.syntax) == ("x = 1\n", Syntax.CODE)
    page = await read_document("a.html", b"<h1>Beds</h1>")
    assert (page.text, page.syntax, page.content_type) == ("# Beds\n", Syntax.MARKDOWN, "text/html")
    assert (await read_document("a.pdf", pdf_of(["one", "two"]))).pages == (1, 2)
    assert (await read_document("a.docx", docx_of(("Heading 1", "Beds")))).text == "# Beds\n"


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.txt", b"", "empty"),
        ("a.pdf", b"", "empty"),
        ("a.txt", b"\x7fELF\0\0", "program"),
        ("a.pdf", b"words", "damaged"),
        ("a.docx", bomb(210 * 2**20), "unfolds"),
        ("a.zip", b"PK", "unpack"),
        ("a.html", b"<p></p>", "empty"),
        ("a.txt", b"x" * (FILE_BYTES_MAX + 1), "at most"),
    ],
)
async def test_what_cannot_be_read_says_why(name: str, data: bytes, why: str) -> None:
    with pytest.raises(UnreadableFile, match=why):
        await read_document(name, data)


async def test_a_file_that_kills_its_reader_kills_nothing_else() -> None:
    # Ten thousand pages that are each other's parents: the library's own guard or ours, but an answer.
    loop = (
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[2 0 R 2 0 R]/Count 9>>endobj\n"
    )
    with pytest.raises(UnreadableFile, match="PDF"):
        await read_document("a.pdf", loop + b"trailer<</Root 1 0 R>>")


async def test_reading_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_TIMEOUT_S", 0.01)
    with trio.fail_after(60), pytest.raises(UnreadableFile, match="longer than"):
        await read_document("a.html", b"<p>x")
