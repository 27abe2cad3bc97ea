"""Shapes of documents: which kinds there are, what a block's metadata says of its own, and what its content may be.

A schema stands in a block's metadata under `schema`, tagged by its kind: `"Text"` or `{"Text": {}}`.
Source: the block schemas of the memory design (Text, Map, List, Log, Composite).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pattern_core.errors import InvalidInput


class SchemaKind(StrEnum):
    """The kinds of documents, by the tag under which they are stored."""

    TEXT = "Text"
    MAP = "Map"
    LIST = "List"
    LOG = "Log"
    COMPOSITE = "Composite"


SUPPORTED = frozenset({SchemaKind.TEXT})
_BY_NAME = {kind.value.lower(): kind for kind in SchemaKind}


def kind_of(metadata: Mapping[str, object] | None) -> SchemaKind:
    """The kind that a block's metadata names; text where it names none.

    Raises:
        InvalidInput: there is no such kind, or it is not supported yet.
    """
    stored = (metadata or {}).get("schema")
    if stored is None:
        return SchemaKind.TEXT
    if isinstance(stored, Mapping) and len(stored) == 1:
        stored = next(iter(stored))
    kind = _BY_NAME.get(stored.lower()) if isinstance(stored, str) else None
    if kind is None:
        raise InvalidInput(f"there is no block schema {stored!r}; supported: {_supported()}")
    if kind not in SUPPORTED:
        raise InvalidInput(f"blocks of the schema {kind.value} are not supported yet; supported: {_supported()}")
    return kind


def check_text(text: str) -> str:
    """`text`, if a document can hold it.

    Raises:
        InvalidInput: it holds a lone surrogate, half of a character that no encoding can store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"character {error.start + 1} of the text is half of a surrogate pair and cannot be stored; leave it out"
        ) from None
    return text


def check_size(label: str, *, size: int, before: int, limit: int) -> None:
    """Refuse what would not fit. Sizes and `limit` are Unicode code points.

    A block that is over its limit already (the limit was lowered) may shrink step by step.

    Raises:
        InvalidInput: `size` is above `limit` and not below `before`; the message names all three.
    """
    if size > limit and size >= before:
        raise InvalidInput(
            f"the block {label} holds at most {limit} characters; it has {before} and would have {size}. "
            "Shorten it first, or store the details with recall",
            limit=limit,
            size=before,
            wanted=size,
        )


def _supported() -> str:
    return ", ".join(sorted(kind.value for kind in SUPPORTED))
