"""The fields of rules: names and patterns of tools, conditions, and types. Pure.

A condition says what must have happened in the turn, as one of these objects. No text in it is executed.

{"tool_called": "web"}                                     it ran
{"tool_not_called": "web"}                                 it did not run
{"result_contains": {"tool": "web", "text": "error"}}      one of its results holds the text, in any case of letters
{"all": [...]}  {"any": [...]}  {"not": {...}}             of conditions
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator

from pattern_core.rules.facts import JudgedCall

EVERY = "*"
NAMES_MAX = 100
TEXT_CHARS_MAX = 1_000
COUNT_MAX = 10_000
SECONDS_MAX = 10 * 366 * 24 * 3600.0
DEPTH_MAX = 4  # of conditions
PARTS_MAX = 20  # conditions within one `all` or `any`
SOUGHT_CHARS_MAX = 500

_NAME = re.compile(r"[A-Za-z0-9_.:/*?-]{1,128}")

Condition: TypeAlias = Mapping[str, Any]  # one of the objects above, checked by `read_condition`


def is_pattern(name: str) -> bool:
    """Return whether a name may mean several tools: `*` means any characters, `?` one."""
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


def read_condition(value: object, *, depth: int = 1) -> Condition:
    """Return a stored condition, with `result_contains` in full; a list names tools that all must have run.

    Raises:
        ValueError: it is none, or nests deeper than `DEPTH_MAX`.
    """
    if isinstance(value, list) and value and depth == 1:
        value = {"all": [{"tool_called": _pattern(tool)} for tool in value]}
    if depth > DEPTH_MAX:
        raise ValueError(f"conditions nest at most {DEPTH_MAX} deep")
    pairs: Iterable[tuple[str, Any]] = value.items() if isinstance(value, dict) and len(value) == 1 else [("", None)]
    [(form, content)] = pairs
    match form, content:
        case "tool_called" | "tool_not_called", str() if content:
            return {form: content}
        case "result_contains", str() if content:
            return read_condition({form: {"tool": EVERY, "text": content}}, depth=depth)
        case "result_contains", {"tool": str(tool), "text": str(text)} if len(content) == 2 and tool and text:
            if len(text) > SOUGHT_CHARS_MAX:
                raise ValueError(f"the text of result_contains has at most {SOUGHT_CHARS_MAX} characters")
            return {form: content}
        case "not", dict():
            return {form: read_condition(content, depth=depth + 1)}
        case "all" | "any", [_, *_] if len(content) <= PARTS_MAX:
            return {form: [read_condition(one, depth=depth + 1) for one in content]}
    raise ValueError(
        "a condition is an object with one key of tool_called, tool_not_called, result_contains, all, any or not; the"
        f' first two take a tool\'s name, result_contains takes {{"tool", "text"}}, all and any a list of 1 to'
        f" {PARTS_MAX} conditions, not a condition"
    )


def to_number(value: object) -> float:
    """Return a number, also one that a command line left as text; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _number(value: object) -> object:
    number = to_number(value)
    return value if math.isnan(number) else int(number) if number.is_integer() else number


def _seconds(value: object) -> object:
    if isinstance(value, dict) and set(value) <= {"secs", "nanos"}:  # as Rust writes a duration
        return to_number(value.get("secs", 0)) + to_number(value.get("nanos", 0)) / 1e9
    return _number(value)


def _pattern(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError("it is not a tool's name (letters, digits, and _ . : / -)")
    return value


def _name(value: str) -> str:
    if is_pattern(value):
        raise ValueError("it stands for several tools; here one must be named")
    return value


# The types of a rule's fields.
Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern)]  # a tool's name, or a pattern of names
Name: TypeAlias = Annotated[Pattern, AfterValidator(_name)]
Patterns: TypeAlias = Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=NAMES_MAX)]
Names: TypeAlias = Annotated[tuple[Name, ...], Field(min_length=1, max_length=NAMES_MAX)]
Phrase: TypeAlias = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
Count: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=0, le=COUNT_MAX)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=SECONDS_MAX), PlainSerializer(_number)]
CheckedCondition: TypeAlias = Annotated[Condition, PlainValidator(read_condition)]
