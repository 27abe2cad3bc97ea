"""Word documents (.docx) as Markdown: headings, paragraphs, lists and tables. Runs in the child process only."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator

from pattern_core.files.disk import Unreadable

UNPACKED_BYTES_MAX = 200 * 1024 * 1024
PARTS_MAX = 5_000
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)


def read_docx(data: bytes) -> str:
    """The document's text as Markdown.

    Raises:
        Unreadable: it is no such document, is encrypted, damaged, or unfolds to too much.
        Exception: whatever the library does on damaged bytes; it ends the child.
    """
    from docx import Document  # heavy, and needed for this format only
    from docx.opc.exceptions import PackageNotFoundError

    _check_archive(data)
    try:
        document = Document(io.BytesIO(data))
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise Unreadable(f"the Word document is damaged: {error}") from None
    return "\n".join(_lines(document.iter_inner_content()))


def _check_archive(data: bytes) -> None:
    """Refuse archives that would unfold to gigabytes, before anything is unfolded."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        raise Unreadable("the Word document is encrypted or in the old .doc format; save it as .docx, without password")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
    except zipfile.BadZipFile as error:
        raise Unreadable(f"this is no Word document: {error}") from None
    # Reading a part stops at its declared size, so that the sum of those is what can come of it.
    size = sum(part.file_size for part in parts)
    if len(parts) > PARTS_MAX or size > UNPACKED_BYTES_MAX:
        raise Unreadable(
            f"the Word document unfolds to {size} bytes in {len(parts)} parts; at most {UNPACKED_BYTES_MAX} bytes in"
            f" {PARTS_MAX} parts are read"
        )


def _lines(blocks: Iterator[object]) -> Iterator[str]:
    was_item = False
    for block in blocks:
        rows = getattr(block, "rows", None)
        if rows is not None:
            yield from ("| " + " | ".join(_cell(cell.text) for cell in row.cells) + " |" for row in rows)
            yield ""
            continue
        text = str(getattr(block, "text", "")).strip()
        if not text:
            continue
        mark = _mark(str(getattr(getattr(block, "style", None), "name", "") or ""))
        if was_item and mark != "- ":
            yield ""
        yield from (mark + text if mark else text).split("\n")
        was_item = mark == "- "
        if not was_item:
            yield ""


def _mark(style: str) -> str:
    """What Markdown writes before a paragraph of this style."""
    found = _HEADING.match(style)
    if found:
        return "#" * min(int(found[1]), 6) + " "
    if style.lower() == "title":
        return "# "
    return "- " if style.lower().startswith("list") else ""


def _cell(text: str) -> str:
    return " ".join(text.split())
