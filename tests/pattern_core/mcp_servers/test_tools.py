"""What a server offers, as an agent's tools: names, descriptions, and answers as the model reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pattern_core.mcp_servers.settings import McpSettings, Stdio
from pattern_core.mcp_servers.tools import (
    DESCRIPTION_CHARS_MAX,
    ERROR_CHARS_MAX,
    SPECS_CHARS_MAX,
    Answer,
    OfferedTool,
    answer_of,
    enables,
    may_have_happened,
    server_of,
    tool_name,
    tools_of,
)
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass
from tests.pattern_core.mcp_servers.rig import CONTEXT

SETTINGS = McpSettings(reach=Stdio(command="x"))
VENDORS = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONG = "list_" + "very_" * 12 + "long"


def offered(name: str, description: str = "Finds notes.", *, is_repeatable: bool = False) -> OfferedTool:
    return OfferedTool(name, description, {"type": "object"}, is_repeatable)


async def call(tool: Tool, name: str, arguments: Mapping[str, object], key: str) -> str:
    return f"{tool.name} {name} {dict(arguments)} {key}"


async def test_a_tool_and_its_call() -> None:
    [tool] = tools_of("notes", SETTINGS, [offered("find")], call)
    assert tool.name == "notes__find"
    assert tool.description == "A tool of the MCP server `notes`, which describes it itself: Finds notes."
    assert (tool.effect, tool.timeout_s) == (EffectClass.UNSAFE, 95)
    assert tool.returns_untrusted_text
    assert not tool.enabled_by_default
    arguments = {"context": 1, "self": 2, "a-b": 3}  # names that are none of ours
    assert await tool.call(CONTEXT, arguments) == f"notes__find find {arguments} key_1"


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


@given(st.text(alphabet="aZ9_-./ é\n", max_size=90))
@examples(max_examples=40)
def test_every_name_suits_every_vendor_and_leads_back_to_its_server(tool: str) -> None:
    name = tool_name("git-hub", tool)
    assert VENDORS.fullmatch(name)
    assert server_of(name) == "git-hub"
    assert tool_name("git-hub", tool) == name


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert tool_name("github", "create_issue") == "github__create_issue"


@pytest.mark.parametrize(("one", "other"), [("a.b", "a_b"), ("a/b", "a.b"), (LONG + "1", LONG + "2"), ("", "_")])
def test_names_that_are_changed_do_not_fall_together(one: str, other: str) -> None:
    assert tool_name("x", one) != tool_name("x", other)


def test_a_shortened_name_is_the_same_tomorrow() -> None:
    assert tool_name("notes", "find/by tag") == "notes__find_by_tag_54bd90a9"


def test_whose_tool_it_is() -> None:
    assert server_of("github__*") == "github"
    assert server_of("block_edit") is None
    assert server_of("github__") is None
    assert enables(["search", "github__create_issue"], "github")
    assert not enables(["search", "git__hub"], "github")


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("parts", "structured", "shown"),
    [
        ([text("one"), text("two")], None, "one\n\ntwo"),
        ([], None, "done, without a word"),
        ([], {"a": 1}, '{"a": 1}'),
        ([text('{"a":1}')], {"a": 1}, '{"a":1}'),
        ([text("3")], {"result": 3}, "3"),
        ([text("three")], {"result": "three"}, "three"),
        ([text("found 1")], {"a": 1}, 'found 1\n\n{"a": 1}'),
        ([text("{broken")], [1], "{broken\n\n[1]"),
        (
            [{"type": "image", "mimeType": "image/png", "data": "A" * 4000}],
            None,
            "[image, image/png, 3,000 bytes: not shown]",
        ),
        ([{"type": "audio", "data": ""}], None, "[audio, of unknown type, 0 bytes: not shown]"),
        (
            [{"type": "resource_link", "uri": "file:///a", "name": "a", "description": "the first"}],
            None,
            "[a: file:///a] the first",
        ),
        ([{"type": "resource", "resource": {"uri": "u:1", "text": "inside"}}], None, "[u:1]\ninside"),
        ([{"type": "resource", "resource": {"uri": "u:2", "blob": "AAAA"}}], None, "[u:2, binary, 3 bytes: not shown]"),
        ([{"type": "resource"}], None, "[resource: not shown]"),
        ([{"type": "hologram"}], None, "[hologram: not shown]"),
    ],
)
def test_shown(parts: list[dict[str, object]], structured: object, shown: str) -> None:
    assert answer_of(parts, structured, is_error=False) == Answer(text=shown)


def test_an_error_is_short_and_has_words() -> None:
    long = answer_of([text("x" * 10_000)], None, is_error=True)
    assert (long.is_error, len(long.text)) == (True, ERROR_CHARS_MAX + 2)
    assert answer_of([], None, is_error=True).text == "no reason was given"
