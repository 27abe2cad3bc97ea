from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.providers.deterministic import hashed_words


def similarity(one: str, other: str) -> float:
    rows = [struct.unpack("<64f", hashed_words(text, 64)) for text in (one, other)]
    return float(sum(a * b for a, b in zip(*rows, strict=True)))


@given(st.text(), st.integers(1, 20))
def test_vectors_have_unit_length(text: str, dimension: int) -> None:
    vector = struct.unpack(f"<{dimension}f", hashed_words(text, dimension))
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)


def test_texts_that_share_words_are_near() -> None:
    assert similarity("the cat sat", "The CAT, sat!") == pytest.approx(1, abs=1e-6)
    assert similarity("the cat sat", "the cat ran") > 0.5 > abs(similarity("the cat sat", "green tea"))
