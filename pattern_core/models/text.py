"""What models and their servers write, read leniently.

Text may hold halves of characters (lone surrogates), arguments may be no JSON, and values may be of another type.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn

from pattern_core.messages import ToolCall
from pattern_db.columns import check_depth

_HIGH_SURROGATES = ("\ud800", "\udbff")


def mended(text: str) -> str:
    """The text with surrogate pairs joined into their characters and lone halves replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Joiner:
    """Makes pieces of one text whole: a character whose halves came in two pieces is given out with the second."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """The part of the text that is complete now; may be empty."""
        text = self._half + piece
        self._half = text[-1] if text and _HIGH_SURROGATES[0] <= text[-1] <= _HIGH_SURROGATES[1] else ""
        return mended(text[: len(text) - len(self._half)])

    def end(self) -> str:
        """What was still held back: nothing, or U+FFFD for a half without its other."""
        rest, self._half = mended(self._half), ""
        return rest


def as_dict(value: object) -> dict[str, object]:
    """The value if it is an object, else an empty one: optional parts of foreign formats are often null."""
    return value if isinstance(value, dict) else {}


def as_str(value: object) -> str:
    """The value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int | None:
    """The value if it is a whole number from 0, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def json_object(text: str | None) -> dict[str, object]:
    """The JSON object that the text is; an empty one where it is none."""
    try:
        return as_dict(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


def tool_call(call_id: str, tool: str, arguments: str) -> ToolCall:
    """The call with its arguments parsed; no text at all means no arguments.

    What is not a JSON object (RFC 8259, so neither NaN nor Infinity) or nests too deep ends up in `invalid` as it came.
    """
    raw = mended(arguments)
    try:
        parsed: object = json.loads(raw, parse_constant=_refuse, parse_float=_finite) if raw.strip() else {}
        if "\\ud" in raw.lower():
            # Escaped halves of a character pass the parser and would later fail wherever text becomes UTF-8.
            parsed = json.loads(mended(json.dumps(parsed, ensure_ascii=False)))
        check_depth(parsed)
    except (ValueError, RecursionError):
        return ToolCall(call_id=call_id, tool=tool, invalid=raw)
    if not isinstance(parsed, dict):
        return ToolCall(call_id=call_id, tool=tool, invalid=raw)
    return ToolCall(call_id=call_id, tool=tool, arguments=parsed)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is beyond what JSON readers agree on")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
