"""What a server offers, as an agent's tools: names, descriptions, and answers as the model reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.mcp_servers.settings import McpSettings, Stdio, Streamable, is_server_name
from pattern_core.mcp_servers.tools import (
    DESCRIPTION_CHARS_MAX,
    ERROR_CHARS_MAX,
    SCHEMA_CHARS_MAX,
    SPECS_CHARS_MAX,
    Answer,
    OfferedTool,
    answer_of,
    arguments_of_schema,
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


def test_a_name_stays_as_it_is_or_is_the_same_tomorrow() -> None:
    assert tool_name("github", "create_issue") == "github__create_issue"
    assert tool_name("notes", "find/by tag") == "notes__find_by_tag_54bd90a9"
    for one, other in (("a.b", "a_b"), ("a/b", "a.b"), (LONG + "1", LONG + "2"), ("", "_")):
        assert tool_name("x", one) != tool_name("x", other)


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
        ([{"type": "image", "mimeType": "i/png", "data": "A" * 4000}], None, "[image, i/png, 3,000 bytes: not shown]"),
        ([{"type": "audio", "data": ""}], None, "[audio, of unknown type, 0 bytes: not shown]"),
        (
            [{"type": "resource_link", "uri": "u:a", "name": "a", "description": "the first"}],
            None,
            "[a: u:a] the first",
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


TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "root": {"$ref": "#/$defs/Node"},
        "$defs": {"type": "string"},
        "properties": {"$ref": "#/$defs/Node"},
        "all": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"size": {"type": "integer", "minimum": 0}, "next": {"$ref": "#/$defs/Node"}},
        }
    },
}


def test_references_are_written_out_and_circles_end() -> None:
    node = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}, "next": {}}}
    properties = {
        "root": node,
        "$defs": {"type": "string"},
        "properties": node,
        "all": {"type": "array", "items": node},
    }
    schema = arguments_of_schema(TREE).schema
    assert schema == {
        "type": "object", "properties": properties, "required": ["root"], "additionalProperties": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "'root' is a required property"),
        ({"root": {"size": "3"}}, "`root.size`: '3' is not of type 'integer'"),
        ({"root": {"size": -1}}, "`root.size`"),
        ({"root": {}, "more": 1}, "'more' was unexpected"),
        ({"root": [{"size": "x" * 1000}]}, "…"),
    ],
)
def test_what_does_not_fit_is_said(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        arguments_of_schema(TREE).check(given)
    assert words in refused.value.message
    assert len(refused.value.message) < 500


def test_what_fits_passes_and_a_pattern_is_shown_and_not_computed() -> None:
    given = {"root": {"size": 1, "next": {"anything": True}}, "$defs": "x"}
    assert arguments_of_schema(TREE).check(given) == given
    evil = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    arguments = arguments_of_schema(evil)
    assert arguments.schema["properties"] == evil["properties"]
    arguments.check({"a": "a" * 200 + "!"})


@pytest.mark.parametrize("ban", ["additionalProperties", "unevaluatedProperties"])
def test_a_pattern_for_names_is_not_computed_either(ban: str) -> None:
    named = {
        "type": "object",
        "patternProperties": {"^(a+)+$": {}},
        "properties": {"b": {"type": "string"}},
        ban: False,
    }
    arguments = arguments_of_schema({"type": "object", "properties": {"patternProperties": named}})
    evil = "a" * 200 + "!"
    arguments.check({"patternProperties": {evil: 1}})
    with pytest.raises(InvalidInput, match="not of type 'string'"):
        arguments.check({"patternProperties": {"b": 1, evil: 1}})
    arguments_of_schema(named).check({evil: 1})


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": 5, "required": "x", "additionalProperties": "no"},
        {"type": "object", "properties": {"a": {"$ref": "https://example.org/other.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere/at/all"}}},
        {"type": "object", "properties": {"a": {"type": "number", "minimum": "much"}}},
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    ],
)
def test_a_schema_that_makes_no_sense_is_left_to_its_server(schema: dict[str, object]) -> None:
    arguments = arguments_of_schema(schema)
    assert set(arguments.schema) == {"type", "properties", "required", "additionalProperties"}
    assert arguments.check({"a": 1}) == {"a": 1}
    if "anyOf" in schema:  # it is checked, though no vendor is shown it
        with pytest.raises(InvalidInput):
            arguments.check({"c": 1})


def test_a_long_schema_is_cut_where_it_is_nested_deepest() -> None:
    leaf = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"enum": ["x" * 40]}}}}}
    inner = {"type": "object", "description": "d" * 900, "properties": {str(n): leaf for n in range(3)}}
    arguments = arguments_of_schema({"type": "object", "properties": {f"p{n}": inner for n in range(20)}})
    shown = arguments.schema["properties"]
    assert isinstance(shown, dict)
    assert shown["p7"] == {"type": "object", "description": "d" * 300, "properties": {"0": {}, "1": {}, "2": {}}}
    arguments.check({"p1": {"1": 3}})
    with pytest.raises(InvalidInput):
        arguments.check({"p1": 3})
    wide = {f"property_{n}": {"description": "d" * 200, "default": {"n": n}} for n in range(200)}
    assert arguments_of_schema({"properties": wide}).schema["properties"] == {name: {} for name in wide}
    zone = {"type": "string", "enum": [f"Zone/{n}" for n in range(2_000)]}
    short = {"enum": ["x" * 500], "default": {"a": 1}}
    assert arguments_of_schema({"properties": {"zone": zone, "b": short}}).schema["properties"] == {
        "zone": {"type": "string"}, "b": short
    }  # fmt: skip
    enormous = {"properties": {f"property_{n}": {} for n in range(900)}, "additionalProperties": False}
    assert arguments_of_schema(enormous).schema == {
        "type": "object", "properties": {}, "required": [], "additionalProperties": True
    }  # fmt: skip


def test_a_part_that_is_cut_off_refuses_nothing() -> None:
    node = {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/Node"}, {"not": {"$ref": "#/$defs/Node"}}]}
    value = {"$id": "x", "$ref": "#/$defs/Node"}
    schema = {"properties": {"a": {"$ref": "#/$defs/Node"}, "b": {"const": value}}, "$defs": {"Node": node}}
    arguments = arguments_of_schema(schema)
    assert arguments.schema["properties"] == {
        "a": {"oneOf": [{"type": "string"}, {}, {"not": {}}]}, "b": {"const": value}
    }  # fmt: skip
    arguments.check({"a": "text", "b": value})
    with pytest.raises(InvalidInput):
        arguments.check({"b": {}})


def test_references_that_would_grow_without_end_are_cut() -> None:
    doubled = {
        f"n{n}": {"properties": {"l": {"$ref": f"#/$defs/n{n + 1}"}, "r": {"$ref": f"#/$defs/n{n + 1}"}}}
        for n in range(40)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n0"}}, "$defs": doubled}
    shown = arguments_of_schema(schema).schema
    assert '"a": {"properties": {"l": {"properties": {"l": {"properties"' in json.dumps(shown)
    assert len(json.dumps(shown)) < SCHEMA_CHARS_MAX
    chain = {f"n{n}": {"$ref": f"#/$defs/n{n + 1}"} for n in range(2_000)}
    assert arguments_of_schema({**schema, "$defs": chain}).schema["properties"] == {"a": {}}


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
    configured: dict[str, EffectClass], trust_hints: bool, says_repeatable: bool, effect: EffectClass
) -> None:
    settings = McpSettings(reach=Stdio(command="x"), effects=configured, trust_hints=trust_hints)
    assert settings.effect_of("t", says_repeatable=says_repeatable) is effect


def test_a_place_tells_no_secret() -> None:
    for url in ("https://a.example:8443/s/key/mcp?key=s#x", "https://me:p@ss@a.example:8443/mcp"):
        assert McpSettings(reach=Streamable(url=url)).place == "https://a.example:8443"
    assert McpSettings(reach=Stdio(command="npx", args=("--token", "s"))).place == "npx"


def test_names_of_servers() -> None:
    assert all(is_server_name(name) for name in ("github", "a", "my_notes", "x-1", "a" * 24))
    assert not any(is_server_name(name) for name in ("", "1a", "A", "a__b", "a_", "_a", "a b", "a" * 25, "ä"))
