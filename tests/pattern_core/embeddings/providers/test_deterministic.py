from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.embedder import Embedder, EmbedderUnavailable
from pattern_core.embeddings.providers.deterministic import DeterministicEmbedder, hashed_words


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


async def test_it_is_an_embedder_that_remembers_and_can_fail() -> None:
    embedder = DeterministicEmbedder(dimension=4, fingerprint="f")
    seen_as: Embedder = embedder
    info = await seen_as.info()
    assert (info.provider, info.model, info.dimension, info.fingerprint) == ("deterministic", "hashed-words", 4, "f")
    assert await seen_as.embed(["a", "b"], purpose="query") == [hashed_words("a", 4), hashed_words("b", 4)]
    assert embedder.asked == [("query", ["a", "b"])]
    embedder.failure = EmbedderUnavailable("gone")
    with pytest.raises(EmbedderUnavailable, match="gone"):
        await seen_as.info()
    with pytest.raises(EmbedderUnavailable, match="gone"):
        await seen_as.embed(["a"], purpose="passage")
    await seen_as.aclose()
