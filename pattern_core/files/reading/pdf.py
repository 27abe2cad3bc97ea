"""PDF documents: the text of their pages. Runs in the child process only."""

from __future__ import annotations

import io

from pattern_core.files.disk import Unreadable
from pattern_core.files.reading.document import TEXT_CHARS_MAX

PAGES_MAX = 5_000


def read_pdf(data: bytes) -> tuple[str, list[int]]:
    """The text of all pages and the first line of each, from 1.

    Raises:
        Unreadable: it is encrypted, damaged, too long, or holds pictures only.
        Exception: whatever the library does on damaged bytes; it ends the child.
    """
    from pypdf import PdfReader  # heavy, and needed for this format only
    from pypdf.errors import DependencyError, PdfReadError

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("the PDF is encrypted; save it without a password")
        count = len(reader.pages)
        if count > PAGES_MAX:
            raise Unreadable(f"the PDF has {count} pages; at most {PAGES_MAX} are read, so split it")
        texts = [page.extract_text().strip("\n") for page in reader.pages]
    except DependencyError:
        raise Unreadable("the PDF is encrypted; save it without a password") from None
    except PdfReadError as error:
        raise Unreadable(f"the PDF is damaged: {error}") from None
    if sum(map(len, texts)) > TEXT_CHARS_MAX:
        raise Unreadable(f"the PDF holds more than {TEXT_CHARS_MAX} characters; split it")
    if not any(text.strip() for text in texts):
        raise Unreadable("the PDF holds no text: its pages are probably scanned; run a text recognition over it first")
    return paged(texts)


def paged(texts: list[str]) -> tuple[str, list[int]]:
    """The pages' texts as one, each on lines of its own, and the first line of each page."""
    lines: list[str] = []
    starts: list[int] = []
    for text in texts:
        starts.append(len(lines) + 1)
        lines += text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").split("\n")
    return "\n".join(lines), starts
