"""JSON columns: values in Python, canonical text in SQLite."""

from __future__ import annotations

import json
from typing import Any

# Made once: making it is a third of the cost of a small text.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

JSON_DEPTH_MAX = 64  # lists and objects within one another; pydantic fails to serialise 255

Json = Any  # a JSON value as Python's json module gives it; the edge where types end


def to_json(value: Json) -> str:
    """Compact JSON text of `value`, not escaped beyond need: text in any language costs its own bytes.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
        TypeError: not a JSON value.
    """
    return _ENCODER.encode(value)


def to_json_or_null(value: Json) -> str | None:
    """As `to_json`; None becomes NULL rather than the text `null`.

    Raises:
        ValueError: as `to_json`.
        TypeError: as `to_json`.
    """
    return None if value is None else to_json(value)


def from_json(text: str | None) -> Json:
    """The value of a JSON column; NULL is None."""
    return None if text is None else json.loads(text)


def check_depth(value: Json) -> None:
    """Refuse a value that nests too deep; what is stored must be possible to serve.

    Raises:
        ValueError: lists and objects lie within one another more than `JSON_DEPTH_MAX` deep.
    """
    level = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        outer = [each for each in level if isinstance(each, dict | list)]
        if not outer:
            return
        level = [inner for each in outer for inner in (each.values() if isinstance(each, dict) else each)]
    raise ValueError(f"it is nested more than {JSON_DEPTH_MAX} deep")
