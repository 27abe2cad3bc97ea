"""Schemas that every vendor accepts, and checks that tell a model what to mend."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from pattern_core.errors import InvalidInput
from pattern_core.tools.tool import Arguments, arguments_of


class Colour(enum.StrEnum):
    """A choice by enumeration."""

    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """A nested object."""

    title: str
    near: list[str] = []


class Loop(BaseModel):
    """A type that contains itself."""

    next: Loop | None = None


async def paint(
    context: object,
    label: Annotated[str, "What to paint."],
    mode: Annotated[Literal["first", "all"], "How."] = "first",
    times: int = 1,
    share: float | None = None,
    colour: Colour = Colour.RED,
    places: list[Place] | None = None,
    wet: bool = False,
) -> str:
    """Paint."""
    return "painted"


def test_schema_is_plain_json_schema_without_references() -> None:
    schema = arguments_of(paint).schema
    assert schema == {
        "type": "object",
        "properties": {
            "label": {"type": "string", "description": "What to paint."},
            "mode": {"type": "string", "enum": ["first", "all"], "default": "first", "description": "How."},
            "times": {"type": "integer", "default": 1},
            "share": {"type": "number"},
            "colour": {
                "type": "string",
                "enum": ["red", "blue"],
                "default": "red",
                "description": "A choice by enumeration.",
            },
            "places": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "A nested object.",
                    "properties": {
                        "title": {"type": "string"},
                        "near": {"type": "array", "items": {"type": "string"}, "default": []},
                    },
                    "required": ["title"],
                    "additionalProperties": False,
                },
            },
            "wet": {"type": "boolean", "default": False},
        },
        "required": ["label"],
        "additionalProperties": False,
    }


def test_check_fills_defaults_and_types() -> None:
    checked = arguments_of(paint).check({"label": "wall", "colour": "blue", "share": 1, "places": None})
    assert checked == {
        "label": "wall",
        "mode": "first",
        "times": 1,
        "share": 1.0,
        "colour": Colour.BLUE,
        "places": None,
        "wet": False,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`label` is missing"),
        ({"label": 3}, "`label` must be text, not 3"),
        ({"label": "x", "times": "3"}, '`times` must be a whole number, not "3"'),
        ({"label": "x", "times": 3.5}, "`times` must be a whole number"),
        ({"label": "x", "wet": "yes"}, '`wet` must be true or false, not "yes"'),
        ({"label": "x", "mode": "some"}, "`mode` must be 'first' or 'all', not \"some\""),
        ({"label": "x", "colour": "pink"}, "`colour` must be 'red' or 'blue'"),
        ({"label": "x", "size": 1}, "`size` is not known (known are: `label`, `mode`"),
        ({"label": "x", "places": [{"title": 1}]}, "`places.0.title` must be text"),
        ({"label": "x", "places": [{"title": "y", "far": 1}]}, "`places.0.far` is not known"),
        ({"label": "x", "share": float("nan")}, "`share` must be a finite number"),
        ({"label": "\ud800"}, "not valid Unicode"),
        ({"label": object()}, "not JSON"),
    ],
)
def test_each_misfit_is_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        arguments_of(paint).check(arguments)
    assert words in caught.value.message


def test_all_misfits_are_named_at_once_and_long_values_are_cut() -> None:
    with pytest.raises(InvalidInput) as caught:
        arguments_of(paint).check({"label": ["x" * 500], "times": None, "bad": 1})
    message = caught.value.message
    assert "`label`" in message and "`times`" in message and "`bad`" in message
    assert len(message) < 400


def test_many_misfits_are_counted() -> None:
    with pytest.raises(InvalidInput, match="and 11 more"):
        arguments_of(paint).check({f"x{number}": 1 for number in range(20)})


def test_a_tool_without_arguments() -> None:
    async def now(context: object) -> str:
        """The time."""
        return ""

    arguments = arguments_of(now)
    assert arguments.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert arguments.check({}) == {}


def test_functions_that_cannot_be_tools_are_refused() -> None:
    async def bare(context: object, label) -> str:  # type: ignore[no-untyped-def]  # the missing annotation is the point
        return ""

    async def variadic(context: object, *labels: str) -> str:
        return ""

    async def recursive(context: object, loop: Loop) -> str:
        return ""

    with pytest.raises(ValueError, match="needs an annotation"):
        arguments_of(bare)
    with pytest.raises(ValueError, match="cannot be given by name"):
        arguments_of(variadic)
    with pytest.raises(ValueError, match="contains itself"):
        arguments_of(recursive)


def test_without_a_model_the_words_of_whoever_knows_decide() -> None:
    def misfits(arguments: Mapping[str, object]) -> list[str]:
        return [f"`{name}` is odd" for name in arguments if name != "even"]

    arguments = Arguments(schema={"type": "object"}, misfits=misfits)
    assert arguments.check({"even": 2}) == {"even": 2}
    with pytest.raises(InvalidInput, match=r"the arguments do not fit: `a` is odd; .*; and 2 more"):
        arguments.check(dict.fromkeys("abcdefghijkl", 1))
    assert Arguments(schema={}).check({"a": 1}) == {"a": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["label", "mode", "times", "share", "colour", "places", "?"]), json_values))
def test_whatever_a_model_sends_is_checked_or_refused(arguments: dict[str, object]) -> None:
    try:
        checked = arguments_of(paint).check(arguments)
    except InvalidInput as error:
        assert error.message
    else:
        assert isinstance(checked["label"], str)


@dataclass
class Point:
    """A nested dataclass."""

    x: int
    y: int = 0


class Round(BaseModel):
    """One of two shapes."""

    kind: Literal["round"]
    radius: int


class Square(BaseModel):
    """The other one."""

    kind: Literal["square"]
    side: int


async def draw(
    context: object,
    shape: Annotated[Round | Square, Field(discriminator="kind")],
    at: Point | None = None,
    names: dict[str, str] = {"title": "t"},  # noqa: B006 - never changed
) -> str:
    """Draw."""
    return "drawn"


def test_what_is_within_is_as_plain_and_as_closed() -> None:
    schema = arguments_of(draw).schema
    assert "#/$defs" not in json.dumps(schema)
    properties = cast("Mapping[str, Any]", schema["properties"])
    assert properties["names"]["default"] == {"title": "t"}
    assert [one["additionalProperties"] for one in properties["shape"]["oneOf"]] == [False, False]
    assert properties["at"]["required"] == ["x"]
    square = {"kind": "square", "side": 2}
    checked = arguments_of(draw).check({"shape": square, "at": {"x": 1}})
    assert checked == {"shape": Square(kind="square", side=2), "at": Point(1, 0), "names": {"title": "t"}}
    for arguments, words in (
        ({"shape": square, "at": {"x": "1"}}, "`at.x` must be a whole number"),
        ({"shape": square, "at": {"x": 1, "z": 1}}, "`at.z` is not known"),
        ({"shape": {**square, "radius": 1}}, "`shape.square.radius` is not known"),
    ):
        with pytest.raises(InvalidInput, match=words):
            arguments_of(draw).check(arguments)
