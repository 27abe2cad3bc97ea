"""Schemas that others wrote: made plain and short enough for every vendor, and used to check what a model sends. Pure.

A schema from a server is input like any other. References are resolved within it and nowhere else, and its patterns are
not used: one of them could compute for hours over an argument. What is not checked here the server checks.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pattern_core.tools.tool import Arguments

SCHEMA_CHARS_MAX = 12_000  # of one tool's arguments as JSON: what is longer is shown without its details
NODES_MAX = 2_000
DEPTH_MAX = 24
WORDS_CHARS_MAX = 300
# Of a property whose details are left out.
_OUTLINE = ("type", "description", "enum", "items")
_WITHOUT = ("$schema", "$id", "$defs", "definitions", "$comment", "$anchor", "$ref", "$dynamicRef")
# To know which properties are additional ones, the library computes the patterns, also where they are not checked.
_PATTERNED = ("patternProperties", "additionalProperties")
_UNUSED = ("pattern", "format", "unevaluatedProperties", "unevaluatedItems", "$ref", "$dynamicRef")


def arguments_of_schema(schema: Mapping[str, object]) -> Arguments:
    """Return the arguments of a tool whose server describes them by `schema`."""
    plain = _plain(schema)
    offered = {key: plain[key] for key in ("type", "properties", "required", "additionalProperties")}
    if _size(offered) > SCHEMA_CHARS_MAX:
        offered["properties"] = _outlined(cast("Mapping[str, object]", plain["properties"]))
    if _size(offered) > SCHEMA_CHARS_MAX:
        offered = {"type": "object", "properties": {}, "additionalProperties": True}
    return Arguments(schema=offered, misfits=_checker(plain))


def _plain(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema without references, as one of an object with properties."""
    try:
        found = _Inliner(schema).inlined(schema, (), 0)
    except (_TooLarge, RecursionError):
        found = {}
    found = found if isinstance(found, dict) else {}
    properties = found.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = found.get("required")
    closed = found.get("additionalProperties")
    return {
        **found,
        "type": "object",
        "properties": properties,
        "required": [name for name in required if isinstance(name, str)] if isinstance(required, list) else [],
        "additionalProperties": closed if isinstance(closed, bool | dict) else True,
    }


class _TooLarge(Exception):
    """Written out, the schema has more parts than anybody should read."""


@dataclass(slots=True)
class _Inliner:
    root: Mapping[str, object]
    nodes: int = 0

    def inlined(self, node: object, inside: tuple[str, ...], depth: int) -> object:
        """`node` with what its references refer to; what would contain itself may be anything."""
        self.nodes += 1
        if self.nodes > NODES_MAX or depth > DEPTH_MAX:
            raise _TooLarge
        if isinstance(node, list):
            return [self.inlined(item, inside, depth + 1) for item in node]
        if not isinstance(node, Mapping):
            return node
        rest = {
            # A property may have any name, also that of a keyword.
            key: {name: self.inlined(item, inside, depth + 2) for name, item in value.items()}
            if key == "properties" and isinstance(value, Mapping)
            else self.inlined(value, inside, depth + 1)
            for key, value in node.items()
            if key not in _WITHOUT and not ("patternProperties" in node and key in _PATTERNED)
        }
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return rest
        target = None if reference in inside else self._target(reference)
        if not isinstance(target, Mapping):
            return rest
        found = self.inlined(target, (*inside, reference), depth + 1)
        return {**found, **rest} if isinstance(found, dict) else rest

    def _target(self, reference: str) -> object:
        """Return what a JSON pointer within the document points at; None for any other reference."""
        if not reference.startswith("#"):
            return None
        node: object = self.root
        for step in filter(None, reference[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping):
                return None
            node = node.get(name)
        return node


def _outlined(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the properties with their types and first words alone."""
    outlined: dict[str, object] = {}
    for name, value in properties.items():
        kept = {key: value[key] for key in _OUTLINE if key in value} if isinstance(value, dict) else {}
        if "items" in kept:
            kept["items"] = {}
        if isinstance(kept.get("description"), str):
            kept["description"] = str(kept["description"])[:WORDS_CHARS_MAX]
        if _size(kept) > 2 * WORDS_CHARS_MAX:
            kept.pop("enum", None)
        outlined[name] = kept
    return outlined


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _checker(schema: Mapping[str, object]) -> Callable[[Mapping[str, object]], Sequence[str]]:
    """Return a function that says what is wrong with arguments; it is made when the first ones come."""

    @cache
    def validator() -> Any:  # Any: the library makes classes of validators
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import create

        kinds = {name: check for name, check in Draft202012Validator.VALIDATORS.items() if name not in _UNUSED}
        made = create(meta_schema=Draft202012Validator.META_SCHEMA, validators=kinds)
        try:
            Draft202012Validator.check_schema(cast("Any", schema))
        except SchemaError:
            return None  # the server knows what it means by it
        return made(schema)

    def misfits(arguments: Mapping[str, object]) -> list[str]:
        check = validator()
        return [] if check is None else [_words(error) for error in check.iter_errors(dict(arguments))]

    return misfits


def _words(error: Any) -> str:  # Any: the library's error
    place = ".".join(str(step) for step in error.absolute_path)
    message = str(error.message)
    message = message if len(message) <= WORDS_CHARS_MAX else message[:WORDS_CHARS_MAX] + "…"
    return f"`{place}`: {message}" if place else message
