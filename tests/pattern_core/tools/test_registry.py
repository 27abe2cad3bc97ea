"""The table of builtin tools, as models, operators and recovery see it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pattern_core.errors import NotFound
from pattern_core.models.tokens import estimate_tools
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool, ToolContext, ToolSettings, tool
from pattern_core.web.policy import WebSettings
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.PURE)
async def look(context: ToolContext) -> str:
    """Look."""
    return ""


@tool(effect=EffectClass.PURE)
async def listen(context: ToolContext, where: str) -> str:
    """Listen."""
    return where


def test_what_is_not_there_is_answered_with_what_is() -> None:
    registry = ToolRegistry([look, listen])
    for name, enabled, there in (("smell", ["look", "listen"], "look, listen"), ("look", [], "none")):
        with pytest.raises(NotFound, match=f"no tool '{name}'; your tools: {there}"):
            registry.get(name, enabled)


def test_specs_keep_the_registrys_order_and_pass_over_unknown_names() -> None:
    registry = ToolRegistry([look, listen])
    specs = registry.specs(["listen", "gone", "look"])
    assert [spec.name for spec in specs] == ["look", "listen"]
    assert specs[1].description == "Listen."
    assert specs[1].parameters == listen.parameters
    assert registry.specs(["look"])[0] is specs[0]


def test_the_reader_of_long_results_is_an_enabled_tool() -> None:
    registry = ToolRegistry([look, replace(listen, reads_results=True)])
    assert (registry.reader(["look"]), registry.reader(["look", "listen"])) == (None, "listen")


def foreign(name: str) -> Tool:
    return replace(listen, name=name)


def test_foreign_tools_come_after_our_own_and_go_again() -> None:
    registry = ToolRegistry([look])
    registry.replace("b", [foreign("b__y"), foreign("b__x")])
    registry.replace("a", [foreign("a__z")])
    assert registry.names == ("look", "a__z", "b__x", "b__y")
    registry.replace("b", [foreign("b__x")])
    assert [spec.name for spec in registry.specs(["b__*", "look"])] == ["look", "b__x"]
    assert registry.get("b__x", ["b__*"]).name == "b__x"
    with pytest.raises(NotFound, match="no tool 'a__z'; your tools: b__x"):
        registry.get("a__z", ["b__*"])
    with pytest.raises(NotFound):
        registry.get("b__y", ["b__*", "b__y"])


def test_names_of_a_server_that_has_not_answered_yet_are_accepted() -> None:
    registry = ToolRegistry([look])
    assert not registry.accepts("b__x")
    registry.replace("b", ())
    assert all(registry.accepts(name) for name in ("look", "b__x", "b__*"))
    assert not any(registry.accepts(name) for name in ("listen", "b__", "b", "c__x"))


def test_a_server_cannot_take_anothers_name() -> None:
    registry = ToolRegistry([look])
    for tools in ([foreign("look")], [foreign("a__x")], [foreign("b__x"), foreign("b__x")]):
        with pytest.raises(ValueError, match="cannot be a tool of the server b"):
            registry.replace("b", tools)
    assert registry.names == ("look",)
    with pytest.raises(ValueError, match="two tools named look"):
        ToolRegistry([look, look])


def test_names_and_attributes() -> None:
    # Add a new tool here: what it may do is decided on purpose.
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
    for one in BUILTIN:
        schema = json.dumps(one.spec.parameters)
        for word in ("$ref", "$defs", "anyOf", "oneOf", "exclusiveMinimum", '"null"'):
            assert word not in schema


def test_the_tools_of_a_new_agent_cost_at_most_1300_tokens() -> None:
    registry = ToolRegistry(BUILTIN, ToolSettings())
    assert estimate_tools(registry.specs(registry.enabled_by_default)) <= 1_300
