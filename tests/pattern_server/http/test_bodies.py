"""Cursors, pages and strictness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pattern_core.errors import InvalidInput
from pattern_server.http.app import api_routes
from pattern_server.http.blocks import BlockRequest
from pattern_server.http.bodies import Paging, RequestModel, decode_cursor, encode_cursor
from pattern_server.http.routes.messages import MessageRequest

PRINTABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(PRINTABLE, min_size=1, max_size=3))
def test_cursors_come_back(place: list[str]) -> None:
    cursor = encode_cursor(*place)
    assert cursor.isascii()
    assert decode_cursor(cursor, len(place)) == tuple(place)


@given(st.text(max_size=30))
def test_no_text_is_more_than_invalid(text: str) -> None:
    try:
        place = decode_cursor(text, 2)
    except InvalidInput as error:
        assert error.message
    else:
        assert place is not None
        assert decode_cursor(encode_cursor(*place), 2) == place


def test_cursors_of_another_list_are_refused() -> None:
    with pytest.raises(InvalidInput):
        decode_cursor(encode_cursor("a"), 2)
    assert decode_cursor(None, 2) is None


@given(st.lists(st.tuples(PRINTABLE, PRINTABLE), unique=True, max_size=30), st.integers(1, 7))
def test_pages_show_each_row_once_in_order(rows: list[tuple[str, str]], limit: int) -> None:
    seen: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = Paging(limit, cursor).of_all(rows, lambda row: row)
        assert len(page["items"]) <= limit
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(rows)


def test_all_that_is_asked_is_strict() -> None:
    assert api_routes()  # imports all that ask for something
    asked = RequestModel.__subclasses__()
    assert len(asked) > 5
    for kind in asked:
        assert kind.model_config["strict"]
        assert kind.model_config["extra"] == "forbid"


def test_enums_come_as_their_values_and_numbers_as_numbers() -> None:
    assert BlockRequest.model_validate({"label": "x", "permission": "append"}).permission == "append"
    for body in ({"content": "x", "priority": "1"}, {"content": "x", "priority": True}, {"content": 5}):
        with pytest.raises(ValidationError):
            MessageRequest.model_validate(body)
