from __future__ import annotations

from collections.abc import Mapping

import pytest

from pattern_core.embeddings.embedder import TEXTS_MAX, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.embedding_queue import Portions
from tests.pattern_core.embeddings.stage import PickyEmbedder, ScriptedEmbedder

TEXTS = {f"h{number}": f"text {number}" for number in range(3 * TEXTS_MAX)}
BAD = {**TEXTS, "h20": "poison", "h21": "more poison"}


async def attempts(
    embedder: ScriptedEmbedder, texts: dict[str, str]
) -> tuple[Mapping[str, bytes], Mapping[str, str], int]:
    """Ask until it works; return vectors, what was refused, and how often it failed."""
    portions, info = Portions(embedder), await embedder.info()
    for number in range(50):
        try:
            return *(await portions.embed(texts, info)), number
        except TextsRefused:
            continue
    raise AssertionError("it never ends")


async def test_without_trouble_every_text_is_asked_for_once() -> None:
    embedder = ScriptedEmbedder()
    vectors, refused, failed = await attempts(embedder, TEXTS)
    assert (set(vectors), refused, failed) == (set(TEXTS), {}, 0)
    assert [len(texts) for _purpose, texts in embedder.asked] == [TEXTS_MAX] * 3


async def test_the_texts_that_fail_alone_are_found_and_the_others_kept() -> None:
    embedder = PickyEmbedder("poison")
    vectors, refused, failed = await attempts(embedder, BAD)
    assert refused == dict.fromkeys(("h20", "h21"), "it cannot stand poison")
    assert set(vectors) == set(BAD) - {"h20", "h21"}
    assert failed <= 8  # 16, 16, 8, 4, 2, 1, 1
    asked = [text for _purpose, texts in embedder.asked for text in texts]
    assert asked.count("text 0") == 1  # what was made is not asked for again


async def test_a_failure_by_chance_sets_nothing_aside() -> None:
    embedder = PickyEmbedder("poison")
    portions, info = Portions(embedder), await embedder.info()
    with pytest.raises(TextsRefused):
        await portions.embed(BAD, info)
    embedder.word = "something else"
    vectors, refused = await portions.embed(BAD, info)
    assert (set(vectors), refused) == (set(BAD), {})


async def test_what_fails_for_a_harmless_text_too_is_no_text_s_fault() -> None:
    embedder = PickyEmbedder("", retry_after_s=3.0)
    portions, info = Portions(embedder), await embedder.info()
    for _attempt in range(2):
        with pytest.raises(TextsRefused):
            await portions.embed({"h1": "text"}, info)
    for _attempt in range(5):
        with pytest.raises(EmbedderUnavailable) as refused:
            await portions.embed({"h1": "text"}, info)
        assert not isinstance(refused.value, TextsRefused)
        assert refused.value.details["retry_after_s"] == 3.0
    embedder.failure = EmbedderUnavailable("asleep")
    with pytest.raises(EmbedderUnavailable, match="asleep"):
        await portions.embed({"h1": "text"}, info)
    embedder.failure, embedder.word = None, "poison"
    assert (await portions.embed({"h1": "text"}, info))[1] == {}


async def test_new_texts_in_between_do_not_make_it_forget() -> None:
    embedder = PickyEmbedder("poison")
    portions, info = Portions(embedder), await embedder.info()
    bad = {"h1": "poison"}
    for _attempt in range(2):
        with pytest.raises(TextsRefused):
            await portions.embed(bad, info)
        assert set((await portions.embed({"h2": "new"}, info))[0]) == {"h2"}
    assert (await portions.embed(bad, info))[1] == {"h1": "it cannot stand poison"}
    with pytest.raises(TextsRefused):  # from here on it counts anew
        await portions.embed(bad, info)
    portions.forget()
    with pytest.raises(TextsRefused):
        await portions.embed(bad, info)
