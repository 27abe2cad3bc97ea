from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db.columns import JSON_DEPTH_MAX, Json, check_depth, from_json, to_json, to_json_or_null
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
    assert to_json_or_null(None) is None
    assert to_json_or_null([]) == "[]"
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
