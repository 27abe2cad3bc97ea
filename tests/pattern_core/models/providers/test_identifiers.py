from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.models.providers.identifiers import nine_id, plain_id, plain_name, short_id

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)


@settings(max_examples=50, deadline=None)
@given(texts)
def test_whatever_came_fits_and_is_the_same_each_time(text: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", plain_name(text))
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", plain_id(text, 64))
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", nine_id(text))
    assert len(short_id(text, 40)) <= 40
    assert plain_id(plain_id(text, 64), 64) == plain_id(text, 64)


def test_what_fits_is_left_alone_and_what_does_not_is_told_apart() -> None:
    assert plain_name("search_web-2") == "search_web-2"
    assert (short_id("functions.search:0", 40), nine_id("abcDEF123")) == ("functions.search:0", "abcDEF123")
    assert plain_id("a.b", 64) == "a_b"
    assert short_id("x" * 41, 40) != short_id("x" * 42, 40)
    assert nine_id("call_1") != nine_id("call_2")
