from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.embedder import TEXTS_MAX, Embedder, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.providers.remote import RemoteEmbedder, unit_vector
from pattern_core.embeddings.providers.services import make_google, make_ollama, make_openai, openai
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.draft import Malformed
from pattern_core.models.providers.settings import Secret
from pattern_core.models.throttle import RetryPolicy
from pattern_core.testing import StoppedClock
from pattern_core.testing.wire import Entry, Play, WireServer, document
from pattern_core.testing.wire_embeddings import DIGEST, DIMENSION, google, numbers, ollama, openai_vectors
from pattern_core.testing.wire_openai import refuses

QUICK = RetryPolicy(base_s=0.01, cap_s=0.02)


@asynccontextmanager
async def served(
    *script: Entry,
    otherwise: Entry | None = None,
    dimensions: int | None = DIMENSION,
    timeout_s: float = 30.0,
    retry: RetryPolicy = QUICK,
) -> AsyncIterator[tuple[RemoteEmbedder, WireServer]]:
    """An embedder that asks a scripted server over a plain socket."""
    async with WireServer(script, otherwise or openai_vectors()) as server:
        embedder = asking(server.url, dimensions=dimensions, timeout_s=timeout_s, retry=retry)
        try:
            yield embedder, server
        finally:
            await embedder.aclose()


def asking(
    url: str, *, dimensions: int | None = DIMENSION, timeout_s: float = 30.0, retry: RetryPolicy = QUICK
) -> RemoteEmbedder:
    settings = EmbedderSettings(
        provider="compatible", model="m", base_url=url, dimensions=dimensions, timeout_s=timeout_s
    )
    return RemoteEmbedder(openai(settings), settings, retry=retry, clock=StoppedClock())


async def refused(*script: Entry, otherwise: Entry | None = None) -> EmbedderUnavailable:
    async with served(*script, otherwise=otherwise) as (embedder, _):
        with pytest.raises(EmbedderUnavailable) as caught:
            await embedder.embed(["a", "b"], purpose="passage")
        return caught.value


def answer(*vectors: object) -> Play:
    return document({"data": [{"embedding": vector} for vector in vectors]})


async def test_vectors_are_brought_to_unit_length_and_keep_their_order() -> None:
    async with served(otherwise=openai_vectors(backwards=True)) as (embedder, server):
        texts = [f"text {n}" for n in range(TEXTS_MAX)]
        vectors = await embedder.embed(texts, purpose="passage")
        assert len(server.requests) == 1
        for text, vector in zip(texts, vectors, strict=True):
            assert struct.unpack("<8f", vector) == pytest.approx(struct.unpack("<8f", hashed_words(text, 8)), abs=1e-6)


async def test_the_dimension_is_asked_for_once_where_nothing_tells_it() -> None:
    async with served(dimensions=None) as (embedder, server):
        info = await embedder.info()
        assert (info.provider, info.model, info.dimension) == ("compatible", "m", DIMENSION)
        assert await embedder.info() is info and len(server.requests) == 1


async def test_the_fingerprint_is_of_address_model_and_length() -> None:
    async with served() as (one, _), served() as (other, _), served(dimensions=4) as (shorter, _):
        fingerprints = {(await embedder.info()).fingerprint for embedder in (one, other, shorter)}
        assert len(fingerprints) == 3 and all(len(fingerprint) == 64 for fingerprint in fingerprints)


@pytest.mark.parametrize(
    "first",
    [
        refuses(429, "slow down", headers={"retry-after-ms": "10"}),
        refuses(503, "loading"),
        refuses(500, "oops"),
        Play(chunks=(b'{"data": [',), stops_after=5),
        Play(chunks=(b"<html>",)),
        answer(numbers("a")),
        answer(numbers("a"), [float("nan")] * 8),
        answer(numbers("a"), [1e39] * 8 + ["x"]),
        answer(numbers("a"), None),
        document({"data": "none"}),
        document({"data": [{"index": 0, "embedding": numbers("a")}, {"index": 0, "embedding": numbers("b")}]}),
        document([1, 2]),
    ],
)
async def test_what_may_pass_is_tried_again(first: Play) -> None:
    async with served(first) as (embedder, server):
        assert len(await embedder.embed(["a", "b"], purpose="query")) == 2
        assert len(server.requests) == 2


async def test_passages_are_left_to_their_queue() -> None:
    async with served(refuses(500, "oops")) as (embedder, server):
        with pytest.raises(TextsRefused):
            await embedder.embed(["a"], purpose="passage")
        assert len(server.requests) == 1


async def test_what_does_not_pass_has_a_time_to_come_back() -> None:
    error = await refused(otherwise=refuses(500, "oops"))
    assert "oops" in error.message and "tried again later" in error.message
    assert error.details["retry_after_s"] == 1.0
    assert "1 vectors for 2 texts" in (await refused(otherwise=answer(numbers("a")))).message
    assert "not finite" in (await refused(otherwise=answer([math.inf] * 8, [1.0] * 8))).message
    assert "zero" in (await refused(otherwise=answer([0] * 8, [1] * 8))).message


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_says_what_to_check_and_is_not_repeated(status: int) -> None:
    async with served(otherwise=refuses(status, "no such thing")) as (embedder, server):
        with pytest.raises(EmbedderUnavailable, match=r"no such thing.*\[embeddings\]") as caught:
            await embedder.embed(["a"], purpose="query")
        assert caught.value.details == {"retry_after_s": None}
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("entry", "is_of_a_text"),
    [
        (refuses(400, "cannot embed this"), True),
        (refuses(413, "too large"), True),
        (refuses(500, "unsupported value: NaN"), True),
        (answer([math.nan] * 8, [1.0] * 8), True),
        (refuses(401, "no such key"), False),
        (refuses(404, "no such model"), False),
        (refuses(429, "slow down"), False),
        (refuses(502, "bad gateway"), False),
        (refuses(503, "loading"), False),
    ],
)
async def test_what_may_come_from_a_text_is_an_error_of_its_own(entry: Play, is_of_a_text: bool) -> None:
    assert isinstance(await refused(otherwise=entry), TextsRefused) == is_of_a_text


async def test_while_it_rests_no_text_is_refused_as_such() -> None:
    async with served(otherwise=refuses(500, "oops")) as (embedder, _):
        for is_of_a_text in (True, False):  # the second time it rests
            with pytest.raises(EmbedderUnavailable) as caught:
                await embedder.embed(["a"], purpose="passage")
            assert isinstance(caught.value, TextsRefused) == is_of_a_text


async def test_silence_is_given_up_and_no_other_question_waits_for_it() -> None:
    silent = Play(never_answers=True)
    retry = RetryPolicy(base_s=60, cap_s=60)
    async with served(otherwise=silent, timeout_s=0.2, retry=retry) as (embedder, server):
        for _ in range(3):  # the service is left alone for a minute, and every question is refused at once
            with pytest.raises(EmbedderUnavailable, match=r"did not answer within 0\.2 s") as caught:
                await embedder.embed(["a"], purpose="query")
            assert 20 < float(str(caught.value.details["retry_after_s"])) <= 60
        assert len(server.requests) <= 1  # none where loading the client took that long


async def test_a_query_does_not_wait_for_a_long_wish_of_the_service() -> None:
    async with served(refuses(429, "slow down", headers={"retry-after": "60"})) as (embedder, server):
        with trio.fail_after(30), pytest.raises(EmbedderUnavailable) as caught:
            await embedder.embed(["a"], purpose="query")
        assert 20 < float(str(caught.value.details["retry_after_s"])) <= 60
        assert len(server.requests) == 1


async def test_a_text_that_is_too_long_is_cut_and_its_neighbours_are_not() -> None:
    async with served(otherwise=openai_vectors(chars_max=1_000)) as (embedder, server):
        short, long = await embedder.embed(["short", "word " * 700], purpose="passage")
        assert [short] == await embedder.embed(["short"], purpose="passage")
        assert [long] == await embedder.embed(["word " * 700], purpose="passage")
        assert server.requests[0].json()["input"] == ["short", "word " * 700]


async def test_a_service_that_refuses_every_length_is_not_asked_for_ever() -> None:
    async with served(otherwise=openai_vectors(chars_max=0)) as (embedder, server):
        with pytest.raises(EmbedderUnavailable, match="maximum context length"):
            await embedder.embed(["x" * 30_000], purpose="passage")
        sent = ["".join(request.json()["input"]) for request in server.requests]  # type: ignore[arg-type]  # one text
        assert [len(text) for text in sent] == [24_000, 12_000, 6_000, 3_000, 1_500, 750, 375]


async def test_blank_texts_do_not_spoil_the_others() -> None:
    async with served() as (embedder, _):
        assert len(await embedder.embed(["", " \n", "a"], purpose="passage")) == 3


async def test_a_cancelled_question_closes_its_socket() -> None:
    async with served(Play(never_answers=True)) as (embedder, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(embedder.embed, ["a"], purpose="query"))
            exchange = await server.arrived()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await exchange.client_gone.wait()
        assert len(await embedder.embed(["a"], purpose="query")) == 1


async def test_queries_do_not_stand_behind_passages() -> None:
    slow = Play(never_answers=True)
    async with (
        served(slow, slow, timeout_s=120) as (embedder, server),
        trio.open_nursery() as tasks,
    ):
        for _ in range(3):  # two are asked at once, the third waits
            tasks.start_soon(partial(embedder.embed, ["passage"], purpose="passage"))
        await server.arrived(2)
        with trio.fail_after(60):
            assert len(await embedder.embed(["query"], purpose="query")) == 1
        assert len(server.requests) == 3
        tasks.cancel_scope.cancel()


async def test_one_connection_serves_all_questions_and_closing_twice_is_harmless() -> None:
    async with served() as (embedder, server):
        await embedder.embed(["ż"], purpose="query")
        await embedder.embed(["b"], purpose="query")
        assert server.requests[0].json()["input"] == ["ż"] and server.connections == 1
        await embedder.aclose()
        await embedder.aclose()


@given(st.lists(st.floats(-1e30, 1e30) | st.integers(-(10**6), 10**6), min_size=1, max_size=40))
def test_vectors_have_unit_length_and_keep_their_direction(values: list[float]) -> None:
    if not math.hypot(*values):
        with pytest.raises(Malformed):
            unit_vector(values)
        return
    found = struct.unpack(f"<{len(values)}f", unit_vector(values))
    assert math.hypot(*found) == pytest.approx(1, abs=1e-5)
    assert all(one * other >= 0 for one, other in zip(values, found, strict=True))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "no list"),
        ("1, 2", "no list"),
        ({"a": 1}, "no list"),
        ([1.0, None], "cannot be compared"),
        ([1.0, "2"], "cannot be compared"),
        ([], "zero"),
        ([math.nan, 1.0], "not finite"),
        ([math.inf, 1.0], "not finite"),
        ([10**400], "too large"),
        ([0, 0.0], "zero"),
    ],
)
def test_what_cannot_be_compared_is_refused(values: object, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        unit_vector(values)


KEY = Secret("sk-secret")


async def test_openai_is_asked_and_authenticates() -> None:
    async with WireServer(otherwise=openai_vectors()) as server:
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
    async with WireServer(otherwise=refuses(401, "Incorrect API key provided: sk-secret")) as server:
        embedder = make_openai(EmbedderSettings(provider="mine", model="m", base_url=server.url, api_key=KEY))
        with pytest.raises(EmbedderUnavailable, match=r"mine answered 401 .*: \*\*\*\. Check") as caught:
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


async def test_another_server_does_not_learn_the_account_at_openai() -> None:
    async with WireServer(otherwise=openai_vectors()) as server:
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
    async with WireServer(otherwise=google) as server:
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
    async with WireServer(otherwise=document(body, status=403)) as server:
        embedder = make_google(EmbedderSettings(base_url=server.url, api_key=KEY, model="models/other"))
        with pytest.raises(EmbedderUnavailable, match="API key not valid"):
            await embedder.info()
        await embedder.aclose()


def of_ollama(url: str, **others: object) -> EmbedderSettings:
    return EmbedderSettings(provider="ollama", base_url=url, **others)  # type: ignore[arg-type]  # names of fields


async def test_the_digest_of_the_weights_is_part_of_the_fingerprint() -> None:
    async with WireServer(otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(f"{server.url}/v1/", api_key=Secret("key")))
        info = await embedder.info()
        assert (info.provider, info.model, info.dimension) == ("ollama", "nomic-embed-text", DIMENSION)
        assert [request.path for request in server.requests] == ["/api/tags", "/api/embed"]
        assert server.requests[0].method == "GET"
        assert server.requests[1].headers["authorization"] == "Bearer key"
        await embedder.aclose()

    tags = document({"models": [{"name": "nomic-embed-text:latest", "digest": "another"}]})
    async with WireServer([tags], otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(server.url))
        assert (await embedder.info()).fingerprint != info.fingerprint
        await embedder.aclose()


async def test_ollama_s_texts_carry_the_prefixes_of_the_family() -> None:
    async with WireServer(otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(server.url))
        assert len(await embedder.embed(["a", "b"], purpose="query")) == 2
        assert server.requests[-1].json() == {
            "model": "nomic-embed-text",
            "input": ["search_query: a", "search_query: b"],
            "truncate": True,
        }
        await embedder.aclose()


async def test_a_model_that_was_never_fetched() -> None:
    async with WireServer(otherwise=ollama) as server:
        embedder = make_ollama(of_ollama(server.url, model="bge-m3"))
        with pytest.raises(EmbedderUnavailable, match="ollama pull bge-m3") as caught:
            await embedder.info()
        assert caught.value.details == {"retry_after_s": None}
        await embedder.aclose()


async def test_ollama_may_shorten_vectors_and_not_tell_the_digest() -> None:
    tags = [{"models": [None, {"model": "nomic-embed-text", "digest": DIGEST}]}, {}, {"models": [{"name": "other"}]}]
    fingerprints = []
    for answer_ in tags:
        async with WireServer([document(answer_)], otherwise=ollama) as server:
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
    async with WireServer(otherwise=document(answer)) as server:
        embedder = make(EmbedderSettings(model="m", base_url=server.url, api_key=KEY, dimensions=1))
        with pytest.raises(EmbedderUnavailable, match="there is no list of embeddings"):
            await embedder.embed(["a"], purpose="query")
        await embedder.aclose()
