from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import MockClock

from pattern_core.embeddings.embedder import TEXTS_MAX, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.embedding_queue import RECHECK_S, Portions
from pattern_core.embeddings.settings import Purpose
from pattern_core.errors import Conflict
from pattern_core.search import SearchRequest, search
from pattern_db.connection import fetch_all
from pattern_db.database import Database
from pattern_db.enums import Role, SearchKind
from pattern_db.tables import archival, embedding_indexes, embeddings, messages
from tests.pattern_core.embeddings.stage import (
    CodingEmbedder,
    PickyEmbedder,
    ScriptedEmbedder,
    World,
    WrongEmbedder,
    settle,
    texts_of,
)

OTHER = "1" * 64


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with Database.in_memory(world.db) as world.database:
        yield world


async def test_every_kind_of_text_gets_its_vectors(world: World, autojump_clock: MockClock) -> None:
    world.say(1, "cats like milk")
    world.say(2, "a tool's answer", Role.TOOL)
    world.say(3, "  ")
    world.note("persona", "I am ada")
    world.keep(1, "the moon is far. " * 200)
    embedder = ScriptedEmbedder()
    async with world.running(embedder) as queue:
        await settle(queue)
        assert world.stored() == world.wanted()
        assert {kind for kind, *_ in world.stored()} == {"message", "block", "archival"}
        assert await world.near(queue, "milk for cats") == ["msg_1"]
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.total) == ("idle", 5, 5)
        assert progress.model == "hashed-words"
        assert progress.active is not None
        assert progress.active.completed_at is not None
        world.say(4, "said later")
        await settle(queue)
        assert world.stored() == world.wanted()
        world.say(5, "no commit wakes it")
        await trio.sleep(2 * RECHECK_S)
        assert world.stored() == world.wanted()


async def test_nothing_is_asked_of_the_model_before_there_is_a_text(world: World, autojump_clock: MockClock) -> None:
    embedder = ScriptedEmbedder(failure=EmbedderUnavailable("must not be asked"))
    async with world.running(embedder) as queue:
        await settle(queue)
        assert (await queue.progress()).state == "idle"
        assert embedding_indexes.live(world.db) == []


async def test_the_same_text_is_embedded_once(world: World, autojump_clock: MockClock) -> None:
    for number in range(40):
        world.keep(number, "always the same")
    embedder = ScriptedEmbedder()
    async with world.running(embedder) as queue:
        await settle(queue)
        world.keep(99, "always the same")
        await settle(queue)
        assert len(world.stored()) == 41
        assert texts_of(embedder) == ["always the same"]


async def test_the_newest_come_first(world: World, autojump_clock: MockClock) -> None:
    world.keep_many(100)
    embedder = ScriptedEmbedder(delay_s=1)
    async with world.running(embedder) as queue:
        await trio.sleep(2.5)
        world.keep(100, "the newest of all")
        queue.wake()
        await settle(queue)
    asked = texts_of(embedder)
    assert asked[:2] == ["entry 99", "entry 98"]
    assert asked.index("the newest of all") < asked.index("entry 30")


async def test_a_model_that_is_down_is_asked_again(world: World, autojump_clock: MockClock) -> None:
    world.say(1, "words")
    embedder = ScriptedEmbedder(failure=EmbedderUnavailable("the service is down", retry_after_s=5))
    async with world.running(embedder) as queue:
        await trio.sleep(2)
        progress = await queue.progress()
        assert (progress.state, progress.reason, progress.done) == ("waiting", "the service is down", 0)
        answer = await world.asked(queue, "words")
        assert answer.vector is None
        assert answer.notice == "searched by words alone: the service is down"
        embedder.failure = None
        await trio.sleep(10)
        assert world.stored() == world.wanted()
        assert (await queue.progress()).state == "idle"


async def test_without_a_model_it_says_what_is_missing(world: World, autojump_clock: MockClock) -> None:
    world.say(1, "words")
    embedder = ScriptedEmbedder(failure=EmbedderUnavailable("install pattern-server[local]"))
    async with world.running(embedder) as queue:
        await settle(queue)
        progress = await queue.progress()
        assert (progress.state, progress.reason) == ("unavailable", "install pattern-server[local]")
        assert progress.active is None


async def test_vectors_of_a_wrong_length_are_never_stored(world: World, autojump_clock: MockClock) -> None:
    world.say(1, "words")
    async with world.running(WrongEmbedder()) as queue:
        await settle(queue)
        progress = await queue.progress()
        assert progress.state == "waiting"
        assert "2 numbers instead of 64" in str(progress.reason)
        assert fetch_all(world.db, "SELECT count(*) FROM embeddings") == [(0,)]
        answer = await world.asked(queue, "words")
        assert answer.vector is None
        assert "2 numbers instead of 64" in str(answer.notice)


async def test_a_search_compares_the_words_that_the_model_codes(world: World, autojump_clock: MockClock) -> None:
    world.say(1, "kittens")
    world.say(2, "chess")
    async with world.running(CodingEmbedder()) as queue:
        await settle(queue)
        answer = await world.asked(queue, "kitten")
        assert (len(answer.vector or b""), answer.codes) == (256, b"kitt    ")
        assert fetch_all(world.db, "SELECT codes FROM embeddings ORDER BY ref") == [(b"kitt    ",), (b"ches    ",)]
        found = await search(world.database, SearchRequest(query="kitten"), queue)
        assert [(hit.content, hit.parts.get("alike")) for hit in found.hits] == [("kittens", 1.0), ("chess", None)]


async def test_partly_embedded_it_says_so(world: World, autojump_clock: MockClock) -> None:
    world.say_many(100)
    async with world.running(ScriptedEmbedder(delay_s=1)) as queue:
        await trio.sleep(5.5)
        answer = await world.asked(queue, "message 99")
        assert answer.vector is not None
        assert "of 100 texts so far" in str(answer.notice)
        await trio.sleep(60)
        assert (await world.asked(queue, "message 99")).notice is None


async def test_a_switch_answers_from_the_old_vectors_until_it_is_complete(
    world: World, autojump_clock: MockClock
) -> None:
    world.say_many(100)
    old, new = ScriptedEmbedder(), ScriptedEmbedder(delay_s=1, dimension=128, fingerprint=OTHER)
    await world.embed_all(old)
    async with world.running(new, old) as queue:
        await queue.start_switch()
        await trio.sleep(4)
        world.say(200, "said during the switch")
        messages.tombstone(world.db, ["msg_7"])
        progress = await queue.progress()
        assert progress.state == "working"
        assert progress.building is not None
        assert progress.building.dimension == 128
        assert 0 < progress.done < progress.total
        assert await world.near(queue, "message 98 message 99") == ["msg_99"]
    # Stopped in the middle: the next start continues with what is stored.
    done = len(world.stored())
    assert done > 0
    async with world.running(new, old) as queue:
        await trio.sleep(60)
        await settle(queue)
        progress = await queue.progress()
        assert progress.building is None
        assert progress.active is not None
        assert (progress.active.fingerprint, progress.active.dimension) == (OTHER, 128)
        assert world.stored() == world.wanted()
        assert await world.near(queue, "said during the switch") == ["msg_200"]
        # Nothing is left of the old one.
        assert fetch_all(world.db, "SELECT count(DISTINCT index_id) FROM embeddings") == [(1,)]
        assert embedding_indexes.kept(world.db) == embedding_indexes.live(world.db)
    assert len(texts_of(new)) <= 101 + 40


async def test_a_switch_can_be_given_up(world: World, autojump_clock: MockClock) -> None:
    world.say_many(100)
    old, new = ScriptedEmbedder(), ScriptedEmbedder(delay_s=1, dimension=128, fingerprint=OTHER)
    async with world.running(old) as queue:
        await settle(queue)
        with pytest.raises(Conflict, match="already"):
            await queue.start_switch()
        with pytest.raises(Conflict, match="no switch"):
            await queue.cancel_switch()
    async with world.running(new) as queue:
        await queue.start_switch()
        await trio.sleep(3)
        world.db.execute("UPDATE messages SET content = 'changed' WHERE id = 'msg_50'")
        await trio.sleep(3)
        await queue.cancel_switch()
        await settle(queue)
        assert (await queue.progress()).building is None
    old.asked.clear()
    async with world.running(old) as queue:
        await settle(queue)
        assert world.stored() == world.wanted()
        assert await world.near(queue, "changed") == ["msg_50"]
        assert len(texts_of(old)) == 2  # what was changed meanwhile, and the message after it
        assert fetch_all(world.db, "SELECT count(DISTINCT index_id) FROM embeddings") == [(1,)]


async def test_back_to_the_old_model_after_half_a_switch(world: World, autojump_clock: MockClock) -> None:
    world.say_many(100)
    old, new = ScriptedEmbedder(), ScriptedEmbedder(delay_s=1, dimension=128, fingerprint=OTHER)
    await world.embed_all(old)
    async with world.running(new, old) as queue:
        await queue.start_switch()
        await trio.sleep(4)
    async with world.running(old, new) as queue:
        await queue.progress()  # so that it has asked which model is configured
        await settle(queue)
        world.say(100, "said with the old model again")
        await settle(queue)
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.total) == ("idle", 101, 101)
        assert "--cancel" in str(progress.reason)
        assert progress.building is not None
        assert not progress.switch_needed
        assert await world.near(queue, "said with the old model again") == ["msg_100"]
        assert (await queue.start_switch()).dimension == 64
        await settle(queue)
        progress = await queue.progress()
        assert (progress.building, progress.reason) == (None, None)
        assert fetch_all(world.db, "SELECT count(DISTINCT index_id) FROM embeddings") == [(1,)]


async def test_another_model_is_not_taken_over_by_itself(world: World, autojump_clock: MockClock) -> None:
    world.say_many(60)
    new = ScriptedEmbedder(delay_s=1, dimension=128, fingerprint=OTHER)
    await world.embed_all(ScriptedEmbedder())
    async with world.running(new) as queue:
        before = await world.asked(queue, "words")
        assert before.vector is None
        assert "hashed-words (deterministic, 64 numbers), which is no longer available" in str(before.notice)
        assert "switch to the configured model with `pattern embeddings switch`" in str(before.notice)
        world.say(60, "more words")
        await settle(queue)
        progress = await queue.progress()
        assert (progress.switch_needed, progress.state) == (True, "unavailable")
        assert "pattern embeddings switch" in str(progress.reason)
        assert texts_of(new) == []
        await queue.start_switch()
        during = await world.asked(queue, "words")
        assert during.vector is None
        assert "when the switch to hashed-words is complete" in str(during.notice)
        await trio.sleep(60)
        assert (await world.asked(queue, "words")).notice is None


async def test_a_local_model_that_is_run_in_another_way_takes_over_by_itself(
    world: World, autojump_clock: MockClock
) -> None:
    world.say_many(3)
    before = ScriptedEmbedder(provider="local")
    await world.embed_all(before)
    now = ScriptedEmbedder(provider="local", fingerprint="1" * 64)
    async with world.running(now, before) as queue:
        await settle(queue)
        assert texts_of(now) == [], "nothing is embedded again before there is something new"
        world.say(3, "the ferry leaves at seven")
        assert await world.near(queue, "message 2") == ["msg_2"]
        await settle(queue)
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.switch_needed) == ("idle", 4, False)
        assert await world.near(queue, "when does the ferry leave?") == ["msg_3"]
    assert texts_of(now, "query") == ["when does the ferry leave?"]


async def test_an_old_index_says_what_it_does_not_know(world: World, autojump_clock: MockClock) -> None:
    world.say(1, "words")
    old, new = ScriptedEmbedder(), ScriptedEmbedder(dimension=128, fingerprint=OTHER)
    await world.embed_all(old)
    async with world.running(new, old) as queue:
        assert (await world.asked(queue, "words")).notice is None
        world.say(2, "more words")
        await settle(queue)
        answer = await world.asked(queue, "words")
        assert answer.vector is not None
        assert "1 of 2 texts" in str(answer.notice)


async def test_a_rebuild_embeds_only_what_differs(world: World, autojump_clock: MockClock) -> None:
    world.keep_many(50)
    embedder = ScriptedEmbedder()
    async with world.running(embedder) as queue:
        with pytest.raises(Conflict):
            await queue.rebuild()
        await settle(queue)
        embeddings.delete(world.db, SearchKind.ARCHIVAL, "arc_7")
        embedder.asked.clear()
        await queue.rebuild()
        await settle(queue)
        assert texts_of(embedder) == ["entry 7"]
        assert world.stored() == world.wanted()


@pytest.mark.parametrize("retry_after_s", [None, 2.0])
async def test_a_text_that_is_always_refused_does_not_hold_up_the_others(
    world: World, autojump_clock: MockClock, retry_after_s: float | None
) -> None:
    for number in range(100):
        world.keep(number, f"entry {number}{' poison' if number in (40, 77) else ''}")
    world.keep(100, "good words. " * 100 + "the poison in the second half of a long text")
    async with world.running(PickyEmbedder("poison", retry_after_s=retry_after_s)) as queue:
        await trio.sleep(120)
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.total, progress.skipped) == ("idle", 101, 101, 3)
        assert {(one.ref, one.reason) for one in progress.refusals} == {
            (f"arc_{number}", "it cannot stand poison") for number in (40, 77, 100)
        }
        assert progress.active is not None
        assert progress.active.completed_at is not None
        left_out = world.wanted() - world.stored()
        assert [(ref, chunk) for _kind, ref, chunk, _hash in sorted(left_out)] == [
            ("arc_100", 1),
            ("arc_40", 0),
            ("arc_77", 0),
        ]
        archival.delete(world.db, "arc_40")
        world.db.execute("UPDATE archival_entries SET content = 'all is well' WHERE id = 'arc_77'")
        await settle(queue)
        assert [one.ref for one in (await queue.progress()).refusals] == ["arc_100"]
    # Nothing of it is forgotten at a start, and a rebuild tries again.
    tolerant = ScriptedEmbedder()
    async with world.running(tolerant) as queue:
        await settle(queue)
        assert texts_of(tolerant) == []
        await queue.rebuild()
        await settle(queue)
        assert len(texts_of(tolerant)) == 1
        assert (await queue.progress()).skipped == 0
        assert world.stored() == world.wanted()


async def test_a_service_that_is_down_loses_no_text(world: World, autojump_clock: MockClock) -> None:
    """It answers every question with the same refusal, as one does whose disk is full."""
    world.keep_many(40)
    broken = PickyEmbedder("", retry_after_s=1.0)
    async with world.running(broken) as queue:
        await trio.sleep(600)
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.skipped) == ("waiting", 0, 0)
        assert len(broken.asked) < 30
        broken.word = "\0"
        await trio.sleep(400)
        assert world.stored() == world.wanted()
        assert (await queue.progress()).skipped == 0


TEXTS = {f"h{number}": f"text {number}" for number in range(3 * TEXTS_MAX)}


async def test_the_texts_that_fail_alone_are_found_and_the_others_kept(autojump_clock: MockClock) -> None:
    embedder = PickyEmbedder("poison")
    vectors, refused = await Portions(embedder).embed(
        {**TEXTS, "h20": "poison", "h21": "more poison"}, await embedder.info()
    )
    assert refused == dict.fromkeys(("h20", "h21"), "it cannot stand poison")
    assert set(vectors) == set(TEXTS) - {"h20", "h21"}
    sizes = [len(texts) for _purpose, texts in embedder.asked]
    # After each failure a harmless text; the second portion as a whole again, then its halves.
    assert sizes == [16, *(16, 1), *(16, 1), *(8, 1), *(4,), *(4, 1), *(2, 1), *(1, 1), *(1, 1), *(2,), *(8,), 16]


async def test_a_failure_by_chance_sets_nothing_aside(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    embedder = PickyEmbedder("text")

    async def recover() -> None:
        await trio.sleep(0.5)
        embedder.word = "poison"

    nursery.start_soon(recover)
    vectors, refused = await Portions(embedder).embed({"h1": "text"}, await embedder.info())
    assert (set(vectors), refused) == ({"h1"}, {})


async def test_nothing_is_kept_of_texts_that_are_not_asked_for_again(autojump_clock: MockClock) -> None:
    class Breaking(PickyEmbedder):
        async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
            self.word = "" if f"text {TEXTS_MAX}" in texts else self.word
            return await super().embed(texts, purpose=purpose)

    embedder = Breaking("poison")
    portions, info = Portions(embedder), await embedder.info()
    with pytest.raises(EmbedderUnavailable):
        await portions.embed({**TEXTS, "h0": "poison"}, info)
    embedder.word = "poison"
    vectors, refused = await portions.embed({"h1": "text 1"}, info)
    assert (set(vectors), refused) == ({"h1"}, {})


async def test_what_fails_for_a_harmless_text_too_is_no_text_s_fault(autojump_clock: MockClock) -> None:
    embedder = PickyEmbedder("", retry_after_s=3.0)
    portions, info = Portions(embedder), await embedder.info()
    for _attempt in range(3):
        with pytest.raises(EmbedderUnavailable, match="cannot stand") as refused:
            await portions.embed({"h1": "text"}, info)
        assert not isinstance(refused.value, TextsRefused)
        assert refused.value.retry_after_s == 3.0
    embedder.word = "poison"
    assert (await portions.embed({"h1": "text"}, info))[1] == {}


class TiredEmbedder(PickyEmbedder):
    """Is busy at its 18th call."""

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        made = await super().embed(texts, purpose=purpose)
        if len(self.asked) == 18:
            raise EmbedderUnavailable("busy", retry_after_s=1.0)
        return made


async def test_what_is_known_of_a_batch_is_not_asked_for_again(autojump_clock: MockClock) -> None:
    embedder = TiredEmbedder("poison")
    portions, info = Portions(embedder), await embedder.info()
    texts = {"bad": "poison", **TEXTS}
    with pytest.raises(EmbedderUnavailable, match="busy"):
        await portions.embed(texts, info)
    vectors, refused = await portions.embed(texts, info)
    assert (set(vectors), refused) == (set(TEXTS), {"bad": "it cannot stand poison"})
    assert [len(asked) for _purpose, asked in embedder.asked[18:]] == [16, 1]
    embedder.word = "nothing"
    assert (await portions.embed(texts, info))[1] == {}, "a later batch tries it again"
