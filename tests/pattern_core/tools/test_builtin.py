"""The table of builtin tools, as models and recovery see it."""

from __future__ import annotations

import json

from pattern_core.tools.builtin import BUILTIN, DEFAULT_ENABLED
from pattern_core.tools.registry import ToolRegistry
from pattern_db.enums import EffectClass


def test_names_and_effects() -> None:
    assert [(tool.name, tool.effect) for tool in BUILTIN] == [
        ("block", EffectClass.LOCAL),
        ("block_edit", EffectClass.LOCAL),
        ("recall", EffectClass.LOCAL),
        ("search", EffectClass.PURE),
        ("send_message", EffectClass.LOCAL),
        ("file", EffectClass.LOCAL),
        ("calculator", EffectClass.LOCAL),
        ("result", EffectClass.PURE),
        ("web", EffectClass.IDEMPOTENT),
        ("file_save", EffectClass.IDEMPOTENT),
        ("shell", EffectClass.UNSAFE),
        ("emergency_halt", EffectClass.LOCAL),
    ]
    assert ToolRegistry(BUILTIN).names == (*DEFAULT_ENABLED, "file_save", "shell", "emergency_halt")


def test_schemas_are_plain_enough_for_every_vendor() -> None:
    for tool in BUILTIN:
        schema = json.dumps(tool.spec.parameters)
        for word in ("$ref", "$defs", "anyOf", "oneOf", "exclusiveMinimum", '"null"'):
            assert word not in schema
        properties = tool.arguments.schema["properties"]
        assert isinstance(properties, dict)
        assert all(value.get("description") for value in properties.values())
