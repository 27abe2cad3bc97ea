from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.unit import NotAVector, unit_vector


@given(st.lists(st.floats(-1e30, 1e30) | st.integers(-(10**6), 10**6), min_size=1, max_size=40))
def test_vectors_have_unit_length_and_keep_their_direction(values: list[float]) -> None:
    if not math.hypot(*values):
        with pytest.raises(NotAVector):
            unit_vector(values)
        return
    found = struct.unpack(f"<{len(values)}f", unit_vector(values))
    assert math.hypot(*found) == pytest.approx(1, abs=1e-5)
    assert all(one * other >= 0 for one, other in zip(values, found, strict=True))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "no list"),
        ("1, 2", "no list"),
        ([], "no list"),
        ({"a": 1}, "no list"),
        ([1.0, None], "no number"),
        ([1.0, "2"], "no number"),
        ([True], "no number"),
        ([math.nan, 1.0], "not finite"),
        ([math.inf, 1.0], "not finite"),
        ([10**400], "too large"),
        ([0, 0.0], "zero"),
    ],
)
def test_what_cannot_be_compared_is_refused(values: object, words: str) -> None:
    with pytest.raises(NotAVector, match=words):
        unit_vector(values)
