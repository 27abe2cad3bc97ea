from __future__ import annotations

from typing import Any

import pytest

from pattern_core.models.providers.schemas import closed, is_strict

OPEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["object"]},
        "rows": {"type": "array", "items": {"properties": {"x": {"type": "integer"}}}},
        "free": {"type": "object", "additionalProperties": True},
    },
    "examples": [{"type": "object"}],
}


def test_every_object_is_closed_that_does_not_say_otherwise() -> None:
    made = closed(OPEN)
    assert made["additionalProperties"] is False
    properties = made["properties"]
    assert isinstance(properties, dict)
    assert properties["rows"]["items"]["additionalProperties"] is False
    assert properties["free"]["additionalProperties"] is True
    assert properties["type"] == {"type": "string", "enum": ["object"]}
    assert made["examples"] == [{"type": "object"}]
    assert "additionalProperties" not in OPEN


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "string"}, True),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        ({"anyOf": [{"type": "object"}]}, False),
        (OPEN, False),
    ],
)
def test_what_openai_takes_as_strict(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict


def test_a_schema_without_end_is_left_alone() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    assert closed(deep) == deep
    assert not is_strict(deep)
