from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import NotFound
from pattern_core.tools.registry import ToolRegistry, to_text
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


def test_results_become_text() -> None:
    assert to_text("as it is", 100) == "as it is"
    assert to_text(None, 100) == "done"
    assert to_text({"a": ["ü", 1, None]}, 100) == '{"a":["ü",1,null]}'
    assert to_text("half \ud800", 100) == "half ?"


def test_what_json_cannot_say_is_told_all_the_same() -> None:
    assert to_text({"at": date(2026, 11, 22)}, 100) == '{"at":"2026-11-22"}'
    assert to_text({1, 2}, 100) == '"{1, 2}"'
    assert to_text({(1, 2): 3}, 100) == "{(1, 2): 3}"
    within: list[object] = []
    within.append(within)
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    for endless in (within, deep):
        assert to_text(endless, 100).startswith("[[[[")


def test_a_long_result_keeps_both_ends_and_says_so() -> None:
    text = to_text("a" * 5000 + "end", 400)
    assert len(text) == 400
    assert text.startswith("aaa")
    assert text.endswith("end")
    assert "5003 characters in all" in text
    assert to_text("a" * 400, 400) == "a" * 400


@given(st.text(alphabet="ab🌍\ud800", max_size=300), st.integers(0, 200))
def test_no_result_is_longer_than_allowed_and_all_can_be_encoded(text: str, chars_max: int) -> None:
    result = to_text(text, chars_max)
    assert len(result) <= chars_max
    result.encode()
