from __future__ import annotations

import pytest

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers.google import GoogleDialect, make_google
from pattern_core.embeddings.providers.remote import UnusableAnswer
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire import document, serve_wire
from pattern_core.testing.wire_embeddings import google


async def test_queries_and_passages_are_told_apart() -> None:
    async with serve_wire(otherwise=google) as server:
        embedder = make_google(EmbedderSettings(base_url=server.url, api_key=Secret("key"), dimensions=8))
        info = await embedder.info()
        assert (info.provider, info.model, info.dimension) == ("google", "gemini-embedding-001", 8)
        assert len(await embedder.embed(["a", "b"], purpose="query")) == 2
        await embedder.embed(["a"], purpose="passage")
        first, second = server.requests
        assert first.path == "/v1beta/models/gemini-embedding-001:batchEmbedContents"
        assert first.headers["x-goog-api-key"] == "key"
        assert first.json()["requests"] == [
            {
                "model": "models/gemini-embedding-001",
                "taskType": "RETRIEVAL_QUERY",
                "outputDimensionality": 8,
                "content": {"parts": [{"text": text}]},
            }
            for text in ("a", "b")
        ]
        assert b"RETRIEVAL_DOCUMENT" in second.body
        await embedder.aclose()


async def test_what_is_missing_or_refused_is_said() -> None:
    with pytest.raises(EmbedderUnavailable, match="GEMINI_API_KEY"):
        await make_google(EmbedderSettings()).info()
    body = {"error": {"code": 403, "message": "API key not valid.", "status": "PERMISSION_DENIED"}}
    async with serve_wire(otherwise=document(body, status=403)) as server:
        embedder = make_google(EmbedderSettings(base_url=server.url, api_key=Secret("key"), model="models/other"))
        with pytest.raises(EmbedderUnavailable, match="API key not valid"):
            await embedder.info()
        await embedder.aclose()


def test_the_format() -> None:
    dialect = GoogleDialect(EmbedderSettings())
    assert dialect.known_dimension == 3072 and dialect.digest({}) == ""
    with pytest.raises(UnusableAnswer):
        dialect.vectors({"embeddings": [[1.0]]})
    assert "[embeddings]" in dialect.advice(None)
