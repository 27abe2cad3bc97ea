from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.embedding_queue import TEXTS_PER_CALL, Portions
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import SearchKind
from pattern_db.tables import archival
from tests.pattern_core.embeddings import stage
from tests.pattern_core.embeddings.stage import PickyEmbedder, ScriptedEmbedder

TEXTS = {f"h{number}": f"text {number}" for number in range(3 * TEXTS_PER_CALL)}
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
    assert [len(texts) for _purpose, texts in embedder.asked] == [TEXTS_PER_CALL] * 3


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


OTHER = "1" * 64


@pytest.fixture
def db() -> Connection:
    return stage.connection()


@pytest.mark.parametrize("retry_after_s", [None, 2.0])
async def test_a_text_that_is_always_refused_does_not_hold_up_the_others(
    db: Connection, autojump_clock: trio.testing.MockClock, retry_after_s: float | None
) -> None:
    for number in range(100):
        stage.keep(db, number, f"entry {number}{' poison' if number in (40, 77) else ''}")
    stage.keep(db, 100, "good words. " * 100 + "the poison in the second half of a long text")
    async with Database.in_memory(db) as database:
        async with stage.running(database, stage.PickyEmbedder("poison", retry_after_s=retry_after_s)) as queue:
            await trio.sleep(120)
            progress = await queue.progress()
            assert (progress.state, progress.done, progress.total, progress.skipped) == ("idle", 101, 101, 3)
            assert {(one.ref, one.reason) for one in progress.refusals} == {
                (f"arc_{number}", "it cannot stand poison") for number in (40, 77, 100)
            }
            assert progress.active is not None
            assert progress.active.completed_at is not None
            left_out = stage.wanted(db) - stage.stored(db)
            assert [(ref, chunk) for _kind, ref, chunk, _hash in sorted(left_out)] == [
                ("arc_100", 1),
                ("arc_40", 0),
                ("arc_77", 0),
            ]
            archival.delete(db, "arc_40")
            db.execute("UPDATE archival_entries SET content = 'all is well' WHERE id = 'arc_77'")
            await stage.settle(queue)
            assert [one.ref for one in (await queue.progress()).refusals] == ["arc_100"]
        # Nothing of it is forgotten at a start, and a rebuild tries again.
        tolerant = ScriptedEmbedder()
        async with stage.running(database, tolerant) as queue:
            await stage.settle(queue)
            assert stage.texts_of(tolerant) == []
            await queue.rebuild()
            await stage.settle(queue)
            assert len(stage.texts_of(tolerant)) == 1
            assert (await queue.progress()).skipped == 0
            assert stage.stored(db) == stage.wanted(db)


async def test_a_switch_is_complete_without_what_the_new_model_refuses(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    stage.keep(db, 1, "poison")
    stage.keep(db, 2, "bread")
    picky = stage.PickyEmbedder("poison", fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, ScriptedEmbedder()) as queue:
            await stage.settle(queue)
        async with stage.running(database, picky, ScriptedEmbedder()) as queue:
            await queue.start_switch()
            await trio.sleep(60)
            progress = await queue.progress()
            assert (progress.building, progress.skipped) == (None, 1)
            assert await stage.refs_near(queue, db, "bread", kind=SearchKind.ARCHIVAL) == ["arc_2"]


async def test_a_service_that_is_down_loses_no_text(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    """It answers every question with the same refusal, as one does whose disk is full."""
    for number in range(40):
        stage.keep(db, number, f"entry {number}")
    broken = stage.PickyEmbedder("", retry_after_s=1.0)
    async with Database.in_memory(db) as database, stage.running(database, broken) as queue:
        await trio.sleep(600)
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.skipped) == ("waiting", 0, 0)
        assert len(broken.asked) < 30
        broken.word = "\0"
        await trio.sleep(400)
        assert stage.stored(db) == stage.wanted(db)
        assert (await queue.progress()).skipped == 0
