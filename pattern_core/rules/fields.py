"""What a rule is written in: names and patterns of tools, conditions, and the forms of its fields. Pure.

A condition says what must have happened in the turn, as one of these objects. No text in it is run.

{"tool_called": "web"}                                     it ran
{"tool_not_called": "web"}                                 it did not run
{"result_contains": {"tool": "web", "text": "error"}}      one of its results holds the text, in any case of letters
{"all": [...]}  {"any": [...]}  {"not": {...}}             of conditions
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from pattern_core.errors import InvalidInput
from pattern_core.rules.facts import JudgedCall
from pattern_db.columns import Json

EVERY = "*"
NAMES_MAX = 100
TEXT_CHARS_MAX = 1_000
COUNT_MAX = 10_000
SECONDS_MAX = 10 * 366 * 24 * 3600.0
DEPTH_MAX = 4  # of conditions
PARTS_MAX = 20  # conditions within one `all` or `any`
SOUGHT_CHARS_MAX = 500
CONDITIONS = "tool_called, tool_not_called, result_contains, all, any or not"

_NAME = re.compile(r"[A-Za-z0-9_.:/*?-]{1,128}")

Condition: TypeAlias = Mapping[str, Any]  # one of the objects above, checked by `read_condition`


def is_pattern(name: str) -> bool:
    """Return whether a name may stand for several tools: `*` means any characters, `?` one."""
    return "*" in name or "?" in name


def covers(pattern: str, tool: str) -> bool:
    """Return whether a name or pattern means a tool."""
    return pattern in (tool, EVERY) or (is_pattern(pattern) and fnmatchcase(tool, pattern))


def covers_any(patterns: Iterable[str], tools: Collection[str]) -> bool:
    """Return whether one of the patterns means one of the tools."""
    return any(covers(pattern, tool) for pattern in patterns for tool in tools)


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


def holds(condition: Condition, calls: Sequence[JudgedCall]) -> bool:
    """Return whether the condition holds after these calls of a turn."""
    [(form, content)] = condition.items()
    match form:
        case "tool_called" | "tool_not_called":
            return any(call.ran and fnmatchcase(call.tool, content) for call in calls) is (form == "tool_called")
        case "result_contains":
            text = content["text"].casefold()
            return any(fnmatchcase(call.tool, content["tool"]) and text in call.result.casefold() for call in calls)
        case "not":
            return not holds(content, calls)
    return (all if form == "all" else any)(holds(one, calls) for one in content)


def tools_in(condition: Condition) -> tuple[str, ...]:
    """Return the tools, or patterns of them, that the condition asks about, each once."""
    [(form, content)] = condition.items()
    if isinstance(content, str):
        return (content,)
    if form == "result_contains":
        return (content["tool"],)
    parts = content if isinstance(content, list) else [content]
    return tuple(dict.fromkeys(tool for one in parts for tool in tools_in(one)))


def condition_in_words(condition: Condition) -> str:
    """Return the condition as the end of a sentence that begins with "if"."""
    [(form, content)] = condition.items()
    match form:
        case "tool_called":
            return f"`{content}` ran"
        case "tool_not_called":
            return f"`{content}` did not run"
        case "result_contains":
            return f"a result of `{content['tool']}` contains “{content['text']}”"
        case "not":
            return f"not ({condition_in_words(content)})"
    parts = [condition_in_words(one) for one in content]
    parts = [f"({part})" if one.keys() & {"all", "any"} else part for one, part in zip(content, parts, strict=True)]
    return (" and " if form == "all" else " or ").join(parts)


def read_condition(value: Json, *, depth: int = 1) -> Condition:
    """Return a stored condition, with `result_contains` in full.

    Raises:
        InvalidInput: it is none, or nests deeper than `DEPTH_MAX`.
    """
    if not isinstance(value, dict) or len(value) != 1:
        raise InvalidInput(f"a condition is an object with one key of {CONDITIONS}")
    if depth > DEPTH_MAX:
        raise InvalidInput(f"conditions nest at most {DEPTH_MAX} deep")
    [(form, content)] = value.items()
    match form, content:
        case "tool_called" | "tool_not_called", str() if content:
            return value
        case "result_contains", str() if content:
            return read_condition({form: {"tool": EVERY, "text": content}}, depth=depth)
        case "result_contains", {"tool": str(tool), "text": str(text)} if len(content) == 2 and tool and text:
            if len(text) > SOUGHT_CHARS_MAX:
                raise InvalidInput(f"the text of result_contains has at most {SOUGHT_CHARS_MAX} characters")
            return value
        case "not", dict():
            return {form: read_condition(content, depth=depth + 1)}
        case "all" | "any", list() if 1 <= len(content) <= PARTS_MAX:
            return {form: [read_condition(one, depth=depth + 1) for one in content]}
    raise InvalidInput(
        f"a condition is an object with one key of {CONDITIONS}; the first two take a tool's name, result_contains"
        f' takes {{"tool", "text"}}, all and any a list of 1 to {PARTS_MAX} conditions, not a condition'
    )


# What a field holds, by its form; `_read` reads it.
WANTED: Mapping[str, str] = {
    "name": "a tool's name",
    "pattern": "a tool's name",
    "names": f"a list of 1 to {NAMES_MAX} tools' names",
    "patterns": f"a list of 1 to {NAMES_MAX} tools' names",
    "text": f"a text of 1 to {TEXT_CHARS_MAX} characters",
    "texts": f"a list of 1 to {NAMES_MAX} texts",
    "args": "an object of arguments",
    "child_args": "an object that has an object of arguments for each child",
    "outputs": "an object that has a tool's name for each result, at least one",
    "groups": "a list of groups, each a list of at least two tools",
    "count": f"a whole number from 0 to {COUNT_MAX}",
    "seconds": "a number of seconds, more than 0 and ten years at most",
    "yes_no": "true or false",
    "condition": f"a condition: an object with one key of {CONDITIONS}",
}
# How a field is said in a sentence, where that is not its text.
SAID: Mapping[str, Callable[[Any], str]] = {
    "patterns": named,
    "texts": ", ".join,
    "count": times,
    "seconds": duration,
    "condition": condition_in_words,
}


@dataclass(frozen=True, slots=True)
class RuleField:
    """A field of a kind of rule: its form; its names in other formats, in the order in which they are tried; and
    whether it must be there.
    """

    form: str
    aliases: tuple[str, ...]
    is_required: bool


def stored(form: str, *, aliases: tuple[str, ...] = (), **default: Any) -> Any:
    """Declare a field in one of the forms of `WANTED`; without `default` or `default_factory` it must be there."""
    return field(metadata={"stored": RuleField(form, aliases, is_required=not default)}, **default)


def read_value(form: str, value: Json, where: str = "") -> Any:  # Any: as the form says
    """Return a value of a form as a rule holds it.

    Raises:
        InvalidInput: the value will not do; the message begins with `where` and says what would.
    """
    try:
        return _read(form, value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}{error.message}") from None


def _read(form: str, value: Any) -> Any:
    match form, value:
        case ("name", str()):
            return _name(value)
        case ("pattern", str()):
            return _pattern(value)
        case ("names", [_, *_]) if len(value) <= NAMES_MAX:
            return tuple(map(_name, value))
        case ("patterns", [_, *_]) if len(value) <= NAMES_MAX:
            return tuple(map(_pattern, value))
        case ("text", str()) if 1 <= len(value) <= TEXT_CHARS_MAX:
            return value
        case ("texts", [_, *_]) if len(value) <= NAMES_MAX and _are(str, value):
            return tuple(value)
        case ("args", dict()) | ("yes_no", bool()):
            return value
        case ("child_args", dict()) if _are(dict, value.values()):
            return {_name(child): arguments for child, arguments in value.items()}
        case ("child_args", list()) if _are(dict, value) and _are(dict, [one.get("args") or {} for one in value]):
            return {_name(one.get("name")): one.get("args") or {} for one in value}  # as Letta writes them
        case ("outputs", dict()) if value:
            return {str(output): _name(tool) for output, tool in value.items()}
        case ("groups", [_, *_]) if _are(list, value) and all(len(group) > 1 for group in value):
            return tuple(tuple(map(_pattern, group)) for group in value)
        case ("count", _) if (number := to_number(value)).is_integer() and 0 <= number <= COUNT_MAX:
            return int(number)
        case ("seconds", _) if 0 < (number := _seconds(value)) <= SECONDS_MAX:
            return int(number) if number.is_integer() else number
        case ("condition", [_, *_]) if _are(str, value):  # names of tools that all must have run
            return read_condition({"all": [{"tool_called": _pattern(one)} for one in value]})
        case ("condition", _):
            return read_condition(value)
    raise InvalidInput(f"it takes {WANTED[form]}")


def _are(kind: type, values: Iterable[object]) -> bool:
    return all(isinstance(one, kind) for one in values)


def _pattern(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise InvalidInput(f"{value!r} is no tool's name (letters, digits, and _ . : / -)")
    return value


def _name(value: object) -> str:
    if is_pattern(name := _pattern(value)):
        raise InvalidInput(f"{value!r} stands for several tools; here one must be named")
    return name


def to_number(value: object) -> float:
    """Return a number, also one that a command line left as text; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _seconds(value: object) -> float:
    if isinstance(value, dict) and set(value) <= {"secs", "nanos"}:  # as Rust writes a duration
        return to_number(value.get("secs", 0)) + to_number(value.get("nanos", 0)) / 1e9
    return to_number(value)
