"""What a server offers, as an agent's tools: names, descriptions, and answers as the model reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pattern_core.mcp_servers.tools import (
    DESCRIPTION_CHARS_MAX,
    ERROR_CHARS_MAX,
    SCHEMA_CHARS_MAX,
    SPECS_CHARS_MAX,
    OfferedTool,
    may_have_happened,
    plain_schema,
    server_of,
    text_of,
    tool_name,
    tools_of,
)
from pattern_core.mcp_settings import ConfiguredEffect, McpSettings, Stdio, Streamable
from pattern_core.tools.tool import Tool
from pattern_db.enums import EffectClass
from tests.pattern_core.mcp_servers.rig import CONTEXT

SETTINGS = McpSettings(reach=Stdio(command="x"))
VENDORS = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONG = "list_" + "very_" * 12 + "long"


def offered(name: str, description: str = "Finds notes.", *, is_repeatable: bool = False) -> OfferedTool:
    hints = {"idempotentHint": is_repeatable}
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, "annotations": hints}


async def call(tool: Tool, name: str, arguments: Mapping[str, object], key: str) -> str:
    return f"{tool.name} {name} {dict(arguments)} {key}"


async def test_a_tool_and_its_call() -> None:
    [tool] = tools_of("notes", SETTINGS, [offered("find")], call)
    assert tool.name == "notes__find"
    assert tool.description == "A tool of the MCP server `notes`, which describes it itself: Finds notes."
    assert (tool.effect, tool.timeout_s) == (EffectClass.UNSAFE, 95)
    assert tool.returns_untrusted_text
    assert not tool.enabled_by_default and not tool.for_strangers
    [shown] = tools_of("notes", replace(SETTINGS, for_strangers=True), [offered("find")], call)
    assert shown.for_strangers
    arguments = {"context": 1, "self": 2, "a-b": 3}  # names that are none of ours
    assert await tool.call(CONTEXT, arguments) == f"notes__find find {arguments} key_1"


def test_only_what_the_operator_lets_through_once_and_no_more_than_a_prompt_bears() -> None:
    settings = McpSettings(reach=Stdio(command="x"), tools=("find",))
    all_offered = [offered("find"), offered("drop"), offered(""), offered("find")]
    assert [tool.name for tool in tools_of("n", settings, all_offered, call)] == ["n__find"]
    many = tools_of("n", SETTINGS, [offered(f"t{number}", "w" * 5_000) for number in range(100)], call)
    assert 10 < len(many) < 40
    assert sum(len(tool.description) for tool in many) < SPECS_CHARS_MAX


def test_descriptions_are_cut_and_cleaned() -> None:
    [tool] = tools_of("n", SETTINGS, [offered("t", "a\x1b[31m\nb" + "c" * 9_000)], call)
    assert ": a [31m\nbccc" in tool.description
    assert len(tool.description) < DESCRIPTION_CHARS_MAX + 100
    [silent] = tools_of("n", SETTINGS, [offered("t", " ")], call)
    assert silent.description.endswith("with no word.")


@given(st.text(alphabet="aZ9_-./ é\n", max_size=90))
@examples(max_examples=40)
def test_every_name_suits_every_vendor_and_leads_back_to_its_server(tool: str) -> None:
    name = tool_name("git-hub", tool)
    assert VENDORS.fullmatch(name)
    assert server_of(name) == "git-hub"
    assert tool_name("git-hub", tool) == name


def test_a_name_stays_as_it_is_or_is_the_same_tomorrow() -> None:
    assert [server_of(name) for name in ("github__*", "block_edit", "github__")] == ["github", None, None]
    assert tool_name("github", "create_issue") == "github__create_issue"
    assert tool_name("notes", "find/by tag") == "notes__find_by_tag_54bd90a9"
    for one, other in (("a.b", "a_b"), ("a/b", "a.b"), (LONG + "1", LONG + "2"), ("", "_")):
        assert tool_name("x", one) != tool_name("x", other)


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
        ([{"type": "image", "mimeType": "image/png", "data": "AAAA"}], None, "[image: not shown]"),
        ([{"type": "resource_link", "uri": "u:a", "name": "a"}], None, "[resource: u:a]"),
        ([{"type": "resource", "resource": {"uri": "u:1", "text": "inside"}}], None, "[u:1]\ninside"),
        ([{"type": "resource", "resource": {"uri": "u:2", "blob": "AAAA"}}], None, "[resource: not shown]"),
    ],
)
def test_shown(parts: list[dict[str, object]], structured: object, shown: str) -> None:
    assert text_of(parts, structured, is_error=False) == shown


def test_an_error_is_short_and_has_words() -> None:
    assert text_of([text("x" * 10_000)], None, is_error=True) == "x" * ERROR_CHARS_MAX + " …"
    assert text_of([text("x" * 10_000)], None, is_error=False) == "x" * 10_000
    assert text_of([], None, is_error=True) == "no reason was given"


NODE = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}, "next": {"$ref": "#/$defs/Node"}}}
SHOWN_NODE = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}, "next": {}}}
EITHER = {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/Either"}, {"not": {"$ref": "#/$defs/Either"}}]}
DATA = {"const": {"$id": "x", "$ref": "#/$defs/Node"}}
LEAF = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"enum": ["x" * 40]}}}}}
INNER = {"type": "object", "description": "d" * 500, "properties": {str(n): LEAF for n in range(3)}}
ZONES = {"type": "string", "enum": [f"Zone/{n}" for n in range(2_000)]}
SHORT = {"enum": ["x" * 500], "description": "d" * 600}


def many(count: int, schema: object) -> dict[str, object]:
    return {f"property_{number}": schema for number in range(count)}


@pytest.mark.parametrize(
    ("properties", "shown"),
    [
        ({"a": {"$ref": "#/$defs/Node", "title": "A"}}, {"a": {**SHOWN_NODE, "title": "A"}}),
        ({"all": {"items": {"$ref": "#/$defs/Node"}}}, {"all": {"items": SHOWN_NODE}}),
        ({"$defs": {"title": "A"}, "properties": {"$ref": "#/$defs/Node"}},
         {"$defs": {"title": "A"}, "properties": SHOWN_NODE}),
        ({"a": {"$ref": "#/$defs/Either"}, "b": DATA},
         {"a": {"oneOf": [{"type": "string"}, {}, {"not": {}}]}, "b": DATA}),
        ({"a": {"$ref": "https://example.org/other.json"}, "b": {"$ref": "#/nowhere/at/all"}}, {"a": {}, "b": {}}),
        ({"a": {"$ref": "#/$defs/a~1b~0c"}}, {"a": {"type": "null"}}),
        ({"a": {"type": "string", "pattern": "^(a+)+$"}}, {"a": {"type": "string", "pattern": "^(a+)+$"}}),
        # What is long is cut where it is nested deepest.
        (many(15, INNER), many(15, {**INNER, "properties": {"0": {}, "1": {}, "2": {}}})),
        ({"a": ZONES, "b": {"description": "d" * 601}, "c": SHORT}, {"a": {"type": "string"}, "b": {}, "c": SHORT}),
        (many(200, {"description": "d" * 200}), many(200, {})),
        (many(900, {}), {}),
        ({"a": {"$ref": "#/$defs/chain_0"}}, {"a": {}}),
    ],
)  # fmt: skip
def test_schemas_are_made_plain_and_short(properties: dict[str, object], shown: dict[str, object]) -> None:
    chain = {f"chain_{n}": {"$ref": f"#/$defs/chain_{n + 1}"} for n in range(2_000)}
    definitions = {"Node": NODE, "Either": EITHER, "a/b~c": {"type": "null"}, **chain}
    schema = {"$schema": "x", "properties": properties, "required": ["a", 1], "$defs": definitions}
    assert plain_schema(schema) == {
        "type": "object",
        "properties": shown,
        "required": ["a"] if shown else [],
        "additionalProperties": True,
    }


def test_other_properties_are_allowed_as_the_schema_has_it_or_if_it_makes_no_sense() -> None:
    for closed in (False, {"type": "string"}):
        assert plain_schema({"additionalProperties": closed})["additionalProperties"] == closed
    nonsense = {"type": "string", "properties": 5, "required": "x", "additionalProperties": "no"}
    nothing = {"type": "object", "properties": {}, "required": [], "additionalProperties": True}
    assert plain_schema(nonsense) == plain_schema({}) == nothing


def test_references_that_would_grow_without_end_are_cut() -> None:
    doubled = {
        f"n{n}": {"properties": {"l": {"$ref": f"#/$defs/n{n + 1}"}, "r": {"$ref": f"#/$defs/n{n + 1}"}}}
        for n in range(40)
    }
    shown = json.dumps(plain_schema({"properties": {"a": {"$ref": "#/$defs/n0"}}, "$defs": doubled}))
    assert '"a": {"properties": {"l": {"properties": {"l": {"properties"' in shown
    assert len(shown) < SCHEMA_CHARS_MAX


SAFE, UNSAFE = EffectClass.IDEMPOTENT, EffectClass.UNSAFE


@pytest.mark.parametrize(
    ("configured", "trust_hints", "says_repeatable", "effect"),
    [
        ({}, False, True, UNSAFE),
        ({}, True, True, SAFE),
        ({}, True, False, UNSAFE),
        ({"t": UNSAFE}, True, True, UNSAFE),
        ({"t": SAFE}, False, False, SAFE),
        ({"other": SAFE}, False, True, UNSAFE),
    ],
)
def test_effects(
    configured: dict[str, ConfiguredEffect], trust_hints: bool, says_repeatable: bool, effect: EffectClass
) -> None:
    settings = McpSettings(reach=Stdio(command="x"), effects=configured, trust_hints=trust_hints)
    [tool] = tools_of("n", settings, [offered("t", is_repeatable=says_repeatable)], call)
    assert tool.effect is effect
    assert ("no harm" if effect is SAFE else "find out") in may_have_happened(tool)


def test_a_place_tells_no_secret() -> None:
    for url in ("https://a.example:8443/s/key/mcp?key=s#x", "https://me:p@ss@a.example:8443/mcp"):
        assert McpSettings(reach=Streamable(url=url)).place == "https://a.example:8443"
    assert McpSettings(reach=Stdio(command="npx", args=("--token", "s"))).place == "npx"
