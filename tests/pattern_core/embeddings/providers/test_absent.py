from __future__ import annotations

import pytest

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers.absent import AbsentEmbedder


async def test_it_says_the_same_to_everybody() -> None:
    embedder = AbsentEmbedder("Set this.")
    with pytest.raises(EmbedderUnavailable, match="Set this") as caught:
        await embedder.info()
    assert caught.value.details == {"retry_after_s": None}
    with pytest.raises(EmbedderUnavailable, match="switched off"):
        await AbsentEmbedder().embed(["a"], purpose="query")
    await embedder.aclose()
