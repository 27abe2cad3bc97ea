"""The little language of `required_before_exit_if`: what must have happened in the turn. No text is run.

{"tool_called": "web"}                                     it ran
{"tool_not_called": "web"}                                 it did not run
{"result_contains": {"tool": "web", "text": "error"}}      one of its results holds the text, in any case of letters
{"all": [...]}  {"any": [...]}  {"not": {...}}             of conditions
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from pattern_core.errors import InvalidInput
from pattern_core.rules.state import Call
from pattern_db.columns import Json

DEPTH_MAX = 4
PARTS_MAX = 20  # conditions within one `all` or `any`
TEXT_CHARS_MAX = 500
FORMS = "tool_called, tool_not_called, result_contains, all, any or not"


@dataclass(frozen=True, slots=True)
class Ran:
    """A tool ran, or (`is_wanted` false) did not."""

    tool: str
    is_wanted: bool = True


@dataclass(frozen=True, slots=True)
class ResultContains:
    """A result of the tool holds the text."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Not:
    """The condition does not hold."""

    of: Condition


@dataclass(frozen=True, slots=True)
class Several:
    """All of the conditions hold, or (`is_all` false) one does."""

    of: tuple[Condition, ...]
    is_all: bool


Condition: TypeAlias = Ran | ResultContains | Not | Several


def holds(condition: Condition, calls: Sequence[Call]) -> bool:
    """Whether the condition holds after these calls of a turn."""
    match condition:
        case Ran():
            return any(call.ran and fnmatchcase(call.tool, condition.tool) for call in calls) is condition.is_wanted
        case ResultContains():
            wanted = condition.text.casefold()
            return any(fnmatchcase(call.tool, condition.tool) and wanted in call.result.casefold() for call in calls)
        case Not():
            return not holds(condition.of, calls)
        case Several():
            return (all if condition.is_all else any)(holds(one, calls) for one in condition.of)


def tools_in(condition: Condition) -> tuple[str, ...]:
    """The tools, or patterns of them, that the condition asks about, each once."""
    match condition:
        case Ran() | ResultContains():
            return (condition.tool,)
        case Not():
            return tools_in(condition.of)
        case Several():
            return tuple(dict.fromkeys(tool for one in condition.of for tool in tools_in(one)))


def in_words(condition: Condition) -> str:
    """The condition as the end of a sentence that begins with "if"."""
    match condition:
        case Ran():
            return f"`{condition.tool}` ran" if condition.is_wanted else f"`{condition.tool}` did not run"
        case ResultContains():
            return f"a result of `{condition.tool}` contains “{condition.text}”"
        case Not():
            return f"not ({in_words(condition.of)})"
        case Several():
            return (" and " if condition.is_all else " or ").join(_inner_words(one) for one in condition.of)


def _inner_words(condition: Condition) -> str:
    words = in_words(condition)
    return f"({words})" if isinstance(condition, Several) else words


def read(value: Json, *, depth: int = 1) -> Condition:
    """The condition that a JSON value says.

    Raises:
        InvalidInput: it is none, or nests deeper than `DEPTH_MAX`.
    """
    if not isinstance(value, dict) or len(value) != 1:
        raise InvalidInput(f"a condition is an object with one key of {FORMS}")
    if depth > DEPTH_MAX:
        raise InvalidInput(f"conditions nest at most {DEPTH_MAX} deep")
    [(form, content)] = value.items()
    match form, content:
        case "tool_called" | "tool_not_called", str() if content:
            return Ran(content, is_wanted=form == "tool_called")
        case "result_contains", {"tool": str(tool), "text": str(text)} if len(content) == 2 and tool and text:
            return ResultContains(tool, _bounded(text))
        case "result_contains", str() if content:
            return ResultContains("*", _bounded(content))
        case "not", dict():
            return Not(read(content, depth=depth + 1))
        case "all" | "any", list() if 1 <= len(content) <= PARTS_MAX:
            return Several(tuple(read(one, depth=depth + 1) for one in content), is_all=form == "all")
    raise InvalidInput(
        f"a condition is an object with one key of {FORMS}; the first two take a tool's name, result_contains takes"
        f' {{"tool", "text"}}, all and any a list of 1 to {PARTS_MAX} conditions, not a condition'
    )


def _bounded(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidInput(f"the text of result_contains has at most {TEXT_CHARS_MAX} characters")
    return text


def to_json(condition: Condition) -> Json:
    """The inverse of `read`."""
    match condition:
        case Ran():
            return {"tool_called" if condition.is_wanted else "tool_not_called": condition.tool}
        case ResultContains():
            return {"result_contains": {"tool": condition.tool, "text": condition.text}}
        case Not():
            return {"not": to_json(condition.of)}
        case Several():
            return {"all" if condition.is_all else "any": [to_json(one) for one in condition.of]}
