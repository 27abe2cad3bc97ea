from __future__ import annotations

import math

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.document import same
from pattern_core.memory.schema import (
    COUNT_MAX,
    DEPTH_MAX,
    WHOLE_MAX,
    FieldType,
    canonical,
    excerpt,
    of_type,
    readable,
    typed,
)


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_canonical_sorts_names_and_makes_whole_numbers_whole() -> None:
    value = canonical({"b": 2.0, "a": (1, {"z": None, "y": True}), "c": 1.5, "d": 1e300})
    assert list(value) == ["a", "b", "c", "d"]
    assert value == {"a": [1, {"y": True, "z": None}], "b": 2, "c": 1.5, "d": 1e300}
    assert isinstance(value["b"], int)
    assert list(value["a"][1]) == ["y", "z"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "not-a-number"),
        (-math.inf, "infinity"),
        (WHOLE_MAX + 1, "63 bits"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        ({1: 2}, "names in an object are text"),
        ({1, 2}, "set is no JSON value"),
        (b"x", "bytes is no JSON value"),
        (nested(DEPTH_MAX + 1), "at most 32 deep"),
    ],
)
def test_what_cannot_be_stored(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        canonical([value] if words != "at most 32 deep" else value)


def test_the_bounds_themselves_can_be_stored() -> None:
    assert canonical(-WHOLE_MAX) == -WHOLE_MAX
    assert canonical(nested(DEPTH_MAX)) == nested(DEPTH_MAX)


def test_what_is_stored_is_always_readable() -> None:
    assert readable({"b": [math.nan, b"x", 2.0], "a": "\x00"}) == {"a": "\x00", "b": [None, None, 2]}
    assert readable(nested(500)) == readable(nested(400))


def test_same_tells_true_from_one() -> None:
    assert same({"a": [1, None]}, {"a": [1, None]})
    assert not same([True], [1])
    assert not same(0, False)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (FieldType.TEXT, "a\nb", "a\nb"),
        (FieldType.NUMBER, 1.5, 1.5),
        (FieldType.NUMBER, 2.0, 2),
        (FieldType.BOOLEAN, False, False),
        (FieldType.LIST, ["a", 1, {"b": 2}], ["a", 1, {"b": 2}]),
        (FieldType.TIMESTAMP, "2026-11-21", "2026-11-21"),
        (FieldType.TIMESTAMP, "2026-11-21T23:24:40+01:00", "2026-11-21T22:24:40.000Z"),
        (FieldType.COUNTER, -3, -3),
    ],
)
def test_values_of_each_type(kind: FieldType, value: object, stored: object) -> None:
    found = of_type(value, kind)
    assert same(found, stored)
    assert of_type(found, kind) == found


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (FieldType.TEXT, 1, "it takes text, not 1"),
        (FieldType.NUMBER, True, "a number, not true"),
        (FieldType.NUMBER, "1", "a number"),
        (FieldType.BOOLEAN, 1, "true or false"),
        (FieldType.LIST, "a", "a list such as"),
        (FieldType.TIMESTAMP, "2026-02-30", "a day such as"),
        (FieldType.TIMESTAMP, "2026-11-21T22:24:40", "with its offset"),
        (FieldType.TIMESTAMP, "yesterday", "a day such as"),
        (FieldType.TIMESTAMP, 5, "a day such as"),
        (FieldType.COUNTER, 1.5, "whole numbers"),
        (FieldType.COUNTER, COUNT_MAX + 1, "whole numbers"),
        (FieldType.COUNTER, True, "a whole number"),
    ],
)
def test_values_that_are_of_another_type(kind: FieldType, value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        of_type(value, kind)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (FieldType.TEXT, "5", "5"),
        (FieldType.TEXT, '"quoted"', '"quoted"'),
        (FieldType.NUMBER, "5", 5),
        (FieldType.NUMBER, " 5.5 ", 5.5),
        (FieldType.BOOLEAN, "True", True),
        (FieldType.LIST, '["a"]', ["a"]),
        (FieldType.TIMESTAMP, "2026-11-21", "2026-11-21"),
        (FieldType.COUNTER, "-2", -2),
        (FieldType.NUMBER, "null", None),
        (FieldType.TEXT, " null ", None),
    ],
)
def test_values_as_somebody_writes_them(kind: FieldType, text: str, value: object) -> None:
    assert typed(text, kind) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FieldType.NUMBER, "five"),
        (FieldType.NUMBER, '"5"'),
        (FieldType.BOOLEAN, "yes"),
        (FieldType.LIST, "a, b"),
        (FieldType.LIST, "[" * 100_000),
        (FieldType.NUMBER, "9" * 5_000),
    ],
)
def test_words_that_mean_no_value_of_the_type(kind: FieldType, text: str) -> None:
    with pytest.raises(InvalidInput, match="it takes"):
        typed(text, kind)


def test_whole_numbers_to_count_with() -> None:
    assert of_type(2.0, FieldType.COUNTER) == 2
    assert of_type(COUNT_MAX, FieldType.COUNTER) == COUNT_MAX
    for value in (1.5, COUNT_MAX + 1, False):
        with pytest.raises(InvalidInput):
            of_type(value, FieldType.COUNTER)


def test_excerpts_are_short_and_never_fail() -> None:
    assert excerpt({"a": "ü"}) == '{"a":"ü"}'
    assert len(excerpt("x" * 1000)) <= 61
    assert excerpt(object()) == "object"
