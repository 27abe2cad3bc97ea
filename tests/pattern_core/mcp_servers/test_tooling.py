"""What a server offers, as an agent's tools."""

from __future__ import annotations

from collections.abc import Mapping

from pattern_core.mcp_servers.connection import OfferedTool
from pattern_core.mcp_servers.settings import McpSettings, Stdio
from pattern_core.mcp_servers.tooling import DESCRIPTION_CHARS_MAX, SPECS_CHARS_MAX, may_have_happened, tools_of
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass
from tests.pattern_core.mcp_servers.rig import CONTEXT

SETTINGS = McpSettings(reach=Stdio(command="x"))


def offered(name: str, description: str = "Finds notes.", *, is_repeatable: bool = False) -> OfferedTool:
    return OfferedTool(name=name, description=description, schema={"type": "object"}, is_repeatable=is_repeatable)


async def call(tool: Tool, name: str, arguments: Mapping[str, object], key: str) -> str:
    return f"{tool.name} {name} {dict(arguments)} {key}"


async def test_a_tool_and_its_call() -> None:
    [tool] = tools_of("notes", SETTINGS, [offered("find")], call)
    assert tool.name == "notes__find"
    assert tool.description == "A tool of the MCP server `notes`, which describes it itself: Finds notes."
    assert (tool.effect, tool.timeout_s) == (EffectClass.UNSAFE, 95)
    assert tool.returns_untrusted_text
    assert not tool.enabled_by_default
    given = {"context": 1, "self": 2, "a-b": 3}  # names that are none of ours
    assert await tool.call(CONTEXT, given) == f"notes__find find {given} key_1"


def test_only_what_the_operator_lets_through() -> None:
    settings = McpSettings(reach=Stdio(command="x"), tools=("find",))
    assert [tool.name for tool in tools_of("n", settings, [offered("find"), offered("drop"), offered("")], call)] == [
        "n__find"
    ]


def test_each_once_and_no_more_than_a_prompt_bears() -> None:
    assert len(tools_of("n", SETTINGS, [offered("find"), offered("find")], call)) == 1
    many = tools_of("n", SETTINGS, [offered(f"t{number}", "w" * 5_000) for number in range(100)], call)
    assert 10 < len(many) < 40
    assert sum(len(tool.description) for tool in many) < SPECS_CHARS_MAX


def test_descriptions_are_cut_and_cleaned() -> None:
    [tool] = tools_of("n", SETTINGS, [offered("t", "a\x1b[31m\nb" + "c" * 9_000)], call)
    assert ": a [31m\nbccc" in tool.description
    assert len(tool.description) < DESCRIPTION_CHARS_MAX + 100
    [silent] = tools_of("n", SETTINGS, [offered("t", " ")], call)
    assert silent.description.endswith("with no word.")


def test_what_may_have_happened_depends_on_the_effect() -> None:
    hints = McpSettings(reach=Stdio(command="x"), trust_hints=True)
    safe, unsafe = tools_of("n", hints, [offered("a", is_repeatable=True), offered("b")], call)
    assert "no harm" in may_have_happened(safe)
    assert "find out" in may_have_happened(unsafe)
