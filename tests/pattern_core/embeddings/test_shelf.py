from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo, EmbedderUnavailable, unavailable
from pattern_core.embeddings.providers.deterministic import DeterministicEmbedder
from pattern_core.embeddings.shelf import FORMER_MAX, LOOK_AGAIN_S, EmbedderShelf, FormerModelGone, is_comparable

OLD = EmbedderInfo(provider="deterministic", model="hashed-words", dimension=32, fingerprint="old")


class Closing(DeterministicEmbedder):
    """Remembers that it was closed."""

    is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


def old() -> Closing:
    return Closing(dimension=32, fingerprint="old")


async def test_the_configured_one_comes_first_and_nothing_is_made_in_vain() -> None:
    configured, wrong, right, unused = DeterministicEmbedder(), Closing(), old(), old()
    made: list[Embedder] = []

    def remake(wanted: EmbedderInfo) -> Iterator[Embedder]:
        assert wanted == OLD
        for embedder in (wrong, right, unused):
            made.append(embedder)
            yield embedder

    shelf = EmbedderShelf(configured, remake)
    assert await shelf.of(await configured.info()) is configured
    assert made == []
    for _question in range(3):
        assert await shelf.of(OLD) is right
    assert made == [wrong, right]
    assert (wrong.is_closed, right.is_closed) == (True, False)
    await shelf.aclose()
    assert right.is_closed


async def test_one_that_is_gone_is_not_looked_for_by_every_question(autojump_clock: trio.testing.MockClock) -> None:
    looked: list[EmbedderInfo] = []

    def remake(wanted: EmbedderInfo) -> list[Embedder]:
        looked.append(wanted)
        return [DeterministicEmbedder(failure=unavailable("Install it."))]

    shelf = EmbedderShelf(DeterministicEmbedder(), remake)
    for _question in range(3):
        with pytest.raises(FormerModelGone, match=r"hashed-words .*which cannot be asked any more: Install it$"):
            await shelf.of(OLD)
    assert len(looked) == 1
    await trio.sleep(LOOK_AGAIN_S + 1)
    with pytest.raises(FormerModelGone):
        await shelf.of(OLD)
    assert len(looked) == 2


async def test_one_that_does_not_answer_now_may_be_the_one(autojump_clock: trio.testing.MockClock) -> None:
    busy, second = old(), old()
    busy.failure = unavailable("busy", retry_after_s=2)
    shelf = EmbedderShelf(DeterministicEmbedder(), lambda _wanted: [busy, second])
    with pytest.raises(EmbedderUnavailable, match="busy") as refused:
        await shelf.of(OLD)
    assert not isinstance(refused.value, FormerModelGone)
    busy.failure = None
    await trio.sleep(3)
    assert await shelf.of(OLD) is busy


async def test_the_failure_of_the_configured_one_is_told_first() -> None:
    shelf = EmbedderShelf(DeterministicEmbedder(failure=unavailable("the service is down", retry_after_s=5)))
    with pytest.raises(EmbedderUnavailable, match="the service is down"):
        await shelf.of(OLD)


async def test_only_a_few_are_kept() -> None:
    made: list[Closing] = []

    def remake(wanted: EmbedderInfo) -> Iterator[Embedder]:
        made.append(Closing(dimension=32, fingerprint=wanted.fingerprint))
        yield made[-1]

    shelf = EmbedderShelf(DeterministicEmbedder(), remake)
    for number in range(FORMER_MAX + 2):
        await shelf.of(replace(OLD, fingerprint=f"{number}"))
    assert [embedder.is_closed for embedder in made] == [True] * 2 + [False] * FORMER_MAX


def test_fingerprint_and_length_decide() -> None:
    assert is_comparable(OLD, replace(OLD, model="another name of it"))
    assert not is_comparable(OLD, replace(OLD, dimension=64))
    assert not is_comparable(OLD, replace(OLD, fingerprint="new"))
