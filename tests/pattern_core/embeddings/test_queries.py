from __future__ import annotations

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable
from pattern_core.embeddings.providers.deterministic import DeterministicEmbedder
from pattern_core.embeddings.queries import DEADLINE_S, REMEMBERED, WAITING, QueryVectors, check_vectors
from pattern_core.embeddings.shelf import EmbedderShelf, FormerModelGone
from tests.pattern_core.embeddings.stage import SlowEmbedder, texts_of

ONE = EmbedderInfo(provider="deterministic", model="hashed-words", dimension=64, fingerprint="0" * 64)


async def test_a_question_is_embedded_once(nursery: trio.Nursery) -> None:
    embedder = DeterministicEmbedder()
    queries = QueryVectors(EmbedderShelf(embedder))
    nursery.start_soon(queries.run)
    first = await queries.get("words", ONE)
    assert await queries.get("words", ONE) == first
    assert texts_of(embedder, "query") == ["words"]
    for number in range(REMEMBERED):
        await queries.get(f"other {number}", ONE)
    await queries.get("words", ONE)
    assert texts_of(embedder, "query").count("words") == 2


async def test_the_model_of_the_index_is_asked(nursery: trio.Nursery) -> None:
    new, old = DeterministicEmbedder(fingerprint="new"), DeterministicEmbedder(fingerprint="old", dimension=32)
    queries = QueryVectors(EmbedderShelf(new, lambda _wanted: [old]))
    nursery.start_soon(queries.run)
    assert len(await queries.get("words", await old.info())) == 4 * 32
    assert len(await queries.get("words", await new.info())) == 4 * 64
    assert texts_of(new, "query") == texts_of(old, "query") == ["words"]
    with pytest.raises(FormerModelGone, match="cannot be asked any more"):
        await queries.get("words", ONE)


async def test_nobody_waits_beyond_the_deadline(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    queries = QueryVectors(EmbedderShelf(SlowEmbedder(100)))
    nursery.start_soon(queries.run)
    refusals: list[str] = []

    async def ask(number: int) -> None:
        with pytest.raises(EmbedderUnavailable) as refused:
            await queries.get(f"question {number}", ONE)
        refusals.append(refused.value.message)

    async with trio.open_nursery() as asking:
        for number in range(WAITING + 10):
            asking.start_soon(ask, number)
    assert trio.current_time() <= DEADLINE_S + 0.1
    assert "too many searches" in refusals[0]
    assert "still loading" in refusals[-1]


def test_what_does_not_fit_is_refused() -> None:
    info = EmbedderInfo(provider="p", model="m", dimension=4, fingerprint="f")
    check_vectors([bytes(16)], 1, info)
    with pytest.raises(EmbedderUnavailable, match="1 vectors for 2 texts"):
        check_vectors([bytes(16)], 2, info)
    with pytest.raises(EmbedderUnavailable, match="3 numbers instead of 4"):
        check_vectors([bytes(12)], 1, info)
