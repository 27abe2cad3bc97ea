from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.embedder import TEXTS_MAX, Embedder, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.providers.services import (
    RemoteEmbedder,
    listed,
    make_google,
    make_ollama,
    make_openai,
    openai,
    unit_vector,
)
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.models.providers.draft import Malformed
from pattern_core.models.providers.settings import Secret
from pattern_core.models.throttle import RetryPolicy
from pattern_core.testing import StoppedClock
from pattern_core.testing.wire import Entry, Play, WireServer, document
from pattern_core.testing.wire_openai import refuses
from tests.pattern_core.embeddings.wire_embeddings import DIGEST, DIMENSION, google, numbers, ollama, openai_vectors

QUICK = RetryPolicy(base_s=0.01, cap_s=0.02)
KEY = Secret("sk-secret")
Make = Callable[[EmbedderSettings], Embedder]


def compatible(settings: EmbedderSettings, retry: RetryPolicy = QUICK) -> RemoteEmbedder:
    return RemoteEmbedder(openai(settings), settings, retry=retry, clock=StoppedClock())


@asynccontextmanager
async def served(
    *script: Entry, otherwise: Entry | None = None, make: Make = compatible, at: str = "", **settings: object
) -> AsyncIterator[tuple[Embedder, WireServer]]:
    """An embedder that asks a scripted server over a plain socket."""
    usual = {"provider": "compatible", "model": "m", "dimensions": DIMENSION}
    async with WireServer(script, otherwise or openai_vectors()) as server:
        chosen = EmbedderSettings(base_url=server.url + at, **(usual | settings))  # type: ignore[arg-type]  # as named
        embedder = make(chosen)
        try:
            yield embedder, server
        finally:
            await embedder.aclose()


async def refused(embedder: Embedder, *texts: str, purpose: Purpose = "passage") -> EmbedderUnavailable:
    with pytest.raises(EmbedderUnavailable) as caught:
        await embedder.embed(texts or ["a"], purpose=purpose)
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


@pytest.mark.parametrize(
    ("entry", "words", "is_of_a_text", "may_pass"),
    [
        (refuses(400, "cannot embed this"), "cannot embed this", True, False),
        (refuses(413, "too large"), "too large", True, False),
        (refuses(500, "value: NaN"), "value: NaN", True, True),
        (answer(numbers("a")), "1 vectors for 2 texts", True, True),
        (answer([math.inf] * 8, [1.0] * 8), "not finite", True, True),
        (refuses(401, "no such key"), "no such key", False, False),
        (refuses(403, "not for you"), "not for you", False, False),
        (refuses(404, "no such model"), "no such model", False, False),
        (refuses(429, "slow down"), "slow down", False, True),
        (refuses(502, "bad gateway"), "bad gateway", False, True),
        (refuses(503, "loading"), "loading", False, True),
    ],
)
async def test_a_failure_says_whether_a_text_may_be_the_reason_and_what_helps(
    entry: Play, words: str, is_of_a_text: bool, may_pass: bool
) -> None:
    async with served(otherwise=entry) as (embedder, _):
        error = await refused(embedder, "a", "b")
        assert isinstance(error, TextsRefused) == is_of_a_text
        assert words in error.message
        assert ("tried again later" if may_pass else "[embeddings]") in error.message
        assert error.details == {"retry_after_s": 1.0 if may_pass else None}


async def test_refusals_are_not_repeated_and_passages_left_to_their_queue() -> None:
    cases: list[tuple[int, Purpose]] = [(400, "query"), (500, "passage")]
    for status, purpose in cases:
        async with served(otherwise=refuses(status, "no")) as (embedder, server):
            await refused(embedder, purpose=purpose)
            assert len(server.requests) == 1


async def test_while_it_rests_no_text_is_refused_as_such() -> None:
    async with served(otherwise=refuses(500, "oops")) as (embedder, _):
        errors = [await refused(embedder) for _attempt in range(2)]  # the second time it rests
        assert [isinstance(error, TextsRefused) for error in errors] == [True, False]


async def test_silence_is_given_up_and_no_other_question_waits_for_it() -> None:
    patient = partial(compatible, retry=RetryPolicy(base_s=60, cap_s=60))
    async with served(otherwise=Play(never_answers=True), make=patient, timeout_s=0.2) as (embedder, server):
        for _ in range(3):  # the service is left alone for a minute, and every question is refused at once
            error = await refused(embedder, purpose="query")
            assert "did not respond within 0.2 s" in error.message
            assert 20 < (error.retry_after_s or 0) <= 60
        assert len(server.requests) <= 1  # none where loading the client took that long


async def test_a_query_does_not_wait_for_a_long_wish_of_the_service() -> None:
    async with served(refuses(429, "slow down", headers={"retry-after": "60"})) as (embedder, server):
        with trio.fail_after(30):
            assert 20 < ((await refused(embedder, purpose="query")).retry_after_s or 0) <= 60
        assert len(server.requests) == 1


async def test_a_text_that_is_too_long_is_cut_and_its_neighbours_are_not() -> None:
    async with served(otherwise=openai_vectors(chars_max=1_000)) as (embedder, server):
        short, long = await embedder.embed(["short", "word " * 700], purpose="passage")
        assert [short] == await embedder.embed(["short"], purpose="passage")
        assert [long] == await embedder.embed(["word " * 700], purpose="passage")
        assert server.requests[0].json()["input"] == ["short", "word " * 700]


async def test_a_service_that_refuses_every_length_is_not_asked_for_ever() -> None:
    async with served(otherwise=openai_vectors(chars_max=0)) as (embedder, server):
        assert "maximum context length" in (await refused(embedder, "x" * 30_000)).message
        sent = ["".join(request.json()["input"]) for request in server.requests]  # type: ignore[arg-type]  # one text
        assert [len(text) for text in sent] == [24_000, 12_000, 6_000, 3_000, 1_500, 750, 375]


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
    async with served(slow, slow, timeout_s=120) as (embedder, server), trio.open_nursery() as tasks:
        for _ in range(3):  # two are asked at once, the third waits
            tasks.start_soon(partial(embedder.embed, ["passage"], purpose="passage"))
        await server.arrived(2)
        with trio.fail_after(60):
            assert len(await embedder.embed(["query"], purpose="query")) == 1
        assert len(server.requests) == 3
        tasks.cancel_scope.cancel()


async def test_one_connection_serves_all_questions_and_closing_twice_is_harmless() -> None:
    async with served() as (embedder, server):
        await embedder.embed(["ż", "", " \n"], purpose="query")
        await embedder.embed(["b"], purpose="query")
        assert server.requests[0].json()["input"] == ["ż", ".", "."] and server.connections == 1
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
        (None, "not a list"),
        ("1, 2", "not a list"),
        ({"a": 1}, "not a list"),
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


def test_a_list_is_in_the_order_of_its_numbers() -> None:
    def found(*indexes: object) -> list[object]:
        return listed({"data": [{"index": index, "embedding": index} for index in indexes]}, "data", "embedding")

    assert found(1, 0, 2) == [0, 1, 2] and found(None, None) == [None, None]
    assert listed({"values": [3, 4]}, "values", None) == [3, 4]
    for gap in ((0, 0), (1, 2), (0, 2)):
        with pytest.raises(Malformed, match="without gaps"):
            found(*gap)
    for answer in ({}, {"data": "none"}, {"data": [1]}):
        with pytest.raises(Malformed, match="no list"):
            listed(answer, "data", "embedding")


def of_google(text: str) -> dict[str, object]:
    shared = {"model": "models/gemini-embedding-001", "taskType": "RETRIEVAL_QUERY", "outputDimensionality": 8}
    return {**shared, "content": {"parts": [{"text": text}]}}


ASKED = ["a b", "c"]
OPENAI_BODY = {"model": "m", "input": ASKED, "encoding_format": "float", "dimensions": 8}
OLLAMA_BODY = {"model": "nomic-embed-text", "input": ["search_query: a b", "search_query: c"], "truncate": True}


OLLAMA_SETTINGS = {"model": "", "at": "/v1/", "dimensions": None}
BEARER = ("authorization", "Bearer sk-secret")
GOOGLE_KEY = ("x-goog-api-key", "sk-secret")
GOOGLE_PATH = "/v1beta/models/gemini-embedding-001:batchEmbedContents"


@pytest.mark.parametrize(
    ("provider", "make", "settings", "entry", "path", "header", "body"),
    [
        ("compatible", make_openai, {"at": "/v1"}, openai_vectors(), "/v1/embeddings", BEARER, OPENAI_BODY),
        ("google", make_google, {"model": ""}, google, GOOGLE_PATH, GOOGLE_KEY, {"requests": [*map(of_google, ASKED)]}),
        ("ollama", make_ollama, OLLAMA_SETTINGS, ollama, "/api/embed", BEARER, OLLAMA_BODY),
    ],
)
async def test_each_service_is_asked_in_its_format(
    provider: str,
    make: Make,
    settings: dict[str, Any],
    entry: Entry,
    path: str,
    header: tuple[str, str],
    body: dict[str, object],
) -> None:
    async with served(otherwise=entry, make=make, **{"api_key": KEY, **settings}) as (embedder, server):
        vectors = await embedder.embed(ASKED, purpose="query")
        request = server.requests[-1]
        assert (request.method, request.path, request.json()) == ("POST", path, body)
        assert request.headers[header[0]] == header[1]
        assert [len(vector) for vector in vectors] == [4 * DIMENSION] * 2
        info = await embedder.info()
        assert (info.provider, info.dimension) == (provider, DIMENSION)
        assert info.model == body.get("model", "gemini-embedding-001")
        await embedder.embed(["a"], purpose="passage")
        assert (b"RETRIEVAL_DOCUMENT" in server.requests[-1].body) == (provider == "google")


@pytest.mark.parametrize(
    ("make", "entry", "words"),
    [
        (make_openai, refuses(401, "Incorrect API key provided: sk-secret"), r"mine answered 401 .*: \*\*\*\. Check"),
        (make_openai, document({"data": "none"}), "there is no list of embeddings"),
        (make_google, refuses(403, "API key not valid."), r"API key not valid.*\[embeddings\]"),
        (make_google, document({"embeddings": [[1.0]]}), "there is no list of embeddings"),
        (make_ollama, ollama, "ollama pull m"),
        (make_ollama, document({"embedding": [1.0]}), "there is no list of embeddings"),
    ],
)
async def test_what_a_service_refuses_or_garbles_is_said_without_the_key(make: Make, entry: Entry, words: str) -> None:
    async with served(otherwise=entry, make=make, provider="mine", api_key=KEY, dimensions=None) as (embedder, _):
        with pytest.raises(EmbedderUnavailable, match=words) as caught:
            await embedder.info()
        assert "sk-secret" not in str(caught.value)


async def test_the_vendors_own_models_are_known_without_a_question() -> None:
    embedder = make_openai(EmbedderSettings(provider="openai", api_key=KEY))
    info = await embedder.info()
    assert (info.provider, info.model, info.dimension) == ("openai", "text-embedding-3-small", 1536)
    shorter = await make_openai(EmbedderSettings(provider="openai", api_key=KEY, dimensions=256)).info()
    assert shorter.dimension == 256
    assert shorter.fingerprint != info.fingerprint
    assert (await make_google(EmbedderSettings(api_key=KEY)).info()).dimension == 3072


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (make_openai, EmbedderSettings(provider="openai"), "OPENAI_API_KEY"),
        (make_openai, EmbedderSettings(provider="compatible"), r"Set base_url under \[embeddings\]"),
        (make_openai, EmbedderSettings(provider="openai", base_url="http://127.0.0.1:1"), "Name the model"),
        (make_google, EmbedderSettings(), "GEMINI_API_KEY"),
    ],
)
async def test_what_is_missing_is_said(make: Make, settings: EmbedderSettings, words: str) -> None:
    with pytest.raises(EmbedderUnavailable, match=words):
        await make(settings).info()


async def test_another_server_does_not_learn_the_account_at_openai() -> None:
    async with served(make=make_openai, account={"openai-organization": "org-1"}) as (embedder, server):
        await embedder.embed(["a"], purpose="query")
        assert not {"openai-organization", "authorization"} & set(server.requests[0].headers)


def test_families_get_their_prefixes_unless_configured() -> None:
    settings = EmbedderSettings(provider="compatible", base_url="http://x", model="intfloat/e5-small")
    assert openai(settings).body(["a"], "passage")["input"] == ["passage: a"]
    plain = EmbedderSettings(provider="compatible", base_url="http://x", model="e5-small", passage_prefix="")
    assert openai(plain).body(["a"], "passage")["input"] == ["a"]
    assert openai(plain).identity != openai(settings).identity


async def test_the_digest_of_ollama_s_weights_is_part_of_the_fingerprint_if_it_is_known() -> None:
    model = "nomic-embed-text"
    tags = [
        {"models": [None, {"model": model, "digest": DIGEST}]},
        {"models": [{"name": f"{model}:latest", "digest": "another"}]},
        {},
        {"models": [{"name": "other"}]},
    ]
    fingerprints = []
    for found in tags:
        async with served(document(found), otherwise=ollama, make=make_ollama, model="") as (embedder, server):
            fingerprints.append((await embedder.info()).fingerprint)
            assert (server.requests[0].method, server.requests[0].path) == ("GET", "/api/tags")
            await embedder.embed(["a"], purpose="passage")
            assert server.requests[-1].json()["dimensions"] == DIMENSION
    assert len(set(fingerprints)) == 3
    assert fingerprints[2] == fingerprints[3]
