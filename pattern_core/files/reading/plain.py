"""Plain text in whatever encoding it came, and the refusal of what only calls itself text."""

from __future__ import annotations

import codecs

from pattern_core.files.disk import Unreadable
from pattern_core.files.reading.document import clean

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


def read_text(data: bytes) -> str:
    """The text of a file that says it is text.

    Raises:
        Unreadable: it is empty, binary, damaged or in no known encoding.
    """
    if not data:
        raise Unreadable("the file is empty: there is nothing in it to read")
    for magic, what in _MAGIC:
        if data.startswith(magic):
            raise Unreadable(f"by its content the file is no text but {what}")
    text = _decoded(data)
    _refuse_binary(text)
    return clean(text)


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None) or _unmarked_utf16(data)
    if encoding is None and b"\0" in data:
        raise Unreadable("the file is binary, not text: it holds zero bytes")
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise Unreadable(f"the file says it is {encoding.upper()} and is not, at byte {error.start}") from None
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
        raise Unreadable("the file is no text in any known encoding; save it as UTF-8")
    # Short western texts fit several encodings equally well; the most frequent of them is the likeliest.
    equals = [match for match in found if (match.chaos, match.coherence) == (best.chaos, best.coherence)]
    fitting = {name for match in equals for name in match.could_be_from_charset}
    return "cp1252" if "cp1252" in fitting else str(best.encoding)


def _refuse_binary(text: str) -> None:
    controls = sum(character < " " and character not in _ALLOWED_CONTROLS for character in text)
    controls += text.count("\x7f")
    if controls > CONTROL_SHARE_MAX * len(text):
        raise Unreadable("the file is binary, not text: it holds many control characters")
