from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo, EmbedderUnavailable
from pattern_core.embeddings.questions import (
    DEADLINE_S,
    FORMER_MAX,
    REMEMBERED,
    WAITING,
    EmbedderShelf,
    FormerModelGone,
    QuestionEmbedder,
)
from tests.pattern_core.embeddings.stage import ScriptedEmbedder, texts_of

ONE = EmbedderInfo(provider="deterministic", model="hashed-words", dimension=64, fingerprint="0" * 64)


async def test_a_question_is_embedded_once(nursery: trio.Nursery) -> None:
    embedder = ScriptedEmbedder()
    questions = QuestionEmbedder(EmbedderShelf(embedder))
    nursery.start_soon(questions.run)
    first = await questions.get("words", ONE)
    assert await questions.get("words", ONE) == first
    assert texts_of(embedder, "query") == ["words"]
    for number in range(REMEMBERED):
        await questions.get(f"other {number}", ONE)
    await questions.get("words", ONE)
    assert texts_of(embedder, "query").count("words") == 2


async def test_no_question_waits_beyond_the_deadline(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    slow = ScriptedEmbedder(delay_s=100)
    questions = QuestionEmbedder(EmbedderShelf(slow))
    nursery.start_soon(questions.run)
    refusals: list[str] = []

    async def ask(number: int) -> None:
        with pytest.raises(EmbedderUnavailable) as refused:
            await questions.get(f"question {number}", ONE)
        refusals.append(refused.value.message)

    async with trio.open_nursery() as asking:
        for number in range(WAITING + 10):
            asking.start_soon(ask, number)
    assert trio.current_time() <= DEADLINE_S + 0.1
    assert "too many searches" in refusals[0]
    assert "still loading" in refusals[-1]
    await trio.sleep(5_000)
    first = texts_of(slow, "query")[0]
    assert await questions.get(first, ONE), "it was embedded meanwhile, and is remembered"
    assert texts_of(slow, "query").count(first) == 1


OLD = EmbedderInfo(provider="deterministic", model="hashed-words", dimension=32, fingerprint="old")


class Closing(ScriptedEmbedder):
    """Remembers how often it was asked what it is, and that it was closed."""

    infos = 0
    is_closed = False

    async def info(self) -> EmbedderInfo:
        self.infos += 1
        return await super().info()

    async def aclose(self) -> None:
        self.is_closed = True


def old() -> Closing:
    return Closing(dimension=32, fingerprint="old")


async def test_the_configured_one_comes_first_and_nothing_is_asked_in_vain() -> None:
    configured, wrong, right, unused = ScriptedEmbedder(), Closing(), old(), old()
    wanted: list[EmbedderInfo] = []

    def remake(info: EmbedderInfo) -> list[Embedder]:
        wanted.append(info)
        return [wrong, right, unused]

    shelf = EmbedderShelf(configured, remake)
    assert await shelf.of(await configured.info()) is configured
    assert wanted == []
    for _question in range(3):
        assert await shelf.of(OLD) is right
    assert wanted == [OLD], "they are kept"
    assert unused.infos == 0
    await shelf.aclose()
    assert wrong.is_closed and right.is_closed and unused.is_closed


async def test_one_that_is_gone_is_made_once() -> None:
    made: list[EmbedderInfo] = []

    def remake(wanted: EmbedderInfo) -> list[Embedder]:
        made.append(wanted)
        return [ScriptedEmbedder(failure=EmbedderUnavailable("Install it.")), ScriptedEmbedder()]

    shelf = EmbedderShelf(ScriptedEmbedder(), remake)
    for _question in range(3):
        with pytest.raises(FormerModelGone, match=r"hashed-words .*which is no longer available: Install it$"):
            await shelf.of(OLD)
    assert made == [OLD]


async def test_one_that_does_not_answer_now_may_be_the_one(autojump_clock: trio.testing.MockClock) -> None:
    busy, second = old(), old()
    busy.failure = EmbedderUnavailable("busy", retry_after_s=2)
    shelf = EmbedderShelf(ScriptedEmbedder(), lambda _wanted: [busy, second])
    with pytest.raises(EmbedderUnavailable, match="busy") as refused:
        await shelf.of(OLD)
    assert not isinstance(refused.value, FormerModelGone)
    busy.failure = None
    await trio.sleep(3)
    assert await shelf.of(OLD) is busy


async def test_the_failure_of_the_configured_one_comes_first() -> None:
    shelf = EmbedderShelf(ScriptedEmbedder(failure=EmbedderUnavailable("the service is down", retry_after_s=5)))
    with pytest.raises(EmbedderUnavailable, match="the service is down"):
        await shelf.of(OLD)


async def test_only_the_few_that_were_asked_last_are_kept() -> None:
    made: list[Closing] = []

    def remake(wanted: EmbedderInfo) -> Iterator[Embedder]:
        made.append(Closing(dimension=32, fingerprint=wanted.fingerprint))
        yield made[-1]

    shelf = EmbedderShelf(ScriptedEmbedder(), remake)
    for number in (*range(FORMER_MAX), 0, FORMER_MAX, FORMER_MAX + 1):
        await shelf.of(replace(OLD, fingerprint=f"{number}"))
    assert [number for number, embedder in enumerate(made) if embedder.is_closed] == [1, 2]
    assert len(made) == FORMER_MAX + 2
