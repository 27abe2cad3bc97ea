from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.embedder import (
    AbsentEmbedder,
    EmbedderInfo,
    EmbedderUnavailable,
    checked_vectors,
)
from pattern_core.embeddings.providers import EMBEDDERS, make_embedder
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.settings import EmbedderSettings, Prefixes, prefixes_of
from pattern_core.errors import InvalidInput
from pattern_core.models.providers.settings import Secret
from tests.pattern_core.embeddings.stage import ForgetfulEmbedder, ScriptedEmbedder


async def test_vectors_that_do_not_fit_are_refused() -> None:
    info = EmbedderInfo(provider="p", model="m", dimension=4, fingerprint="f")
    embedder = ScriptedEmbedder(dimension=4)
    assert len(await checked_vectors(embedder, ["a", "b"], info, purpose="query")) == 2
    with pytest.raises(EmbedderUnavailable, match="1 vectors for 2 texts"):
        await checked_vectors(ForgetfulEmbedder(dimension=4), ["a", "b"], info, purpose="query")
    for other in (3, 5):
        with pytest.raises(EmbedderUnavailable, match=f"{other} numbers instead of 4"):
            await checked_vectors(ScriptedEmbedder(dimension=other), ["a"], info, purpose="query")


async def test_an_absent_one_always_says_the_same() -> None:
    embedder = AbsentEmbedder("Set this.")
    with pytest.raises(EmbedderUnavailable, match="Set this") as caught:
        await embedder.info()
    assert caught.value.details == {"retry_after_s": None}
    with pytest.raises(EmbedderUnavailable, match="switched off"):
        await AbsentEmbedder().embed(["a"], purpose="query")
    await embedder.aclose()


def test_the_default_is_the_local_model_and_keys_are_not_shown() -> None:
    assert EmbedderSettings() == EmbedderSettings(provider="local", model="", dimensions=None, allow_download=False)
    assert "sk-1" not in repr(EmbedderSettings(api_key=Secret("sk-1")))


def test_a_child_process_learns_neither_address_nor_key() -> None:
    settings = EmbedderSettings(model="m", base_url="http://here", api_key=Secret("sk-1"), query_prefix="q: ")
    assert "sk-1" not in settings.to_json()
    assert EmbedderSettings.from_json(settings.to_json()) == EmbedderSettings(model="m", query_prefix="q: ")


INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("e5-base-v2", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", INSTRUCTION, ""),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-m3", "", ""),
        ("nomic-embed-text:v1.5", "search_query: ", "search_document: "),
        ("nomic-ai/nomic-embed-text-v1.5", "search_query: ", "search_document: "),
        ("snowflake-arctic-embed2", "query: ", ""),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "query: ", ""),
        ("mxbai-embed-large", "Represent this sentence for searching relevant passages: ", ""),
        ("all-MiniLM-L6-v2", "", ""),
        ("text-embedding-3-small", "", ""),
        ("", "", ""),
    ],
)
def test_families(model: str, query: str, passage: str) -> None:
    assert prefixes_of(model) == Prefixes(query=query, passage=passage)


@pytest.mark.parametrize("provider", sorted(EMBEDDERS))
async def test_every_provider_is_made_without_a_question(provider: str) -> None:
    embedder = make_embedder(EmbedderSettings(provider=provider))
    await embedder.aclose()


async def test_the_deterministic_one_accepts_a_length() -> None:
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
