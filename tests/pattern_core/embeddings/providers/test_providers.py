from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers import EMBEDDERS, make_embedder
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.errors import InvalidInput


@pytest.mark.parametrize("provider", sorted(EMBEDDERS))
async def test_every_provider_is_made_without_asking_anybody(provider: str) -> None:
    embedder = make_embedder(EmbedderSettings(provider=provider))
    await embedder.aclose()


@pytest.mark.parametrize("provider", ["none", "compatible", "openai", "google"])
async def test_what_is_not_configured_says_so(provider: str) -> None:
    with pytest.raises(EmbedderUnavailable, match=r"\[embeddings\]"):
        await make_embedder(EmbedderSettings(provider=provider)).info()


async def test_the_deterministic_one_takes_a_length() -> None:
    embedder = make_embedder(EmbedderSettings(provider="deterministic", dimensions=16))
    info = await embedder.info()
    assert (info.provider, info.model, info.dimension) == ("deterministic", "hashed-words", 16)
    assert [len(vector) for vector in await embedder.embed(["a"], purpose="query")] == [64]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'lokal'; there are compatible"):
        make_embedder(EmbedderSettings(provider="lokal"))


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
