"""The table of builtin tools, as models, operators and recovery see it."""

from __future__ import annotations

import json

from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolSettings
from pattern_core.web.policy import WebSettings
from pattern_db.enums import EffectClass


def test_names_and_attributes() -> None:
    assert [
        (tool.name, tool.effect, tool.returns_untrusted_text, tool.enabled_by_default, tool.reads_results)
        for tool in BUILTIN
    ] == [
        ("block", EffectClass.LOCAL, False, True, False),
        ("block_edit", EffectClass.LOCAL, False, True, False),
        ("recall", EffectClass.LOCAL, True, True, False),
        ("search", EffectClass.PURE, True, True, False),
        ("send_message", EffectClass.LOCAL, False, True, False),
        ("file", EffectClass.LOCAL, True, True, False),
        ("calculator", EffectClass.LOCAL, False, True, False),
        ("result", EffectClass.PURE, True, True, True),
        ("web", EffectClass.IDEMPOTENT, True, True, False),
        ("file_save", EffectClass.IDEMPOTENT, True, False, False),
        ("shell", EffectClass.UNSAFE, True, False, False),
        ("emergency_halt", EffectClass.LOCAL, False, False, False),
    ]


def test_tools_are_offered_as_the_operator_configures_them() -> None:
    everything = tuple(tool.name for tool in BUILTIN)
    plain = ToolRegistry(BUILTIN, ToolSettings())
    assert plain.names == tuple(name for name in everything if name != "web")
    assert plain.off == {"web": "web is off: the server's pattern.toml has no section [web]"}
    connected = ToolRegistry(BUILTIN, ToolSettings(web=WebSettings()))
    assert (connected.names, connected.off) == (everything, {})


def test_schemas_are_plain_enough_for_every_vendor() -> None:
    for tool in BUILTIN:
        schema = json.dumps(tool.spec.parameters)
        for word in ("$ref", "$defs", "anyOf", "oneOf", "exclusiveMinimum", '"null"'):
            assert word not in schema
        properties = tool.arguments.schema["properties"]
        assert isinstance(properties, dict)
        assert all(value.get("description") for value in properties.values())
