"""A tool's arguments: JSON Schema from a function's annotations, and the check of what a model sends.

Vendors differ in what they accept, so the schema is kept plain: no `$ref`, no titles, nothing beside the named
properties, and an argument that may be left out is simply not required.

Source: JSON Schema draft 2020-12, as pydantic 2 generates it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from pattern_core.errors import InvalidInput

EXCERPT_CHARS = 60  # of a misfitting value, shown back to the model
MISFITS_MAX = 10  # named in one answer; more would drown the first

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "finite_number": "a finite number",
}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # the second of a dataclass within

# Keywords of a schema whose values are data, not schemas.
_DATA = ("default", "const", "enum", "examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a tool takes: `schema` is a JSON Schema object for the model, `model` checks what it sends.

    A tool that is not written here has no `model`: `misfits` then says what is wrong with arguments, in words.
    """

    schema: Mapping[str, object]
    model: type[BaseModel] | None = None
    misfits: Callable[[Mapping[str, object]], Sequence[str]] | None = None

    def check(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments by name, typed and with defaults filled in.

        Nothing is converted: `"3"` is not a number and `"yes"` is not true, because a guess hides a model's slip.

        Raises:
            InvalidInput: something is missing, unknown or of the wrong type; the message names each misfit.
        """
        if self.model is None:
            self._refuse([] if self.misfits is None else self.misfits(arguments))
            return dict(arguments)
        try:
            # As JSON, so that lists and enumerations have the types that JSON can say; strict and closed also within.
            checked = self.model.model_validate_json(json.dumps(arguments), strict=True, extra="forbid")
        except ValidationError as error:
            details = error.errors(include_url=False)
            self._refuse([self._misfit(cast("Mapping[str, Any]", detail)) for detail in details])
            raise
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"the arguments are not JSON: {error}") from None
        return {name: getattr(checked, name) for name in self.model.model_fields}

    def _refuse(self, misfits: Sequence[str]) -> None:
        if not misfits:
            return
        words = list(misfits[:MISFITS_MAX])
        if len(misfits) > MISFITS_MAX:
            words.append(f"and {len(misfits) - MISFITS_MAX} more")
        raise InvalidInput("the arguments do not fit: " + "; ".join(words)) from None

    def _misfit(self, detail: Mapping[str, Any]) -> str:
        place = ".".join(str(step) for step in detail["loc"])
        kind = str(detail["type"])
        if kind == "missing":
            return f"`{place}` is missing"
        if kind in _UNKNOWN and len(detail["loc"]) > 1:
            return f"`{place}` is not known there"
        if kind in _UNKNOWN:
            properties = cast("Mapping[str, object]", self.schema["properties"])
            known = ", ".join(f"`{name}`" for name in properties) or "none"
            return f"`{place}` is not an argument of this tool (its arguments: {known})"
        if kind == "json_invalid":
            return f"the text is not valid Unicode or JSON ({detail['ctx']['error']})"
        got = _excerpt(detail["input"])
        if kind in ("literal_error", "enum"):
            return f"`{place}` must be {detail['ctx']['expected']}, not {got}"
        if kind in _WANTED:
            return f"`{place}` must be {_WANTED[kind]}, not {got}"
        return f"`{place}`: {detail['msg']} (got {got})"


def arguments_of(fn: Callable[..., Awaitable[object]]) -> Arguments:
    """The arguments of `fn`, whose first parameter is the context and not shown to the model.

    `Annotated[str, "words"]` describes a parameter; a default makes it one that may be left out; `Literal` lists the
    values it may have.

    Raises:
        ValueError: a parameter has no annotation, is positional-only or variadic, or its type contains itself.
    """
    hints = get_type_hints(fn, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(fn).parameters.values())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"{fn.__name__}: the parameter {parameter.name} cannot be given by name")
        if parameter.name not in hints:
            raise ValueError(f"{fn.__name__}: the parameter {parameter.name} needs an annotation: the model reads it")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_described(hints[parameter.name]), default)
    # Strict and closed: what does not fit is told to the model, which mends it; a guess would hide the slip.
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model = cast("type[BaseModel]", create_model(fn.__name__, __config__=config, **fields))
    return Arguments(schema=_schema(model), model=model)


def _described(hint: Any) -> Any:  # Any: a type expression
    """Turn the bare text in `Annotated[T, "text"]` into the field's description."""
    if get_origin(hint) is not Annotated:
        return hint
    inner, *notes = get_args(hint)
    for note in notes:
        inner = Annotated[inner, Field(description=note) if isinstance(note, str) else note]
    return inner


def _schema(model: type[BaseModel]) -> dict[str, object]:
    raw = model.model_json_schema()
    definitions = raw.pop("$defs", {})
    inlined = cast("dict[str, Any]", _inline(raw, definitions, ()))
    schema: dict[str, object] = {"type": "object", "properties": inlined.get("properties", {})}
    if inlined.get("required"):
        schema["required"] = inlined["required"]
    schema["additionalProperties"] = False
    return schema


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:  # Any: a JSON value
    """`node` with every reference replaced by what it refers to, without titles and without `null` as a choice."""
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        if name in inside:
            raise ValueError(f"the type {name} contains itself; a tool's arguments must be a finite tree")
        target = _inline(definitions[name], definitions, (*inside, name))
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return {**target, **cast("dict[str, Any]", _inline(rest, definitions, inside))}
    plain = {
        # A property may be called "title"; the generated titles are text beside the type.
        key: (
            {name: _inline(item, definitions, inside) for name, item in value.items()}
            if key == "properties"
            else value
            if key in _DATA
            else _inline(value, definitions, inside)
        )
        for key, value in node.items()
        # What tells the choices of a union apart refers to definitions, and each choice says it by itself.
        if key != "discriminator" and not (key == "title" and isinstance(value, str))
    }
    if "properties" in plain:
        plain["additionalProperties"] = False  # as `Arguments.check` has it, also of models that would take more
    return _without_null(plain)


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """An argument that may be `null` is one that may be left out; some vendors know no union with `null`."""
    choices = node.get("anyOf")
    if choices is None or {"type": "null"} not in choices:
        return node
    kept = [choice for choice in choices if choice != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf" and not (key == "default" and value is None)}
    return {**kept[0], **rest} if len(kept) == 1 else {"anyOf": kept, **rest}


def _excerpt(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"
