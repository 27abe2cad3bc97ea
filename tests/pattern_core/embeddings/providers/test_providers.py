from __future__ import annotations

import pytest

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers import EMBEDDERS, make_embedder
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
