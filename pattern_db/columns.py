"""Values in Python, canonical text in SQLite: JSON and times.

All columns have one time format: UTC with milliseconds, `2026-11-21T22:24:40.123Z`, 24 characters. Its order as text is
its order in time. There is no clock here: times are passed in as unix milliseconds.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NoReturn

# Made once: creating it is a third of the cost of a small text.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TIME_CHARS = 24
JSON_DEPTH_MAX = 64  # lists and objects within one another; pydantic fails to serialise 255

Json = Any  # a JSON value as returned by Python's json module


def to_json(value: Json) -> str:
    """Return compact JSON text of `value`, with as few escapes as possible: text in any language needs only its own
    bytes.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
        TypeError: not a JSON value.
    """
    return _ENCODER.encode(value)


def from_json(text: str | None) -> Json:
    """Return the value of a JSON column; NULL is None."""
    return None if text is None else json.loads(text)


def strict_json(text: str | bytes) -> Json:
    """Return the value of JSON that another program wrote, as RFC 8259 has it.

    Raises:
        ValueError: it is not JSON, has NaN or infinity, or is nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply; send a flatter value") from None
    check_depth(value)
    return value


def refuse_constant(name: str) -> NoReturn:
    """Refuse what Python reads as JSON beyond RFC 8259, as its `parse_constant`: NaN and infinities."""
    raise ValueError(f"{name} is not a JSON number")


def check_depth(value: Json) -> None:
    """Refuse a value that is nested too deeply to be serialised.

    Raises:
        ValueError: lists and objects lie within one another more than `JSON_DEPTH_MAX` deep.
    """
    level = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        outer = [each for each in level if isinstance(each, dict | list)]
        if not outer:
            return
        level = [inner for each in outer for inner in (each.values() if isinstance(each, dict) else each)]
    raise ValueError(f"it is nested more than {JSON_DEPTH_MAX} levels deep")


@lru_cache(maxsize=64)
def _second(unix_s: int) -> str:
    # Many rows share a second, and formatting it is nine tenths of the work.
    return (_EPOCH + timedelta(seconds=unix_s)).isoformat()[:19]


def iso(unix_ms: int) -> str:
    """Return the column text of `unix_ms` (unix milliseconds).

    Raises:
        OverflowError: outside the years 1 to 9999.
    """
    return f"{_second(unix_ms // 1000)}.{unix_ms % 1000:03d}Z"


def unix_ms(text: str) -> int:
    """Return unix milliseconds of a column text, or of any RFC 3339 time with an offset; further digits are cut off.

    Raises:
        ValueError: it is not such a time, or has no offset: a local time is ambiguous.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC; write for example 2026-11-21T22:24:40Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def canonical(text: str) -> str:
    """Return the column text of any RFC 3339 time with an offset.

    Raises:
        ValueError: as `unix_ms`, also for moments outside the years 1 to 9999.
    """
    try:
        return iso(unix_ms(text))
    except OverflowError:
        raise ValueError(f"{text!r} is outside the years 1 to 9999") from None


def time_in(value: object) -> str | None:
    """Return the column text of a time that another program wrote; None for what is none."""
    try:
        return canonical(value) if isinstance(value, str) else None
    except ValueError:
        return None
