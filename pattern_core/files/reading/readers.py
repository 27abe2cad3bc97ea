"""The readers, one for each format: plain text in whatever encoding it came, HTML, PDF and Word documents.

HTML and Word documents become Markdown: headings, paragraphs, lists, tables and code. All but plain text is read in the
child process only (`child.py`); the libraries are imported by the reader that needs them, for they are heavy.
"""

from __future__ import annotations

import codecs
import io
import re
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading.document import TEXT_CHARS_MAX, clean

if TYPE_CHECKING:
    from bs4.element import PageElement, Tag

PDF_PAGES_MAX = 5_000
DOCX_BYTES_MAX = 200 * 1024 * 1024  # unpacked
DOCX_PARTS_MAX = 5_000
DETECTED_BYTES = 64 * 1024  # looked at to guess an encoding; the whole would take seconds and tell no more
CONTROL_SHARE_MAX = 0.01  # of characters; text has next to none
_ALLOWED_CONTROLS = frozenset("\t\n\r\f\x1b")
_UTF16_SHARE = 0.3  # of every second byte being zero

# Longest first: UTF-32's mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# First bytes of formats that are often given a wrong name. Source: the formats' own specifications.
_MAGIC = (
    (b"%PDF-", "a PDF document; its name should end in .pdf"),
    (b"PK\x03\x04", "a zip archive or office document"),
    (b"\x89PNG\r\n", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90", "a program"),
    (b"\x1f\x8b", "a compressed file"),
    (b"SQLite format 3\0", "a database"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"{\\rtf", "an RTF document; save it as .docx or .txt"),
)
# Elements of HTML: what is no text, and what begins on a line of its own.
_LEFT_OUT = frozenset(("script", "style", "noscript", "template", "svg", "head", "title", "iframe", "object", "select"))
_BLOCK_NAMES = (
    "address article aside blockquote body caption dd details dialog div dl dt fieldset figcaption figure footer form"
    " h1 h2 h3 h4 h5 h6 header hr html li main nav ol p pre section summary table tbody tfoot thead tr ul"
)
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_SPACES = re.compile(r"[ \t\r\n\f]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_HEADING_STYLE = re.compile(r"heading (\d)", re.IGNORECASE)  # of a paragraph in a Word document


def read_text(data: bytes) -> str:
    """The text of a file that says it is text.

    Raises:
        UnreadableFile: it is empty, binary, damaged or in no known encoding.
    """
    if not data:
        raise UnreadableFile("the file is empty: there is nothing in it to read")
    for magic, what in _MAGIC:
        if data.startswith(magic):
            raise UnreadableFile(f"by its content the file is no text but {what}")
    text = _decoded(data)
    _refuse_binary(text)
    return clean(text)


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None) or _unmarked_utf16(data)
    if encoding is None and b"\0" in data:
        raise UnreadableFile("the file is binary, not text: it holds zero bytes")
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise UnreadableFile(f"the file says it is {encoding.upper()} and is not, at byte {error.start}") from None
    return data.decode(_detected(data), "replace")


def _unmarked_utf16(data: bytes) -> str | None:
    """UTF-16 without a mark, as it is mostly Latin text: every second byte is zero, and hardly one of the others."""
    head = data[:DETECTED_BYTES]
    if len(head) < 4 or len(data) % 2:
        return None
    even, odd, half = head[0::2].count(0), head[1::2].count(0), len(head) / 2
    if odd > _UTF16_SHARE * half and even == 0:
        return "utf-16-le"
    return "utf-16-be" if even > _UTF16_SHARE * half and odd == 0 else None


def _detected(data: bytes) -> str:
    """An encoding for text that is not UTF-8."""
    from charset_normalizer import from_bytes  # heavy: its tables are loaded only for files that need it

    found = from_bytes(data[:DETECTED_BYTES])
    best = found.best()
    if best is None:
        raise UnreadableFile("the file is no text in any known encoding; save it as UTF-8")
    # Short western texts fit several encodings equally well; the most frequent of them is the likeliest.
    equals = [match for match in found if (match.chaos, match.coherence) == (best.chaos, best.coherence)]
    fitting = {name for match in equals for name in match.could_be_from_charset}
    return "cp1252" if "cp1252" in fitting else str(best.encoding)


def _refuse_binary(text: str) -> None:
    controls = sum(character < " " and character not in _ALLOWED_CONTROLS for character in text)
    controls += text.count("\x7f")
    if controls > CONTROL_SHARE_MAX * len(text):
        raise UnreadableFile("the file is binary, not text: it holds many control characters")


def read_html(data: bytes) -> str:
    """The page's text as Markdown. Its encoding is what it says, else what it looks like."""
    from bs4 import BeautifulSoup  # heavy, and needed for this format only

    soup = BeautifulSoup(data, "html.parser")
    writer = _MarkdownWriter()
    title = soup.title.get_text(" ", strip=True) if soup.title is not None else ""
    if title and soup.find("h1") is None:
        writer.lines.append(f"# {title}\n")
    # An own stack: pages nest deeper than Python's.
    stack: list[tuple[PageElement, bool]] = [(soup, False)]
    while stack:
        node, is_end = stack.pop()
        name = getattr(node, "name", None)
        if name is None:
            if type(node).__name__ in ("NavigableString", "CData"):
                writer.words(str(node))
        elif is_end:
            writer.end(name)
        elif name not in _LEFT_OUT:
            tag: Tag = node  # type: ignore[assignment]  # only tags have a name
            writer.start(name)
            stack.append((node, True))
            stack += [(child, False) for child in reversed(tag.contents)]
    return writer.text()


class _MarkdownWriter:
    """Gathers lines; the current one is written when a block begins or ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._current: list[str] = []
        self._mark = ""
        self._preformatted = 0
        self._cells = 0

    def start(self, name: str) -> None:
        if name in ("td", "th"):
            self._current.append("| " if self._cells == 0 else " | ")
            self._cells += 1
        elif name == "br":
            self._current.append("\n" if self._preformatted else " ")
        elif name in _BLOCKS:
            self._flush()
            self._mark = _HEADINGS.get(name, "- " if name == "li" else self._mark if name in ("p", "div") else "")
            if name == "pre":
                self._preformatted += 1
                self.lines.append("```")
            if name == "tr":
                self._cells = 0

    def end(self, name: str) -> None:
        if name not in _BLOCKS:
            return
        if name == "tr" and self._cells:
            self._current.append(" |")
        self._flush(is_preformatted=name == "pre")
        if name == "pre":
            self._preformatted -= 1
            self.lines.append("```")
        self._mark = ""
        if name not in ("li", "tr", "dt", "html", "body"):
            self.lines.append("")

    def words(self, text: str) -> None:
        self._current.append(text if self._preformatted else _SPACES.sub(" ", text))

    def _flush(self, *, is_preformatted: bool = False) -> None:
        text = "".join(self._current)
        self._current.clear()
        text = text.strip("\n") if is_preformatted or self._preformatted else _SPACES.sub(" ", text).strip()
        if text:
            self.lines.append(self._mark + text)
            self._mark = ""

    def text(self) -> str:
        self._flush()
        return _EMPTY_LINES.sub("\n\n", "\n".join(self.lines)).strip("\n") + "\n"


def read_pdf(data: bytes) -> tuple[str, list[int]]:
    """The text of all pages and the first line of each, from 1.

    Raises:
        UnreadableFile: it is encrypted, damaged, too long, or holds pictures only.
        Exception: whatever the library does on damaged bytes; it ends the child.
    """
    from pypdf import PdfReader  # heavy, and needed for this format only
    from pypdf.errors import DependencyError, PdfReadError

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableFile("the PDF is encrypted; save it without a password")
        count = len(reader.pages)
        if count > PDF_PAGES_MAX:
            raise UnreadableFile(f"the PDF has {count} pages; at most {PDF_PAGES_MAX} are read, so split it")
        texts = [page.extract_text().strip("\n") for page in reader.pages]
    except DependencyError:
        raise UnreadableFile("the PDF is encrypted; save it without a password") from None
    except PdfReadError as error:
        raise UnreadableFile(f"the PDF is damaged: {error}") from None
    if sum(map(len, texts)) > TEXT_CHARS_MAX:
        raise UnreadableFile(f"the PDF holds more than {TEXT_CHARS_MAX} characters; split it")
    if not any(text.strip() for text in texts):
        raise UnreadableFile(
            "the PDF holds no text: its pages are probably scanned; run a text recognition over it first"
        )
    return paged(texts)


def paged(texts: list[str]) -> tuple[str, list[int]]:
    """The pages' texts as one, each on lines of its own, and the first line of each page."""
    lines: list[str] = []
    starts: list[int] = []
    for text in texts:
        starts.append(len(lines) + 1)
        lines += text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").split("\n")
    return "\n".join(lines), starts


def read_docx(data: bytes) -> str:
    """The document's text as Markdown.

    Raises:
        UnreadableFile: it is no such document, is encrypted, damaged, or unfolds to too much.
        Exception: whatever the library does on damaged bytes; it ends the child.
    """
    from docx import Document  # heavy, and needed for this format only
    from docx.opc.exceptions import PackageNotFoundError

    _check_archive(data)
    try:
        document = Document(io.BytesIO(data))
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise UnreadableFile(f"the Word document is damaged: {error}") from None
    return "\n".join(_docx_lines(document.iter_inner_content()))


def _check_archive(data: bytes) -> None:
    """Refuse archives that would unfold to gigabytes, before anything is unfolded."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        raise UnreadableFile(
            "the Word document is encrypted or in the old .doc format; save it as .docx, without password"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableFile(f"this is no Word document: {error}") from None
    # Reading a part stops at its declared size, so that the sum of those is what can come of it.
    size = sum(part.file_size for part in parts)
    if len(parts) > DOCX_PARTS_MAX or size > DOCX_BYTES_MAX:
        raise UnreadableFile(
            f"the Word document unfolds to {size} bytes in {len(parts)} parts; at most {DOCX_BYTES_MAX} bytes in"
            f" {DOCX_PARTS_MAX} parts are read"
        )


def _docx_lines(blocks: Iterator[object]) -> Iterator[str]:
    was_item = False
    for block in blocks:
        rows = getattr(block, "rows", None)
        if rows is not None:
            yield from ("| " + " | ".join(_table_cell(cell.text) for cell in row.cells) + " |" for row in rows)
            yield ""
            continue
        text = str(getattr(block, "text", "")).strip()
        if not text:
            continue
        mark = _style_mark(str(getattr(getattr(block, "style", None), "name", "") or ""))
        if was_item and mark != "- ":
            yield ""
        yield from (mark + text if mark else text).split("\n")
        was_item = mark == "- "
        if not was_item:
            yield ""


def _style_mark(style: str) -> str:
    """What Markdown writes before a paragraph of this style."""
    found = _HEADING_STYLE.match(style)
    if found:
        return "#" * min(int(found[1]), 6) + " "
    if style.lower() == "title":
        return "# "
    return "- " if style.lower().startswith("list") else ""


def _table_cell(text: str) -> str:
    return " ".join(text.split())
