"""What the services differ in: addresses, keys, bodies, answers and advice."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from pattern_core.embeddings.embedder import Embedder, EmbedderUnavailable
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.providers.services import make_google, make_ollama, make_openai, openai
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret
from pattern_core.testing.wire import document, serve_wire
from pattern_core.testing.wire_embeddings import DIGEST, DIMENSION, google, ollama, openai_vectors, refusal

KEY = Secret("sk-secret")


async def test_openai_is_asked_and_authenticates() -> None:
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


async def test_the_vendors_own_models_are_known_without_a_question() -> None:
    embedder = make_openai(EmbedderSettings(provider="openai", api_key=KEY))
    info = await embedder.info()
    assert (info.provider, info.model, info.dimension) == ("openai", "text-embedding-3-small", 1536)
    shorter = make_openai(EmbedderSettings(provider="openai", api_key=KEY, dimensions=256))
    assert (await shorter.info()).dimension == 256
    assert (await shorter.info()).fingerprint != info.fingerprint
    assert (await make_google(EmbedderSettings(api_key=KEY)).info()).dimension == 3072


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
    assert openai(settings).body(["a"], "passage")["input"] == ["passage: a"]
    plain = EmbedderSettings(provider="compatible", base_url="http://x", model="e5-small", passage_prefix="")
    assert openai(plain).body(["a"], "passage")["input"] == ["a"]
    assert openai(plain).identity != openai(settings).identity


async def test_google_tells_queries_and_passages_apart() -> None:
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


async def test_what_google_misses_or_refuses_is_said() -> None:
    with pytest.raises(EmbedderUnavailable, match="GEMINI_API_KEY"):
        await make_google(EmbedderSettings()).info()
    body = {"error": {"code": 403, "message": "API key not valid.", "status": "PERMISSION_DENIED"}}
    async with serve_wire(otherwise=document(body, status=403)) as server:
        embedder = make_google(EmbedderSettings(base_url=server.url, api_key=Secret("key"), model="models/other"))
        with pytest.raises(EmbedderUnavailable, match="API key not valid"):
            await embedder.info()
        await embedder.aclose()


def of_ollama(url: str, **others: object) -> EmbedderSettings:
    return EmbedderSettings(provider="ollama", base_url=url, **others)  # type: ignore[arg-type]  # names of fields


async def test_the_digest_of_the_weights_is_part_of_the_fingerprint() -> None:
    async with serve_wire(otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(f"{server.url}/v1/", api_key=Secret("key")))
        info = await embedder.info()
        assert (info.provider, info.model, info.dimension) == ("ollama", "nomic-embed-text", DIMENSION)
        assert [request.path for request in server.requests] == ["/api/tags", "/api/embed"]
        assert server.requests[0].method == "GET"
        assert server.requests[1].headers["authorization"] == "Bearer key"
        await embedder.aclose()

    tags = document({"models": [{"name": "nomic-embed-text:latest", "digest": "another"}]})
    async with serve_wire([tags], otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(server.url))
        assert (await embedder.info()).fingerprint != info.fingerprint
        await embedder.aclose()


async def test_ollama_s_texts_carry_the_prefixes_of_the_family() -> None:
    async with serve_wire(otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(server.url))
        assert len(await embedder.embed(["a", "b"], purpose="query")) == 2
        assert server.requests[-1].json() == {
            "model": "nomic-embed-text",
            "input": ["search_query: a", "search_query: b"],
            "truncate": True,
        }
        await embedder.aclose()


async def test_a_model_that_was_never_fetched() -> None:
    async with serve_wire(otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(server.url, model="bge-m3"))
        with pytest.raises(EmbedderUnavailable, match="ollama pull bge-m3") as caught:
            await embedder.info()
        assert caught.value.details == {"retry_after_s": None}
        await embedder.aclose()


async def test_ollama_may_shorten_vectors_and_not_tell_the_digest() -> None:
    tags = [{"models": [None, {"model": "nomic-embed-text", "digest": DIGEST}]}, {}, {"models": [{"name": "other"}]}]
    fingerprints = []
    for told in tags:
        async with serve_wire([document(told)], otherwise=ollama) as server:
            embedder = make_ollama(of_ollama(server.url, dimensions=DIMENSION))
            fingerprints.append((await embedder.info()).fingerprint)
            await embedder.embed(["a"], purpose="passage")
            assert server.requests[-1].json()["dimensions"] == DIMENSION
            await embedder.aclose()
    assert fingerprints[0] != fingerprints[1] == fingerprints[2]


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (make_openai, {"data": "none"}),
        (make_google, {"embeddings": [[1.0]]}),
        (make_ollama, {"embedding": [1.0]}),
    ],
)
async def test_an_answer_in_another_format_is_none(
    make: Callable[[EmbedderSettings], Embedder], answer: dict[str, object]
) -> None:
    async with serve_wire(otherwise=document(answer)) as server:
        embedder = make(EmbedderSettings(model="m", base_url=server.url, api_key=KEY, dimensions=1))
        with pytest.raises(EmbedderUnavailable, match="there is no list of embeddings"):
            await embedder.embed(["a"], purpose="query")
        await embedder.aclose()
