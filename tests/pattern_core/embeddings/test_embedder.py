from __future__ import annotations

import pytest

from pattern_core.embeddings.embedder import (
    AbsentEmbedder,
    EmbedderInfo,
    EmbedderUnavailable,
    checked_vectors,
)
from pattern_core.errors import PatternError
from tests.pattern_core.embeddings.stage import ForgetfulEmbedder, ScriptedEmbedder


def test_the_error_says_when_to_come_back() -> None:
    error = EmbedderUnavailable("Later.", retry_after_s=2.0)
    assert issubclass(EmbedderUnavailable, PatternError)
    assert (error.code, error.message, error.details) == ("embedder_unavailable", "Later.", {"retry_after_s": 2.0})
    assert EmbedderUnavailable("Never.").details == {"retry_after_s": None}
    assert (error.retry_after_s, EmbedderUnavailable("Never.").retry_after_s) == (2.0, None)


async def test_vectors_that_do_not_fit_are_refused() -> None:
    info = EmbedderInfo(provider="p", model="m", dimension=4, fingerprint="f")
    embedder = ScriptedEmbedder(dimension=4)
    assert len(await checked_vectors(embedder, ["a", "b"], info, purpose="query")) == 2
    with pytest.raises(EmbedderUnavailable, match="1 vectors for 2 texts"):
        await checked_vectors(ForgetfulEmbedder(dimension=4), ["a", "b"], info, purpose="query")
    with pytest.raises(EmbedderUnavailable, match="3 numbers instead of 4"):
        await checked_vectors(ScriptedEmbedder(dimension=3), ["a"], info, purpose="query")


async def test_an_absent_one_says_the_same_to_everybody() -> None:
    embedder = AbsentEmbedder("Set this.")
    with pytest.raises(EmbedderUnavailable, match="Set this") as caught:
        await embedder.info()
    assert caught.value.details == {"retry_after_s": None}
    with pytest.raises(EmbedderUnavailable, match="switched off"):
        await AbsentEmbedder().embed(["a"], purpose="query")
    await embedder.aclose()
