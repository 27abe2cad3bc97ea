"""Names of files for labels and agents, and back: any name fits any file system, and nothing is lost.

What may not stand in a file's name somewhere is written `%41`, as in URLs; `%` itself stands in no label. Source: the
Windows rules for file names (reserved characters and device names), which are the strictest.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

NAME_BYTES_MAX = 180  # of 255 that file systems take: endings such as `.md.error.txt` must fit behind it
_DIGEST_CHARS = 12
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|%~]')
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def file_name(name: str) -> str:
    """The name as a file system takes it, without an ending; `plain_name` gives it back.

    One that is too long is cut and ends with `~` and a digest: that one can only be recognised, not read.
    """
    return _fitted(name, "".join(_written(char) for char in name))


def _fitted(name: str, written: str) -> str:
    if written.startswith((".", " ", "#")) or _DEVICES.fullmatch(written):
        written = _escaped(written[0]) + written[1:]
    if written.endswith((".", " ")):
        written = written[:-1] + _escaped(written[-1])
    if len(written.encode()) <= NAME_BYTES_MAX:
        return written
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    start = written.encode()[: NAME_BYTES_MAX - _DIGEST_CHARS - 1].decode("utf-8", "ignore")
    return f"{re.sub('%[0-9A-F]?$', '', start)}~{digest}"


def plain_name(written: str) -> str | None:
    """The name that `file_name` wrote; None if it was cut, or was never written by it."""
    if "~" in written:
        return None
    try:
        name = unquote(unicodedata.normalize("NFC", written), errors="strict")
    except UnicodeDecodeError:
        return None
    return name or None


def distinct_names(names: Iterable[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """A file name for each name, no two the same where upper and lower case are: `Human` beside `human` is `%48uman`.

    `taken` says what names have already; they keep it.
    """
    found = dict(taken or {})
    used = {written.casefold() for written in found.values()}
    for name in sorted(set(names) - set(found)):
        written = file_name(name)
        if written.casefold() in used:
            written = _fitted(name, "".join(_escaped(char) if char.isupper() else _written(char) for char in name))
        if written.casefold() in used:
            written = _fitted(name, "".join(_escaped(char) for char in name))
        used.add(written.casefold())
        found[name] = written
    return found


def _written(char: str) -> str:
    # What another system would store in another form (decomposed accents, say) is written out as well.
    return _escaped(char) if _UNSAFE.match(char) or unicodedata.normalize("NFC", char) != char else char


def _escaped(char: str) -> str:
    encoded = quote(char, safe="")
    return encoded if encoded != char else f"%{ord(char):02X}"
