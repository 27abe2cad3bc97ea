from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import columns
from pattern_db.columns import JSON_DEPTH_MAX, Json, check_depth, from_json, to_json
from pattern_db.connection import open_in_memory

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_there_and_back(value: Json) -> None:
    assert from_json(to_json(value)) == value


def test_text_costs_its_own_bytes_and_sqlite_takes_it() -> None:
    text = to_json({"grüße": "🌍", "n": [1, None]})
    assert text == '{"grüße":"🌍","n":[1,null]}'
    connection = open_in_memory()
    assert connection.execute("SELECT json_valid(?)", (text,)).fetchall() == [(1,)]
    connection.close()


def test_null_is_no_json() -> None:
    assert to_json(None) == "null"
    assert to_json([]) == "[]"
    assert from_json(None) is None


def test_what_json_does_not_have() -> None:
    with pytest.raises(ValueError):
        to_json(float("nan"))
    with pytest.raises(TypeError):
        to_json(b"bytes")


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> Json:
        return {"a": nested(depth - 1)} if depth % 2 else [1, nested(depth - 1)] if depth else "leaf"

    check_depth("leaf")
    check_depth(nested(JSON_DEPTH_MAX))
    with pytest.raises(ValueError, match="64 deep"):
        check_depth(nested(JSON_DEPTH_MAX + 1))


MOMENTS = st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999)


@settings(max_examples=50, deadline=None)
@given(MOMENTS)
def test_times_there_and_back(unix_ms: int) -> None:
    text = columns.iso(unix_ms)
    assert len(text) == columns.TIME_CHARS
    assert columns.unix_ms(text) == unix_ms


@settings(max_examples=50, deadline=None)
@given(MOMENTS, MOMENTS)
def test_order_of_text_is_order_in_time(one: int, other: int) -> None:
    assert (columns.iso(one) < columns.iso(other)) == (one < other)


def test_known_moments() -> None:
    assert columns.iso(0) == "1970-01-01T00:00:00.000Z"
    assert columns.iso(-1) == "1969-12-31T23:59:59.999Z"
    assert columns.iso(1_795_299_880_123) == "2026-11-21T22:24:40.123Z"


def test_other_forms_become_the_one() -> None:
    assert columns.canonical("2026-11-21T22:24:40Z") == "2026-11-21T22:24:40.000Z"
    assert columns.canonical("2026-11-22T00:24:40.123999+02:00") == "2026-11-21T22:24:40.123Z"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-21T22:24:40", "0001-01-01T00:00:00+05:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        columns.canonical(text)


def test_beyond_the_last_year() -> None:
    with pytest.raises(OverflowError):
        columns.iso(253_402_300_800_000)
