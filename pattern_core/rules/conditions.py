"""The conditions of `required_before_exit_if`: what must have happened in the turn. No text is run.

{"tool_called": "web"}                                     it ran
{"tool_not_called": "web"}                                 it did not run
{"result_contains": {"tool": "web", "text": "error"}}      one of its results holds the text, in any case of letters
{"all": [...]}  {"any": [...]}  {"not": {...}}             of conditions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from pattern_core.errors import InvalidInput
from pattern_core.rules.facts import Call
from pattern_db.columns import Json

DEPTH_MAX = 4
PARTS_MAX = 20  # conditions within one `all` or `any`
TEXT_CHARS_MAX = 500
FORMS = "tool_called, tool_not_called, result_contains, all, any or not"

Condition: TypeAlias = Mapping[str, Any]  # one of the objects above, checked by `read`


def holds(condition: Condition, calls: Sequence[Call]) -> bool:
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


def in_words(condition: Condition) -> str:
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
            return f"not ({in_words(content)})"
    parts = (f"({in_words(one)})" if one.keys() & {"all", "any"} else in_words(one) for one in content)
    return (" and " if form == "all" else " or ").join(parts)


def read(value: Json, *, depth: int = 1) -> Condition:
    """Return a stored condition in the forms above.

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
            return {form: content}
        case "result_contains", {"tool": str(tool), "text": str(text)} if len(content) == 2 and tool and text:
            return {form: {"tool": tool, "text": _bounded(text)}}
        case "result_contains", str() if content:
            return {form: {"tool": "*", "text": _bounded(content)}}
        case "not", dict():
            return {form: read(content, depth=depth + 1)}
        case "all" | "any", list() if 1 <= len(content) <= PARTS_MAX:
            return {form: [read(one, depth=depth + 1) for one in content]}
    raise InvalidInput(
        f"a condition is an object with one key of {FORMS}; the first two take a tool's name, result_contains takes"
        f' {{"tool", "text"}}, all and any a list of 1 to {PARTS_MAX} conditions, not a condition'
    )


def _bounded(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidInput(f"the text of result_contains has at most {TEXT_CHARS_MAX} characters")
    return text
