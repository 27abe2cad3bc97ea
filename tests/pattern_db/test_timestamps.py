from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import timestamps

MOMENTS = st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999)


@settings(max_examples=50, deadline=None)
@given(MOMENTS)
def test_there_and_back(unix_ms: int) -> None:
    text = timestamps.iso(unix_ms)
    assert len(text) == timestamps.LENGTH
    assert timestamps.unix_ms(text) == unix_ms


@settings(max_examples=50, deadline=None)
@given(MOMENTS, MOMENTS)
def test_order_of_text_is_order_in_time(one: int, other: int) -> None:
    assert (timestamps.iso(one) < timestamps.iso(other)) == (one < other)


def test_known_moments() -> None:
    assert timestamps.iso(0) == "1970-01-01T00:00:00.000Z"
    assert timestamps.iso(-1) == "1969-12-31T23:59:59.999Z"
    assert timestamps.iso(1_795_299_880_123) == "2026-11-21T22:24:40.123Z"


def test_other_forms_become_the_one() -> None:
    assert timestamps.canonical("2026-11-21T22:24:40Z") == "2026-11-21T22:24:40.000Z"
    assert timestamps.canonical("2026-11-22T00:24:40.123999+02:00") == "2026-11-21T22:24:40.123Z"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-21T22:24:40", "0001-01-01T00:00:00+05:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        timestamps.canonical(text)


def test_beyond_the_last_year() -> None:
    with pytest.raises(OverflowError):
        timestamps.iso(253_402_300_800_000)
