"""Readers of file contents: plain text in any encoding, HTML, PDF and Word documents.

HTML and Word documents become Markdown: headings, paragraphs, lists, tables and code. All but plain text is read in a
child process only (`read_file`, `read_page`), for it may be made to exhaust memory or time, or to trip a parser. The
libraries are imported by the reader that needs them, for they are heavy.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
import unicodedata
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin

from pattern_core.files.disk import UnreadableFile

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from bs4.element import Tag

Format = Literal["markdown", "html", "text"]

TEXT_CHARS_MAX = 5_000_000
PDF_PAGES_MAX = 5_000
DOCX_BYTES_MAX = 200 * 1024 * 1024  # unpacked
DOCX_PARTS_MAX = 5_000
DETECTED_BYTES = 64 * 1024  # used to guess an encoding; the whole text would need seconds, for the same result
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
# Elements of HTML that hold no text to read.
_INVISIBLE_NAMES = (
    "script style noscript template svg canvas iframe frame object embed audio video button input select textarea"
    " link meta title"
)
_INVISIBLE = _INVISIBLE_NAMES.split()
# What an element ends if it is still open: the parser takes it for nested. Source: HTML Standard, 13.1.2.4.
_ENDED = {"li": ("li",), "p": ("p",), "tr": ("td", "th", "tr")}
_ENDED |= dict.fromkeys(("td", "th"), ("td", "th")) | dict.fromkeys(("dt", "dd"), ("dt", "dd"))
# Parts of a web page that are not its main content, by element, role, and the usual classes and ids.
_ASIDES = frozenset(("nav", "aside", "dialog"))
_ROLES = frozenset(("navigation", "banner", "contentinfo", "complementary", "search", "dialog", "alertdialog"))
_NOISE_NAMES = (
    "ad ads advert advertisement adsbygoogle ad-container ad-slot sponsored promo cookie cookies cookie-banner"
    " cookie-consent cookie-notice breadcrumbs share-buttons social-share newsletter-signup"
)
_NOISE = frozenset(_NOISE_NAMES.split())
_PLAIN = ["a", "img", "b", "strong", "em", "i", "code", "del", "s", "sub", "sup", "u"]
HTML_DEPTH_MAX = 150  # elements within each other; what is deeper is kept as words
RECURSION_MAX = 4_000  # the converter calls itself some ten times per level
MAIN_CHARS_MIN = 200  # a main part with less is not the page's point
_HEADING_STYLE = re.compile(r"heading (\d)", re.IGNORECASE)  # of a paragraph in a Word document
_EMPTY_LINES = re.compile(r"\n\s*\n(?:\s*\n)+")


def read_file(data: bytes, kind: str) -> bytes:
    """Read a file of the kind html, pdf or docx, in a child. JSON: `{"text", "pages"}`, the first line of every page.

    Raises:
        UnreadableFile: it cannot be read.
    """
    sys.setrecursionlimit(RECURSION_MAX)
    pages: list[int] = []
    match kind:
        case "html":
            text = read_html(data)
        case "docx":
            text = read_docx(data)
        case _:
            text, pages = read_pdf(data)
    return json.dumps({"text": clean(text), "pages": pages}).encode()


def read_page(data: bytes, wanted: Format, url: str, charset: str) -> bytes:
    """Read a page of the web, in a child. JSON: `{"title", "text"}`."""
    sys.setrecursionlimit(RECURSION_MAX)
    title, text = web_page(data, wanted, url, charset or None)
    return json.dumps({"title": title, "text": text[:TEXT_CHARS_MAX]}).encode()


def clean(text: str) -> str:
    """`text` with `\\n` as the only line end and without characters that no text needs.

    Raises:
        UnreadableFile: nothing is left to read, or it is longer than `TEXT_CHARS_MAX` characters.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\0", "")
    plain = plain.encode("utf-8", "replace").decode("utf-8")  # half characters are not text to SQLite
    if len(plain) > TEXT_CHARS_MAX:
        raise UnreadableFile(
            f"the text has {len(plain)} characters; at most {TEXT_CHARS_MAX} are read, so split the file"
        )
    if not any(unicodedata.category(character)[0] not in "ZC" for character in plain):
        raise UnreadableFile("the file is empty: there is nothing in it to read")
    return plain


def read_text(data: bytes) -> str:
    """Return the text of a file that says it is text.

    Raises:
        UnreadableFile: it is empty, binary, damaged or in no known encoding.
    """
    for magic, what in _MAGIC:
        if data.startswith(magic):
            raise UnreadableFile(f"by its content the file is not text but {what}")
    text = _decoded(data)
    controls = sum(character < " " and character not in _ALLOWED_CONTROLS for character in text) + text.count("\x7f")
    if controls > CONTROL_SHARE_MAX * len(text):
        raise UnreadableFile("the file is binary, not text: it holds many control characters")
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
    """Return an encoding for text that is not UTF-8."""
    from charset_normalizer import from_bytes  # heavy: its tables are loaded only for files that need it

    found = from_bytes(data[:DETECTED_BYTES])
    if (best := found.best()) is None:
        raise UnreadableFile("the file is not text in any known encoding; save it as UTF-8")
    # Short western texts fit several encodings equally well; the most frequent of them is the likeliest.
    equals = [match for match in found if (match.chaos, match.coherence) == (best.chaos, best.coherence)]
    fitting = {name for match in equals for name in match.could_be_from_charset}
    return "cp1252" if "cp1252" in fitting else str(best.encoding)


def read_html(data: bytes) -> str:
    """Return the text of an HTML file as Markdown without links; its title stands for a missing heading."""
    soup, title = _parsed(data)
    text = _markdown(soup, is_plain=True)
    return f"# {title}\n\n{text}" if title and soup.find("h1") is None else text


def web_page(data: bytes, wanted: Format, url: str, charset: str | None = None) -> tuple[str, str]:
    """Return the title of the page at `url`, and what it is about as Markdown, as plain text or as tidied HTML."""
    soup, title = _parsed(data, charset)
    base = soup.find("base", href=True)
    address = url if base is None else urljoin(url, str(base["href"]))
    for tag in soup.find_all(_is_noise):
        tag.extract()
    body = _main_part(soup)
    _complete_links(body, address)
    if wanted == "html":
        return title, _EMPTY_LINES.sub("\n\n", str(body)).strip()
    return title, _markdown(body, is_plain=wanted == "text")


def _parsed(data: bytes, charset: str | None = None) -> tuple[BeautifulSoup, str]:
    """Return the document without what is not shown, and its title. The encoding is as given, else what the bytes
    say.
    """
    from bs4 import BeautifulSoup  # heavy, and needed in the child only
    from bs4.element import PreformattedString

    soup = BeautifulSoup(data, "html.parser", from_encoding=charset)
    title = " ".join(soup.title.get_text(" ").split()) if soup.title is not None else ""
    for text in soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
        text.extract()  # comments, doctypes
    for tag in soup.find_all(_INVISIBLE):
        tag.extract()
    for tag in soup.find_all(list(_ENDED)):
        while tag.parent is not None and tag.parent.name in _ENDED[tag.name]:
            tag.parent.insert_after(tag.extract())
    # Extreme nesting becomes plain text: the converter calls itself for every level.
    level: list[Tag] = [soup]
    for _ in range(HTML_DEPTH_MAX):
        level = [child for tag in level for child in tag.find_all(True, recursive=False)]
    for tag in level:
        tag.string = tag.get_text(" ")
    return soup, title


def _is_noise(tag: Tag) -> bool:
    """Return whether an element is not part of the page's main content."""
    if tag.name in ("html", "body", "main", "article"):
        return False
    if tag.name in ("header", "footer"):
        return tag.find_parent(["article", "main", "section"]) is None
    style = "".join(str(tag.get("style", "")).split()).lower()
    return (
        tag.name in _ASIDES
        or not _NOISE.isdisjoint((*tag.get_attribute_list("class"), str(tag.get("id"))))
        or tag.get("role") in _ROLES
        or tag.has_attr("hidden")
        or tag.get("aria-hidden") == "true"
        or "display:none" in style
        or "visibility:hidden" in style
    )


def _main_part(soup: BeautifulSoup) -> Tag:
    """Return the element with the page's main content."""
    for found in (soup.find_all("main"), soup.find_all(None, {"role": "main"}), soup.find_all("article")):
        if len(found) == 1 and len(found[0].get_text(strip=True)) >= MAIN_CHARS_MIN:
            return found[0]
    return soup.body or soup


def _complete_links(body: Tag, address: str) -> None:
    """Whole addresses, and no link or picture that cannot be followed from here."""
    for tag in body.find_all(["a", "img"]):
        name = "href" if tag.name == "a" else "src"
        given, words = str(tag.get(name) or ""), str(tag.get("alt") or "")
        try:
            whole = urljoin(address, given)
        except ValueError:
            whole = ""
        leads_somewhere = whole.startswith(("http://", "https://", "mailto:"))
        if tag.name == "img" and not (words and leads_somewhere):
            tag.replace_with(words)
        elif not leads_somewhere or given.startswith("#"):
            tag.unwrap()
        else:
            tag[name] = whole


def _markdown(body: Tag, *, is_plain: bool) -> str:
    from markdownify import MarkdownConverter  # heavy, and needed in the child only

    converter = MarkdownConverter(
        heading_style="atx",
        bullets="-",
        escape_asterisks=False,
        escape_underscores=False,
        escape_misc=False,
        table_infer_header=True,
        wrap=True,
        wrap_width=None,  # a paragraph is one line
        strip=_PLAIN if is_plain else None,
    )
    text = converter.convert_soup(body)
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return _EMPTY_LINES.sub("\n\n", lines).strip()


def read_pdf(data: bytes) -> tuple[str, list[int]]:
    """Return the text of all pages and the first line of each, from 1.

    Raises:
        UnreadableFile: it is encrypted, damaged, too long, or holds pictures only.
        Exception: whatever the library does on damaged bytes; it ends the child.
    """
    from pypdf import PdfReader  # heavy, and needed for this format only
    from pypdf.errors import DependencyError, FileNotDecryptedError, PdfReadError

    try:
        reader = PdfReader(io.BytesIO(data))  # which tries an empty password by itself
        if (count := len(reader.pages)) > PDF_PAGES_MAX:
            raise UnreadableFile(f"the PDF has {count} pages; at most {PDF_PAGES_MAX} are read, so split it")
        texts = [page.extract_text().strip("\n") for page in reader.pages]
    except (DependencyError, FileNotDecryptedError):
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
    """Return the pages' texts as one, each on lines of its own, and the first line of each page."""
    lines: list[str] = []
    starts: list[int] = []
    for text in texts:
        starts.append(len(lines) + 1)
        lines += text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").split("\n")
    return "\n".join(lines), starts


def read_docx(data: bytes) -> str:
    """Return the document's text as Markdown.

    Raises:
        UnreadableFile: it is not such a document, is encrypted, damaged, or unfolds to too much.
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
    """Refuse archives that would decompress to gigabytes, before decompressing."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        raise UnreadableFile(
            "the Word document is encrypted or in the old .doc format; save it as .docx, without password"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableFile(f"this is not a Word document: {error}") from None
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
        if (rows := getattr(block, "rows", None)) is not None:
            yield from ("| " + " | ".join(" ".join(cell.text.split()) for cell in row.cells) + " |" for row in rows)
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
    """Return what Markdown writes before a paragraph of this style."""
    if found := _HEADING_STYLE.match(style):
        return "#" * min(int(found[1]), 6) + " "
    if style.lower() == "title":
        return "# "
    return "- " if style.lower().startswith("list") else ""
