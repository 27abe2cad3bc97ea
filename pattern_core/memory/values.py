"""JSON values that a document can hold, in one canonical form, and the types that a field may have. Pure.

Canonical: objects with sorted keys, whole numbers without a fraction, times in UTC. Equal values are equal as text, on
every copy of a document, whatever way they came.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date
from enum import StrEnum

from pattern_core.errors import InvalidInput
from pattern_core.messages import check_text
from pattern_db.columns import Json, to_json
from pattern_db.columns import canonical as canonical_time

DEPTH_MAX = 32  # of lists and objects within one another
WHOLE_MAX = 2**63 - 1  # whole numbers are stored in 64 bits
COUNT_MAX = 2**53  # counters are stored as floating point, which counts one by one up to here
_EXACT = 2**53
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EXCERPT_CHARS = 60


class FieldType(StrEnum):
    """What a field holds, by the name under which it is stored."""

    TEXT = "Text"
    NUMBER = "Number"
    BOOLEAN = "Boolean"
    LIST = "List"
    TIMESTAMP = "Timestamp"
    COUNTER = "Counter"


def canonical(value: Json, depth: int = 0) -> Json:
    """Return a canonical copy of `value`.

    Raises:
        InvalidInput: it is not JSON, too deep, or holds a number or half a character that cannot be stored.
    """
    if depth > DEPTH_MAX:
        raise InvalidInput(f"a value holds lists and objects at most {DEPTH_MAX} deep; make it flatter")
    match value:
        case None | bool():
            return value
        case str():
            return check_text(value)
        case int():
            if abs(value) > WHOLE_MAX:
                raise InvalidInput("a whole number has at most 63 bits; write longer ones as text")
            return value
        case float():
            if not math.isfinite(value):
                raise InvalidInput("infinity and not-a-number cannot be stored; leave the value out")
            return int(value) if value.is_integer() and abs(value) < _EXACT else value
        case list() | tuple():
            return [canonical(one, depth + 1) for one in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise InvalidInput("the names in an object are text")
            return {check_text(key): canonical(value[key], depth + 1) for key in sorted(value)}
        case _:
            raise InvalidInput(f"{type(value).__name__} is no JSON value; use text, numbers, lists and objects")


def readable(value: Json, depth: int = 0) -> Json:
    """Return a stored value as canonical JSON. Never refuses: what another program stored and JSON cannot say is
    null.
    """
    match value:
        case None | bool() | str() | int():
            return value
        case float() if math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) < _EXACT else value
        case list() if depth <= DEPTH_MAX:
            return [readable(one, depth + 1) for one in value]
        case dict() if depth <= DEPTH_MAX:
            return {key: readable(value[key], depth + 1) for key in sorted(value)}
        case _:
            return None


def of_type(value: Json, kind: FieldType) -> Json:
    """`value` in canonical form, if a field of that kind can hold it.

    Raises:
        InvalidInput: it cannot; the message says what it takes.
    """
    match kind:
        case FieldType.TEXT if isinstance(value, str):
            return check_text(value)
        case FieldType.NUMBER if isinstance(value, int | float) and not isinstance(value, bool):
            return canonical(value)
        case FieldType.BOOLEAN if isinstance(value, bool):
            return value
        case FieldType.LIST if isinstance(value, list | tuple):
            return canonical(value)
        case FieldType.TIMESTAMP if isinstance(value, str):
            return _time(value)
        case FieldType.COUNTER if isinstance(value, int | float) and not isinstance(value, bool):
            number = canonical(value)
            if not isinstance(number, int) or abs(number) > COUNT_MAX:
                raise InvalidInput(f"a counter counts in whole numbers up to 2^53, not {excerpt(value)}")
            return number
        case _:
            raise InvalidInput(f"it takes {_TAKES[kind]}, not {excerpt(value)}")


def typed(text: str, kind: FieldType) -> Json:
    """Return the value that somebody means who writes `text` for a field of that kind; `null` means none.

    Raises:
        InvalidInput: it means none of that kind.
    """
    if text.strip() == "null":
        return None
    if kind in (FieldType.TEXT, FieldType.TIMESTAMP):
        return of_type(text, kind)
    try:
        value = json.loads(text.strip().lower() if kind is FieldType.BOOLEAN else text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"it takes {_TAKES[kind]}, not {excerpt(text)}") from None
    return of_type(value, kind)


def excerpt(value: Json) -> str:
    """Return a value as an error message shows it: as JSON, cut short."""
    try:
        text = to_json(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…"


def _time(text: str) -> str:
    """Return a day stays a day; a moment becomes UTC with milliseconds."""
    try:
        return date.fromisoformat(text).isoformat() if _DAY.fullmatch(text) else canonical_time(text)
    except ValueError:
        raise InvalidInput(f"it takes {_TAKES[FieldType.TIMESTAMP]}, not {excerpt(text)}") from None


_TAKES = {
    FieldType.TEXT: "text",
    FieldType.NUMBER: "a number",
    FieldType.BOOLEAN: "true or false",
    FieldType.LIST: 'a list such as ["one", "two"]',
    FieldType.TIMESTAMP: "a day such as 2026-11-21 or a moment with its offset such as 2026-11-21T22:24:40Z",
    FieldType.COUNTER: "a whole number",
}
