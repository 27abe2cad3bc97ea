"""JSON columns: values in Python, canonical text in SQLite."""

from __future__ import annotations

import json
from typing import Any

# Made once: making it is a third of the cost of a small text.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

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
