"""Validation errors of values from outside, in words that people and models can act on.

Values are checked by pydantic, as JSON and strictly: `"3"` is not a number and `"yes"` is not true, because a guess
hides a mistake. Its own messages name Python's types; ours name those of JSON, and the invalid value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, TypeAdapter, ValidationError

from pattern_core.errors import InvalidInput
from pattern_db import columns

EXCERPT_CHARS = 60  # of an invalid value
MISFITS_MAX = 10  # errors in one message; more would hide the first

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # the second: of a dataclass

_DATE = re.compile(r"\d{4}-\d\d-\d\d")

T = TypeVar("T")
_to_json = json.JSONEncoder().encode
Known = Callable[[tuple[Any, ...]], Collection[str]]
"""Returns the allowed names of an object at this path of keys and indexes."""


def column_time(text: str | None, name: str) -> str | None:
    """Return an RFC 3339 time as it is stored; None for None. A date alone is its first moment in UTC. `name` is its
    name in messages.

    Raises:
        InvalidInput: it is not a time, or has no offset.
    """
    try:
        if text is not None and _DATE.fullmatch(text):
            text += "T00:00:00Z"
        return None if text is None else columns.canonical(text)
    except ValueError as error:
        raise InvalidInput(f"`{name}` is not a valid time: {error}") from None


def read(adapter: TypeAdapter[T], value: object, known: Known, *, place: str = "", ignores_unknown: bool = False) -> T:
    """Return a JSON value as the adapter's type. `place` names it in messages; `ignores_unknown` skips unknown names.

    Raises:
        InvalidInput: it is invalid; the message names each error.
    """
    extra: Literal["ignore", "forbid"] = "ignore" if ignores_unknown else "forbid"
    try:
        checked: T = adapter.validator.validate_json(_to_json(value), strict=True, extra=extra)
        return checked
    except ValidationError as error:
        misfits = [_misfit(detail, known, place) for detail in error.errors(include_url=False)]
        more = len(misfits) - MISFITS_MAX
        raise InvalidInput("; ".join([*misfits[:MISFITS_MAX], *([f"and {more} more"] if more > 0 else [])])) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{place or 'it'} is not JSON: {error}") from None


def names_in(shape: Any) -> Known:  # Any: a type
    """Return what returns the names of the fields of a dataclass, or of one within it."""

    def known(place: Sequence[Any]) -> Collection[str]:
        found = shape
        for step in place:
            found = get_type_hints(found).get(step) if is_dataclass(found) else next(iter(get_args(found)), None)
        return [one.name for one in fields(found)] if is_dataclass(found) else []

    return known


def must(holds: Callable[[Any], object], otherwise: str) -> AfterValidator:
    """Return a validator of values that have a property, or are None; `otherwise` is the error."""

    def checked(value: Any) -> Any:
        if value is not None and not holds(value):
            raise ValueError(otherwise)
        return value

    return AfterValidator(checked)


def without_null(value: object) -> object:
    """Return an object without null members: they mean the default."""
    return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value


def _misfit(detail: Mapping[str, Any], known: Known, place: str) -> str:
    steps = detail["loc"]
    name = ".".join(str(step) for step in ([place, *steps] if place else steps))
    kind = str(detail["type"])
    if kind == "missing":
        return f"`{name}` is missing"
    if kind in _UNKNOWN:
        names = ", ".join(f"`{one}`" for one in known(steps[:-1]))
        return f"`{name}` is not known" + (f" (known are: {names})" if names else "")
    if kind == "json_invalid":
        return f"the text is not valid Unicode or JSON ({detail['ctx']['error']})"
    text = json.dumps(detail["input"], ensure_ascii=False, default=str)
    found = text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"
    if kind in _WANTED:
        return f"`{name}` must be {_WANTED[kind].format(**detail.get('ctx', {}))}, not {found}"
    return f"`{name}`: {str(detail['msg']).removeprefix('Value error, ')} (got {found})"
