"""A tool's arguments: their schema for the model, validation, and repair of what a model wrote. Pure.

Vendors differ in what they accept, so a schema is kept plain: no `$ref`, no titles, no defaults, and an argument that
may be left out is simply not required.

Small models write `"5"` for 5, `null` for what they leave out, JSON within JSON, and names in other forms. If the
meaning is certain, a call is corrected before it is judged or stored: rules, people, rows and the model itself see the
corrected call. Everything else is refused with a message that says what was expected.

Source: JSON Schema draft 2020-12, as pydantic 2 generates it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from pattern_core.errors import InvalidInput
from pattern_core.validation import read
from pattern_db.columns import check_depth

ToolFunction = Callable[..., Awaitable[object]]
CheckFunction = Callable[[Mapping[str, object]], dict[str, object]]

_DATA = ("const", "enum", "examples")  # keywords of a schema with data as values, not schemas
# Every word costs tokens in every prompt. The discriminator of a union refers to definitions, and each choice has
# it by itself; `Tool.check` fills defaults in and refuses other properties, in words that the model reads.
_LEFT_OUT = ("title", "discriminator", "$defs", "default")
_CLOSED = ("additionalProperties", False)
_NULL = {"type": "null"}
# A string, to the end of the text if it has no other, or a bracket.
_STRINGS_AND_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_ENDS_OF_VALUES = ('"', "}", "]", "true", "false", "null")  # not of numbers: their last digits may be missing
_WHOLE = re.compile(r"-?\d{1,15}")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


class InvalidArguments(InvalidInput):
    """The arguments of a tool are invalid. The message contains only our text and the caller's."""


def arguments_of(fn: ToolFunction) -> tuple[Mapping[str, Any], CheckFunction]:
    """Return `Tool.parameters` and `Tool.check` of `fn`; its first parameter is the context, which is not shown.

    `Annotated[str, "words"]` describes a parameter; a default makes it one that may be left out; `Literal` lists the
    values it may have.

    Raises:
        ValueError: a parameter has no annotation, is positional-only or variadic, or its type contains itself.
    """
    hints = get_type_hints(fn, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(fn).parameters.values())[1:]:
        name = parameter.name
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"{fn.__name__}: the parameter {name} cannot be given by name")
        if name not in hints:
            raise ValueError(f"{fn.__name__}: the parameter {name} needs an annotation: the model reads it")
        words = [note for note in getattr(hints[name], "__metadata__", ()) if isinstance(note, str)]
        described: dict[str, Any] = {"description": words[-1]} if words else {}
        fields[name] = (
            hints[name],
            Field(... if parameter.default is parameter.empty else parameter.default, **described),
        )
    # Strict and closed: the model reads the error and corrects it; a guess would hide the mistake.
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: TypeAdapter[BaseModel] = TypeAdapter(create_model(fn.__name__, __config__=config, **fields))

    def check(arguments: Mapping[str, object]) -> dict[str, object]:
        try:
            return dict(read(model, arguments, lambda place: () if place else fields).__dict__)
        except InvalidInput as error:
            raise InvalidArguments(f"invalid arguments: {error.message}") from None

    raw = model.json_schema()
    schema = _plain(raw, raw.get("$defs", {}))
    names = ("type", "properties", "required")
    return {name: schema[name] for name in names if name in schema}, check


def _plain(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:  # Any: a JSON value
    """Return `node` with resolved references, without titles and without `null` as a choice."""
    if isinstance(node, list):
        return [_plain(one, definitions, inside) for one in node]
    if not isinstance(node, dict):
        return node
    while "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in inside:
            raise ValueError(f"the type {name} contains itself; a tool's arguments must be a finite tree")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        node, inside = {**definitions[name], **beside}, (*inside, name)
    plain: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":  # one of them may be called "title"
            plain[key] = {name: _plain(one, definitions, inside) for name, one in value.items()}
        elif key not in _LEFT_OUT and (key, value) != _CLOSED:
            plain[key] = value if key in _DATA else _plain(value, definitions, inside)
    if _NULL in plain.get("anyOf", ()):  # it may be left out; some vendors know no union with `null`
        choices = [choice for choice in plain.pop("anyOf") if choice != _NULL]
        plain = {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **plain}
    return plain


# Repair of what a model wrote


def object_in(text: str, *, is_whole: bool) -> dict[str, object] | None:
    """Return the JSON object that an invalid text means, None if that is uncertain: one within a string, or if the
    answer `is_whole`, one that only lacks its last brackets.
    """
    value = _parsed(text)
    if isinstance(value, str):
        value = _parsed(value)
    elif is_whole and text.rstrip().endswith(_ENDS_OF_VALUES):
        ends: list[str] = []
        for found in _STRINGS_AND_BRACKETS.finditer(text):
            if found[0] in ("{", "["):
                ends.append("}" if found[0] == "{" else "]")
            elif found[0] in ("}", "]") and ends:
                ends.pop()
        value = _parsed(text + "".join(reversed(ends)))
    return value if isinstance(value, dict) else None


def _parsed(text: str) -> object:
    """Return the JSON value that the text is, None where it is none, or one that cannot be stored."""
    try:
        value = json.loads(text)
        check_depth(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


def operations_in(schema: Mapping[str, Any]) -> list[str]:
    """Return the values that the argument `op` may have, if there is one."""
    match schema:
        case {"properties": {"op": {"enum": list(values)}}}:
            return [value for value in values if isinstance(value, str)]
    return []


def coerced(arguments: Mapping[str, object], schema: Mapping[str, Any]) -> dict[str, object]:
    """Return an object in the form of its schema, as far as the meaning is certain; the rest stays unchanged.

    Null for an optional property is left out, unless the schema accepts it.
    """
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, dict) else {}
    made: dict[str, object] = {}
    for name, value in arguments.items():
        wanted = known.get(name)
        kind = wanted.get("type") if isinstance(wanted, dict) else None  # servers' schemas may hold anything
        must_be = isinstance(required, list) and name in required
        if value is not None or must_be or not isinstance(kind, str) or kind == "null":
            made[name] = value if kind is None else _coerced(value, wanted)
    return made


def _coerced(value: object, schema: Any) -> object:  # Any: a JSON Schema
    match schema.get("type"), value:
        case "string", str() if "enum" not in schema:
            return value
        case "integer" | "number", str(text) if (_WHOLE if schema["type"] == "integer" else _NUMBER).fullmatch(text):
            return float(text) if "." in text else int(text)
        case "integer", float(number) if number.is_integer() and abs(number) < 1e15:
            return int(number)
        case "boolean", str(text) if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "string", int() | float() if not isinstance(value, bool):
            return json.dumps(value)
        case "string", str(text) if isinstance(schema["enum"], list) and text not in schema["enum"]:
            same = [one for one in schema["enum"] if isinstance(one, str) and one.casefold() == text.casefold()]
            return same[0] if len(same) == 1 else text
        case "array", list(items) if isinstance(schema.get("items"), Mapping):
            return [_coerced(item, schema["items"]) for item in items]
        case "object", dict(inner):
            return coerced(inner, schema)
        case "array" | "object", str(text) if isinstance(made := _parsed(text), list | dict):
            return _coerced(made, schema) if isinstance(made, list) == (schema["type"] == "array") else text
    return value
