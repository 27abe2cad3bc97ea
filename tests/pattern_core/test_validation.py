"""What does not fit in a value from outside is named, with what would fit and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from pattern_core.errors import InvalidInput
from pattern_core.validation import EXCERPT_CHARS, MISFITS_MAX, column_time, must, names_in, read, without_null


@dataclass(frozen=True, slots=True)
class Parcel:
    label: str
    weight: Annotated[float, Field(gt=0)] = 1.0
    mode: Literal["slow", "fast"] = "slow"
    stops: tuple[str, ...] = ()


PARCEL = TypeAdapter(Parcel)


def known(place: Sequence[Any]) -> list[str]:
    return ["label"] if not place else []


def test_json_becomes_the_type_and_nothing_is_converted() -> None:
    assert read(PARCEL, {"label": "x", "weight": 2, "stops": ["a"]}, known) == Parcel("x", 2.0, "slow", ("a",))
    assert read(PARCEL, {"label": "x", "colour": "red"}, known, ignores_unknown=True) == Parcel("x")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "`parcel.label` is missing"),
        ({"label": 3}, "`parcel.label` must be text, not 3"),
        ({"label": "x", "weight": "3"}, '`parcel.weight` must be a number, not "3"'),
        ({"label": "x", "weight": 0}, "`parcel.weight` must be more than 0, not 0"),
        ({"label": "x", "mode": "medium"}, "`parcel.mode` must be 'slow' or 'fast', not \"medium\""),
        ({"label": "x", "stops": {}}, "`parcel.stops` must be a list, not {}"),
        ({"label": "x", "stops": [1]}, "`parcel.stops.0` must be text"),
        ({"label": "x", "colour": 1}, "`parcel.colour` is not known (known are: `label`)"),
        ([], "`parcel` must be an object, not []"),
        ({"label": "\ud800"}, "not valid Unicode"),
        ({"label": object()}, "parcel is not JSON"),
        ({"label": ["x" * 100]}, f'`parcel.label` must be text, not ["{"x" * (EXCERPT_CHARS - 2)}…'),
    ],
)
def test_each_misfit_is_named(value: object, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(PARCEL, value, known, place="parcel")
    assert words in refused.value.message


def test_the_first_misfits_are_named_and_the_others_counted() -> None:
    def refusal(count: int) -> str:
        with pytest.raises(InvalidInput) as refused:
            read(PARCEL, {"label": "x", "stops": [1] * count}, known, place="parcel")
        return refused.value.message

    assert refusal(2) == "`parcel.stops.0` must be text, not 1; `parcel.stops.1` must be text, not 1"
    assert refusal(MISFITS_MAX + 2).count(";") == MISFITS_MAX and refusal(MISFITS_MAX + 2).endswith("; and 2 more")


def test_times_are_read_with_their_offset() -> None:
    assert column_time("2026-01-01T01:00:00+01:00", "since") == "2026-01-01T00:00:00.000Z"
    assert column_time("2024-04-01", "since") == "2024-04-01T00:00:00.000Z"
    assert column_time(None, "since") is None
    with pytest.raises(InvalidInput, match="`since` is not a valid time"):
        column_time("soon", "since")


def test_members_that_are_null_stand_for_the_default() -> None:
    assert without_null({"a": None, "b": 0, "c": {"d": None}}) == {"b": 0, "c": {"d": None}}
    assert without_null([None]) == [None]


def test_the_names_of_an_object_are_found_at_its_place() -> None:
    @dataclass(frozen=True)
    class Van:
        first: Parcel
        rest: tuple[Parcel, ...]

    known = names_in(Van)
    assert known(()) == ["first", "rest"]
    assert known(("rest", 3)) == known(("first",)) == ["label", "weight", "mode", "stops"]
    with pytest.raises(InvalidInput) as refused:
        read(TypeAdapter(Van), {"first": {"label": "x", "colour": 1}, "rest": [], "wheels": 4}, known)
    assert refused.value.message == (
        "`first.colour` is not known (known are: `label`, `weight`, `mode`, `stops`);"
        " `wheels` is not known (known are: `first`, `rest`)"
    )
    assert known(("first", "label")) == known(("rest",)) == known(("none", "more")) == []


def test_a_value_without_a_property_is_refused_and_none_is_no_value() -> None:
    even = TypeAdapter(Annotated[int | None, must(lambda number: number % 2 == 0, "must be even")])
    assert [even.validate_python(value) for value in (4, None)] == [4, None]
    with pytest.raises(ValidationError, match="must be even"):
        even.validate_python(3)
