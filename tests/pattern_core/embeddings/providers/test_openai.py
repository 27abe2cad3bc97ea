from __future__ import annotations

import struct

import pytest

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.providers.openai import OpenAIDialect, make_openai
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire import serve_wire
from pattern_core.testing.wire_embeddings import openai_vectors, refusal

KEY = Secret("sk-secret")


async def test_it_asks_and_authenticates() -> None:
    async with serve_wire(otherwise=openai_vectors()) as server:
        settings = EmbedderSettings(
            provider="compatible", model="m", base_url=f"{server.url}/v1", api_key=KEY, dimensions=4
        )
        embedder = make_openai(settings)
        vectors = await embedder.embed(["a b", "c"], purpose="query")
        await embedder.aclose()
        (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/v1/embeddings")
        assert request.headers["authorization"] == "Bearer sk-secret"
        assert request.json() == {"model": "m", "input": ["a b", "c"], "encoding_format": "float", "dimensions": 4}
        expected = [value for text in ("a b", "c") for value in struct.unpack("<4f", hashed_words(text, 4))]
        assert struct.unpack("<8f", b"".join(vectors)) == pytest.approx(expected, abs=1e-6)


async def test_a_refusal_is_translated_without_the_key() -> None:
    async with serve_wire(otherwise=refusal(401, "Incorrect API key provided: sk-secret")) as server:
        embedder = make_openai(EmbedderSettings(provider="mine", model="m", base_url=server.url, api_key=KEY))
        with pytest.raises(EmbedderUnavailable, match=r"mine answered 401: .*: \*\*\* Check") as caught:
            await embedder.info()
        await embedder.aclose()
        assert "sk-secret" not in str(caught.value)


async def test_a_server_that_is_down_is_named() -> None:
    async with serve_wire() as server:
        url = server.url
    embedder = make_openai(EmbedderSettings(provider="compatible", model="m", base_url=url, dimensions=4))
    with pytest.raises(EmbedderUnavailable, match=url.removeprefix("http://")):
        await embedder.embed(["a"], purpose="query")
    await embedder.aclose()


async def test_openais_own_models_are_known_without_a_question() -> None:
    embedder = make_openai(EmbedderSettings(provider="openai", api_key=KEY))
    info = await embedder.info()
    assert (info.provider, info.model, info.dimension) == ("openai", "text-embedding-3-small", 1536)
    shorter = make_openai(EmbedderSettings(provider="openai", api_key=KEY, dimensions=256))
    assert (await shorter.info()).dimension == 256
    assert (await shorter.info()).fingerprint != info.fingerprint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (EmbedderSettings(provider="openai"), "OPENAI_API_KEY"),
        (EmbedderSettings(provider="openai", base_url="http://127.0.0.1:1"), "Name the model"),
    ],
)
async def test_what_is_missing_is_said(settings: EmbedderSettings, words: str) -> None:
    with pytest.raises(EmbedderUnavailable, match=words):
        await make_openai(settings).info()


async def test_another_server_is_not_told_the_account_at_openai() -> None:
    async with serve_wire(otherwise=openai_vectors()) as server:
        account = {"openai-organization": "org-1"}
        settings = EmbedderSettings(provider="mine", model="m", base_url=server.url, dimensions=4, account=account)
        embedder = make_openai(settings)
        await embedder.embed(["a"], purpose="query")
        await embedder.aclose()
        assert "openai-organization" not in server.requests[0].headers
        assert "authorization" not in server.requests[0].headers


def test_families_get_their_prefixes_unless_configured() -> None:
    settings = EmbedderSettings(provider="compatible", base_url="http://x", model="intfloat/e5-small")
    _, body = OpenAIDialect(settings).question(["a"], "passage")
    assert body["input"] == ["passage: a"]
    plain = EmbedderSettings(provider="compatible", base_url="http://x", model="e5-small", passage_prefix="")
    assert OpenAIDialect(plain).question(["a"], "passage")[1]["input"] == ["a"]
    assert OpenAIDialect(plain).identity != OpenAIDialect(settings).identity
