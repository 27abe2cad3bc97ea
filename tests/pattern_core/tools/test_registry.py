from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.errors import NotFound
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool, ToolContext, tool
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.PURE)
async def look(context: ToolContext) -> str:
    """Look."""
    return ""


@tool(effect=EffectClass.PURE)
async def listen(context: ToolContext, where: str) -> str:
    """Listen."""
    return where


def test_tools_are_found_by_name_if_enabled() -> None:
    registry = ToolRegistry([look, listen])
    assert registry.names == ("look", "listen")
    assert registry.get("listen", ["listen"]) is listen


@pytest.mark.parametrize(
    ("name", "enabled", "words"),
    [
        ("smell", ["look", "listen"], "no tool 'smell'; your tools: look, listen"),
        ("look", ["listen"], "no tool 'look'; your tools: listen"),
        ("look", [], "your tools: none"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(name: str, enabled: list[str], words: str) -> None:
    with pytest.raises(NotFound, match=words):
        ToolRegistry([look, listen]).get(name, enabled)


def test_specs_keep_the_registrys_order_and_pass_over_unknown_names() -> None:
    registry = ToolRegistry([look, listen])
    specs = registry.specs(["listen", "gone", "look"])
    assert [spec.name for spec in specs] == ["look", "listen"]
    assert specs[1].description == "Listen."
    assert specs[1].parameters == listen.arguments.schema
    assert registry.specs(["look"])[0] is specs[0]


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


def test_names_of_a_server_that_has_told_nothing_yet_are_accepted() -> None:
    registry = ToolRegistry([look])
    assert not registry.accepts("b__x")
    registry.expect("b")
    assert all(registry.accepts(name) for name in ("look", "b__x", "b__*"))
    assert not any(registry.accepts(name) for name in ("listen", "b__", "b", "c__x"))
    registry.replace("b", [foreign("b__y")])
    registry.expect("b")
    assert registry.names == ("look", "b__y")


def test_a_server_cannot_take_anothers_name() -> None:
    registry = ToolRegistry([look])
    for tools in ([foreign("look")], [foreign("a__x")], [foreign("b__x"), foreign("b__x")]):
        with pytest.raises(ValueError, match="cannot be a tool of the server b"):
            registry.replace("b", tools)
    assert registry.names == ("look",)


def test_two_tools_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two tools named look"):
        ToolRegistry([look, look])
