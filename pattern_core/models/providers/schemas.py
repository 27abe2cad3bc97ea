"""JSON Schemas of answers in the stricter forms that vendors ask for; pure."""

from __future__ import annotations

from collections.abc import Mapping

DEPTH_MAX = 64  # of a schema; deeper ones are passed on as they are


def closed(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema with `additionalProperties: false` on each object that says nothing of them."""
    made = _closed(dict(schema), DEPTH_MAX)
    return made if isinstance(made, dict) else dict(schema)


def is_strict(schema: Mapping[str, object]) -> bool:
    """Whether OpenAI's strict mode takes it: every object is closed and requires all that it has."""
    return _is_strict(schema, DEPTH_MAX)


def _closed(value: object, depth: int) -> object:
    if depth == 0:
        return value
    if isinstance(value, list):
        return [_closed(item, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    made = {
        key: item if key in ("enum", "const", "default", "examples") else _closed(item, depth - 1)
        for key, item in value.items()
    }
    if _is_object(value):
        made.setdefault("additionalProperties", False)
    return made


def _is_strict(value: object, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(_is_strict(item, depth - 1) for item in value)
    if not isinstance(value, Mapping):
        return True
    if _is_object(value):
        properties, required = value.get("properties"), value.get("required")
        names = set(properties) if isinstance(properties, Mapping) else set()
        asked = set(required) if isinstance(required, list) else set()
        if value.get("additionalProperties") is not False or names != asked:
            return False
    skipped = ("enum", "const", "default", "examples")
    return all(_is_strict(item, depth - 1) for key, item in value.items() if key not in skipped)


def _is_object(value: Mapping[str, object]) -> bool:
    # A property may itself be called "type" or "properties": then what stands there has another form.
    return value.get("type") == "object" or ("type" not in value and isinstance(value.get("properties"), Mapping))
