"""A block's content as the text of a file, and back.

Text blocks are Markdown, structured ones JSON as a person would indent it, logs one JSON document a line. Two file
contents that mean the same (another indentation, a newline that an editor added) read as the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pattern_core.memory.changes import merge_values

FILE_BYTES_MAX = 8 * 1024 * 1024  # twice what the largest block may need in UTF-8
_BOM = "\ufeff"


class Form(StrEnum):
    """How a block is written down; the value is the file's ending."""

    TEXT = "md"
    VALUE = "json"
    LOG = "jsonl"


class Unreadable(ValueError):
    """The file does not hold what its ending says; the message tells a person what to do."""


def form_of(block: Mapping[str, Any]) -> Form:
    """The form of a block as the API shows it: by its schema, `"Text"` or an object with one key such as `Map`."""
    schema = block.get("schema") or "Text"
    name = schema if isinstance(schema, str) else next(iter(schema), "Text")
    return {"Text": Form.TEXT, "Log": Form.LOG}.get(name, Form.VALUE)


def text_of(block: Mapping[str, Any]) -> str:
    """The block's content as the text of its file."""
    form, value = form_of(block), block.get("value", block["content"])
    if form is Form.TEXT:
        return str(value)
    if form is Form.LOG and isinstance(value, list):
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in value)
    return dumped(value)


def dumped(value: object) -> str:
    """A JSON value as the text of a file."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def body_of(form: Form, text: str) -> dict[str, object]:
    """The part of a request that sets a block's content to what a file's text says."""
    return {"content": text} if form is Form.TEXT else {"value": json.loads(text)}


def to_bytes(text: str) -> bytes:
    """The text as it is stored in a file: it ends with a newline, as editors want it, if there is any text."""
    return (text if not text or text.endswith("\n") else text + "\n").encode()


def read(raw: bytes, form: Form) -> str:
    """The text of a file's bytes, in the one way to write it for structured forms.

    Raises:
        Unreadable: it is no UTF-8, or no JSON where that is wanted.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if "\0" in text:
        raise Unreadable("it holds a zero byte, which no text does")
    if form is Form.VALUE and text.strip():
        try:
            return dumped(json.loads(text.removeprefix(_BOM), parse_constant=_refused))
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"it is not JSON: {error}") from None
    return text


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


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
    """The text with what both sides changed since `base`."""
    if form is Form.TEXT:
        return str(merge_values(base, mine, theirs))
    return dumped(merge_values(*(json.loads(text) for text in (base, mine, theirs))))
