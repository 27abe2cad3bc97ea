from __future__ import annotations

import pytest

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers.ollama import OllamaDialect, make_ollama
from pattern_core.embeddings.providers.remote import UnusableAnswer
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire import document, serve_wire
from pattern_core.testing.wire_embeddings import DIGEST, DIMENSION, ollama


def settings(url: str, **others: object) -> EmbedderSettings:
    return EmbedderSettings(provider="ollama", base_url=url, **others)  # type: ignore[arg-type]  # names of fields


async def test_the_digest_of_the_weights_is_part_of_the_fingerprint() -> None:
    async with serve_wire(otherwise=ollama) as server:
        embedder = make_ollama(settings(f"{server.url}/v1/", api_key=Secret("key")))
        info = await embedder.info()
        assert (info.provider, info.model, info.dimension) == ("ollama", "nomic-embed-text", DIMENSION)
        assert [request.path for request in server.requests] == ["/api/tags", "/api/embed"]
        assert server.requests[0].method == "GET"
        assert server.requests[1].headers["authorization"] == "Bearer key"
        await embedder.aclose()

    tags = document({"models": [{"name": "nomic-embed-text:latest", "digest": "another"}]})
    async with serve_wire([tags], otherwise=ollama) as server:
        embedder = make_ollama(settings(server.url))
        assert (await embedder.info()).fingerprint != info.fingerprint
        await embedder.aclose()


async def test_texts_carry_the_prefixes_of_the_family() -> None:
    async with serve_wire(otherwise=ollama) as server:
        embedder = make_ollama(settings(server.url))
        assert len(await embedder.embed(["a", "b"], purpose="query")) == 2
        assert server.requests[-1].json() == {
            "model": "nomic-embed-text",
            "input": ["search_query: a", "search_query: b"],
            "truncate": True,
        }
        await embedder.aclose()


async def test_a_model_that_was_never_fetched() -> None:
    async with serve_wire(otherwise=ollama) as server:
        embedder = make_ollama(settings(server.url, model="bge-m3"))
        with pytest.raises(EmbedderUnavailable, match="ollama pull bge-m3") as caught:
            await embedder.info()
        assert caught.value.details == {"retry_after_s": None}
        await embedder.aclose()


def test_the_format() -> None:
    dialect = OllamaDialect(EmbedderSettings(model="nomic-embed-text", dimensions=256))
    assert dialect.digest({"models": [None, {"model": "nomic-embed-text", "digest": DIGEST}]}) == DIGEST
    assert dialect.digest({}) == dialect.digest({"models": [{"name": "other"}]}) == ""
    assert dialect.question(["a"], "passage")[1]["dimensions"] == 256
    assert "base_url" in dialect.advice(500)
    with pytest.raises(UnusableAnswer):
        dialect.vectors({"embedding": [1.0]})
