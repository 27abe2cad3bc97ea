"""Schemas of strangers: plain for the model, complete for the check, harmless for us."""

from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.mcp_servers.tools import SCHEMA_CHARS_MAX, arguments_of_schema

TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}, "$defs": {"type": "string"}},
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
    schema = arguments_of_schema(TREE).schema
    assert schema == {
        "type": "object",
        "properties": {
            "root": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}, "next": {}}},
            "$defs": {"type": "string"},
        },
        "required": ["root"],
        "additionalProperties": False,
    }


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


def test_what_fits_passes_as_it_is() -> None:
    given = {"root": {"size": 1, "next": {"anything": True}}, "$defs": "x"}
    assert arguments_of_schema(TREE).check(given) == given


def test_a_pattern_is_told_and_not_computed() -> None:
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


def test_a_choice_at_the_top_is_checked_though_no_vendor_is_shown_it() -> None:
    arguments = arguments_of_schema({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"})
    with pytest.raises(InvalidInput):
        arguments.check({"c": 1})


def test_a_long_schema_is_shown_in_outline() -> None:
    inner = {"type": "object", "description": "d" * 900, "properties": {str(n): {"type": "string"} for n in range(9)}}
    arguments = arguments_of_schema({"type": "object", "properties": {f"p{n}": inner for n in range(20)}})
    shown = arguments.schema["properties"]
    assert isinstance(shown, dict)
    assert shown["p7"] == {"type": "object", "description": "d" * 300}
    with pytest.raises(InvalidInput):
        arguments.check({"p1": {"3": 3}})


def test_an_enormous_one_is_not_shown_at_all() -> None:
    many = {f"property_{n}": {"description": "d" * 200} for n in range(900)}
    assert arguments_of_schema({"type": "object", "properties": many}).schema["properties"] == {}


def test_references_that_would_grow_without_end_are_given_up() -> None:
    doubled = {
        f"n{n}": {"properties": {"l": {"$ref": f"#/$defs/n{n + 1}"}, "r": {"$ref": f"#/$defs/n{n + 1}"}}}
        for n in range(40)
    }
    arguments = arguments_of_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/n0"}}, "$defs": doubled})
    assert len(json.dumps(arguments.schema)) < SCHEMA_CHARS_MAX
