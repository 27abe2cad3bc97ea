"""What a rule is written in: names and patterns of tools, and the values of its fields, in JSON and in words. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pattern_core.errors import InvalidInput
from pattern_core.rules import conditions
from pattern_db.columns import Json

EVERY = "*"
NAMES_MAX = 100
TEXT_CHARS_MAX = 1_000
COUNT_MAX = 10_000
SECONDS_MAX = 10 * 366 * 24 * 3600.0

_NAME = re.compile(r"[A-Za-z0-9_.:/*?-]{1,128}")


def covers(pattern: str, tool: str) -> bool:
    """Return whether a pattern means a tool: its name, or a pattern with `*` (any characters) and `?` (one)."""
    return pattern in (tool, EVERY) or (is_pattern(pattern) and fnmatchcase(tool, pattern))


def covers_any(patterns: Iterable[str], tools: Collection[str]) -> bool:
    """Return whether one of the patterns means one of the tools."""
    return any(covers(pattern, tool) for pattern in patterns for tool in tools)


def is_pattern(name: str) -> bool:
    """Return whether a name may stand for several tools."""
    return "*" in name or "?" in name


def named(tools: Iterable[str]) -> str:
    """Return tools as a list in a sentence, empty for none."""
    return ", ".join(f"`{tool}`" for tool in tools)


def one_of(tools: Collection[str]) -> str:
    """Return tools as a choice in a sentence."""
    return named(tools) if len(tools) == 1 else f"one of {named(tools)}"


def duration(seconds: float) -> str:
    """Return seconds in words, in the largest unit that divides them: `2 hours`, `90 seconds`, `0.5 seconds`."""
    units = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
    unit, name = next((one for one in units if seconds >= one[0] and seconds % one[0] == 0), (1, "second"))
    return f"{seconds / unit:g} {name}{'' if seconds == unit else 's'}"


def times(count: int) -> str:
    """Return how often in words: `once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleField:
    """A field of a kind of rule: its form, one of `FORMS`; whether it must be there; whether names in it may be
    patterns; and the names that other formats have for it, in the order in which they are tried.
    """

    form: str
    is_required: bool = False
    takes_patterns: bool = False
    aliases: tuple[str, ...] = ()

    def read(self, value: Json) -> Any:  # Any: as the form says
        """Return a value as its rule holds it.

        Raises:
            InvalidInput: the value will not do; the message says what would.
        """
        if (result := FORMS[self.form].read(value, self.takes_patterns)) is None:
            raise InvalidInput(f"it takes {FORMS[self.form].wanted}")
        return result


def stored(form: str, *, aliases: tuple[str, ...] = (), takes_patterns: bool = False, **default: Any) -> Any:
    """Declare a field of a kind of rule; without `default` or `default_factory` it must be there."""
    read_as = RuleField(form=form, is_required=not default, takes_patterns=takes_patterns, aliases=aliases)
    return field(metadata={"stored": read_as}, **default)


def _name(value: Json, takes_patterns: bool = False) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise InvalidInput(f"{value!r} is no tool's name (letters, digits, and _ . : / -)")
    if is_pattern(value) and not takes_patterns:
        raise InvalidInput(f"{value!r} stands for several tools; here one must be named")
    return value


def _is_list(value: Json) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= NAMES_MAX


def _names(value: Any, takes_patterns: bool) -> tuple[str, ...] | None:
    return tuple(_name(one, takes_patterns) for one in value) if _is_list(value) else None


def _child_args(value: Json, _: bool) -> dict[str, dict[str, Json]] | None:
    """Read `{child: arguments}`, or Letta's `[{"name": child, "args": arguments}]`."""
    if isinstance(value, list):
        pairs = [(one.get("name"), one.get("args") or {}) if isinstance(one, dict) else (None, None) for one in value]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        return None
    result = {}
    for child, arguments in pairs:
        if not isinstance(arguments, dict):
            return None
        result[_name(child)] = arguments
    return result


def _groups(value: Json, _: bool) -> tuple[tuple[str, ...], ...] | None:
    if not isinstance(value, list) or not value or not all(isinstance(one, list) and len(one) > 1 for one in value):
        return None
    return tuple(tuple(_name(tool, True) for tool in group) for group in value)


def _number(value: Json) -> float:
    """Return a number, also one that a command line left as text; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _count(value: Json, _: bool) -> int | None:
    number = _number(value)
    return int(number) if number.is_integer() and 0 <= number <= COUNT_MAX else None


def _seconds(value: Json, _: bool) -> float | None:
    if isinstance(value, dict) and set(value) <= {"secs", "nanos"}:  # as Rust writes a duration
        number = _number(value.get("secs", 0)) + _number(value.get("nanos", 0)) / 1e9
    else:
        number = _number(value)
    if not 0 < number <= SECONDS_MAX:
        return None
    return int(number) if number.is_integer() else number


def _condition(value: Json, _: bool) -> conditions.Condition:
    """Read a condition, or a list of names of tools that all must have run."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = {"all": [{"tool_called": _name(one, True)} for one in value]}
    return conditions.read(value)


@dataclass(frozen=True, slots=True)
class _Form:
    """What a value is, in words; a reader of JSON that returns None for what will not do, and is told whether names may
    be patterns; a value in a sentence; the tools that a value names.
    """

    wanted: str
    read: Callable[[Any, bool], Any]
    say: Callable[[Any], str] = str
    tools: Callable[[Any], Iterable[str]] = lambda _: ()


FORMS: Mapping[str, _Form] = {
    "name": _Form(
        "a tool's name",
        lambda value, patterns: _name(value, patterns) if isinstance(value, str) else None,
        tools=lambda name: (name,),
    ),
    "names": _Form(f"a list of 1 to {NAMES_MAX} tools' names", _names, named, tuple),
    "text": _Form(
        f"a text of 1 to {TEXT_CHARS_MAX} characters",
        lambda value, _: value if isinstance(value, str) and 1 <= len(value) <= TEXT_CHARS_MAX else None,
    ),
    "texts": _Form(
        f"a list of 1 to {NAMES_MAX} texts",
        lambda value, _: tuple(value) if _is_list(value) and all(isinstance(one, str) for one in value) else None,
        ", ".join,
    ),
    "args": _Form("an object of arguments", lambda value, _: value if isinstance(value, dict) else None),
    "child_args": _Form("an object that has an object of arguments for each child", _child_args),
    "outputs": _Form(
        "an object that has a tool's name for each result, at least one",
        lambda value, _: {str(one): _name(value[one]) for one in value} if isinstance(value, dict) and value else None,
        tools=lambda outputs: dict.fromkeys(outputs.values()),
    ),
    "groups": _Form("a list of groups, each a list of at least two tools", _groups),
    "count": _Form(f"a whole number from 0 to {COUNT_MAX}", _count, times),
    "seconds": _Form("a number of seconds, more than 0 and ten years at most", _seconds, duration),
    "yes_no": _Form("true or false", lambda value, _: value if isinstance(value, bool) else None),
    "condition": _Form(
        f"a condition: an object with one key of {conditions.FORMS}",
        _condition,
        conditions.in_words,
        conditions.tools_in,
    ),
}
