"""The values of a rule's fields: what they may be, and what they become. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pattern_core.errors import InvalidInput
from pattern_core.rules import conditions
from pattern_core.rules.conditions import Condition, Several
from pattern_core.rules.kinds import Field
from pattern_core.rules.rule import is_pattern
from pattern_db.columns import Json

NAMES_MAX = 100
TEXT_CHARS_MAX = 1_000
COUNT_MAX = 10_000
SECONDS_MAX = 10 * 366 * 24 * 3600.0

_NAME = re.compile(r"[A-Za-z0-9_.:/*?-]{1,128}")
_WANTED = {
    "name": "a tool's name",
    "names": f"a list of 1 to {NAMES_MAX} tools' names",
    "text": f"a text of 1 to {TEXT_CHARS_MAX} characters",
    "texts": f"a list of 1 to {NAMES_MAX} texts",
    "args": "an object of arguments",
    "child_args": "an object that has an object of arguments for each child",
    "outputs": "an object that has a tool's name for each result, at least one",
    "groups": "a list of groups, each a list of at least two tools",
    "count": f"a whole number from 0 to {COUNT_MAX}",
    "seconds": "a number of seconds, more than 0 and ten years at most",
    "yes_no": "true or false",
    "condition": f"a condition: an object with one key of {conditions.FORMS}",
}


def wanted(field: Field) -> str:
    """What a field takes, in words."""
    return _WANTED[field.what]


def read(field: Field, value: Json) -> Any:  # Any: as the field's kind says
    """The value of a field as its rule holds it.

    Raises:
        InvalidInput: the value will not do; the message says what would.
    """
    result: Any = None
    match field.what, value:
        case "name", str():
            result = name(value, takes_patterns=field.takes_patterns)
        case "names", list() if 1 <= len(value) <= NAMES_MAX:
            result = tuple(name(one, takes_patterns=field.takes_patterns) for one in value)
        case "text", str() if 1 <= len(value) <= TEXT_CHARS_MAX:
            result = value
        case "texts", list() if 1 <= len(value) <= NAMES_MAX and all(isinstance(one, str) for one in value):
            result = tuple(value)
        case "args", dict():
            result = value
        case "child_args", dict() | list():
            result = _child_args(value)
        case "outputs", dict() if value:
            result = {str(output): name(tool) for output, tool in value.items()}
        case "groups", list() if value and all(isinstance(group, list) and len(group) > 1 for group in value):
            result = tuple(tuple(name(one, takes_patterns=True) for one in group) for group in value)
        case "count", _:
            result = _count(value)
        case "seconds", _:
            result = _seconds(value)
        case "yes_no", bool():
            result = value
        case "condition", _:
            result = _condition(value)
    if result is None:
        raise InvalidInput(f"it takes {wanted(field)}")
    return result


def name(value: Json, *, takes_patterns: bool = False) -> str:
    """A tool's name, or where that may be a pattern with `*` and `?`.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise InvalidInput(f"{value!r} is no tool's name (letters, digits, and _ . : / -)")
    if is_pattern(value) and not takes_patterns:
        raise InvalidInput(f"{value!r} stands for several tools; here one must be named")
    return value


def _child_args(value: Json) -> Mapping[str, Mapping[str, Json]] | None:
    """`{child: arguments}`, or Letta's `[{"name": child, "args": arguments}]`."""
    pairs = value.items() if isinstance(value, dict) else _pairs(value)
    result = {}
    for child, arguments in pairs:
        if not isinstance(arguments, dict):
            return None
        result[name(child)] = arguments
    return result


def _pairs(nodes: list[Json]) -> list[tuple[Json, Json]]:
    return [(node.get("name"), node.get("args") or {}) if isinstance(node, dict) else (None, None) for node in nodes]


def _count(value: Json) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() and 0 <= number <= COUNT_MAX else None


def _seconds(value: Json) -> float | None:
    if isinstance(value, dict) and set(value) <= {"secs", "nanos"}:  # as Rust writes a duration
        secs, nanos = _number(value.get("secs", 0)), _number(value.get("nanos", 0))
        value = None if secs is None or nanos is None else secs + nanos / 1e9
    number = _number(value)
    if number is None or not 0 < number <= SECONDS_MAX:
        return None
    return int(number) if number.is_integer() else number


def _number(value: Json) -> float | None:
    """A finite number, also one that a command line left as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _condition(value: Json) -> Condition:
    """A condition of ours, or a list of names of tools that all must have run."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return Several(tuple(conditions.Ran(name(one, takes_patterns=True)) for one in value), is_all=True)
    return conditions.read(value)
