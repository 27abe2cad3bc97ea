"""A block as a file: its content as text and back, and names of files for labels and agents.

Text blocks are Markdown, structured ones JSON as a person would indent it, logs one JSON document a line. Two file
contents that mean the same (another indentation, a newline that an editor added) read as the same text.

Any name fits any file system, and nothing is lost: characters that some file system does not allow are written `%41`,
as in URLs; labels cannot contain `%`. Source: the Windows rules for file names (reserved characters and device
names), which are the strictest.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

from pattern_core.memory.changes import applied, carried, change_to
from pattern_core.memory.document import TEXT, same
from pattern_db.columns import Json, strict_json, to_json
from pattern_server.cli.memory_edits import dumped, schema_name, written

FILE_BYTES_MAX = 8 * 1024 * 1024  # twice what the largest block may need in UTF-8
_BOM = "\ufeff"


class Form(StrEnum):
    """How a block is written down; the value is the file's ending."""

    TEXT = "md"
    VALUE = "json"
    LOG = "jsonl"


class Unreadable(ValueError):
    """The file does not hold what its ending says; the message tells a person what to do."""


def form_of(block: dict[str, Any]) -> Form:
    """Return the form of a block as the API shows it: by its schema, `"Text"` or an object with one key such as
    `Map`.
    """
    return {"Text": Form.TEXT, "Log": Form.LOG}.get(schema_name(block), Form.VALUE)


def text_of(block: dict[str, Any]) -> str:
    """Return the block's content as the text of its file."""
    if form_of(block) is Form.LOG and isinstance(block["value"], list):
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in block["value"])
    return written(block)


def body_of(form: Form, text: str) -> dict[str, object]:
    """Return the part of a request that sets a block's content to what a file's text says."""
    return {"content": text} if form is Form.TEXT else {"value": json.loads(text)}


def to_bytes(text: str) -> bytes:
    """Return the text as it is stored in a file: it ends with a newline, as editors want it, if there is any text."""
    return (text if not text or text.endswith("\n") else text + "\n").encode()


def read(raw: bytes, form: Form) -> str:
    """Return the text of a file's bytes, in the one way to write it for structured forms.

    Raises:
        Unreadable: it is not UTF-8, or not the JSON that the form needs.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if "\0" in text:
        raise Unreadable("it contains a zero byte; save it as plain text")
    if form is Form.VALUE and text.strip():
        try:
            return dumped(strict_json(text.removeprefix(_BOM)))
        except ValueError as error:
            raise Unreadable(f"it is not JSON: {error}") from None
    return text


def like(text: str, model: str) -> str:
    """`text` without what an editor changes by itself in a copy of `model`: a mark of byte order, carriage returns, the
    newline at the end.
    """
    if not model.startswith(_BOM):
        text = text.removeprefix(_BOM)
    if "\r" not in model:
        text = text.replace("\r\n", "\n")
    if not model.endswith("\n"):
        return text.removesuffix("\n")
    return text + "\n" if text and not text.endswith("\n") else text


def merged(form: Form, base: str, mine: str, theirs: str) -> str:
    """Return the text with what both sides changed since `base`."""
    if form is Form.TEXT:
        return str(merge_values(base, mine, theirs))
    return dumped(merge_values(*(json.loads(text) for text in (base, mine, theirs))))


def merge_values(base: Json, mine: Json, theirs: Json) -> Json:
    """Return the JSON value with what both changed: objects by their keys, lists by their items, texts by characters.

    Where both changed the same place of a text, both texts are kept; where both changed a number, a truth value or a
    type, mine is. A key that one side removed and the other changed is kept. A changed item is another item.
    """
    if same(mine, base) or same(mine, theirs):
        return theirs
    if same(theirs, base):
        return mine
    match base, mine, theirs:
        case dict(), dict(), dict():
            return _merged_objects(base, mine, theirs)
        case list(), list(), list():
            items = {to_json(item): item for item in (*mine, *theirs)}
            keys = [[to_json(item) for item in side] for side in (base, mine, theirs)]
            return [items[key] for key in _merge_texts(*keys)]
        case str(), str(), str():
            return _merge_texts(base, mine, theirs)
    return mine


def _merge_texts(base: Json, mine: Json, theirs: Json) -> Json:
    """Texts, or lists of texts."""
    change, other = (change_to({TEXT: base}, {TEXT: side}) for side in (mine, theirs))
    return applied({TEXT: theirs}, carried(change, other, wins=True)).get(TEXT, base[:0])


def _merged_objects(base: dict[str, Json], mine: dict[str, Json], theirs: dict[str, Json]) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for key in dict.fromkeys([*theirs, *mine]):
        if key in mine and key in theirs:
            merged[key] = merge_values(base.get(key), mine[key], theirs[key])
            continue
        kept = mine[key] if key in mine else theirs[key]
        if key not in base or not same(kept, base[key]):  # added by one, or changed by the one that kept it
            merged[key] = kept
    return merged


NAME_BYTES_MAX = 180  # of 255 that file systems accept: endings such as `.md.error.txt` must fit behind it
_DIGEST_CHARS = 12
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|%~]')
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def file_name(name: str) -> str:
    """Return the name as a file system accepts it, without an ending; `plain_name` gives it back.

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
    """Return the name that `file_name` wrote; None if it was cut, or was never written by it."""
    if "~" in written:
        return None
    try:
        name = unquote(unicodedata.normalize("NFC", written), errors="strict")
    except UnicodeDecodeError:
        return None
    return name or None


def distinct_names(names: Iterable[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a file name for each name, no two the same where upper and lower case are: `Human` next to `human` is
    `%48uman`.

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
