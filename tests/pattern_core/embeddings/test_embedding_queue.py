from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.embedding_queue import RECHECK_S
from pattern_core.errors import Conflict
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.enums import Role, SearchKind
from pattern_db.tables import agents, archival, embedding_indexes, embeddings, memory_blocks, messages
from tests.pattern_core.embeddings import stage
from tests.pattern_core.embeddings.stage import ScriptedEmbedder

OTHER = "1" * 64


@pytest.fixture
def db() -> Connection:
    return stage.connection()


async def test_every_kind_of_text_gets_its_vectors(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    stage.say(db, 1, "cats like milk")
    stage.say(db, 2, "a tool's answer", Role.TOOL)
    stage.say(db, 3, "  ")
    stage.note(db, "persona", "I am ada")
    stage.keep(db, 1, "the moon is far. " * 200)
    embedder = ScriptedEmbedder()
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await stage.settle(queue)
        assert stage.stored(db) == stage.wanted(db)
        assert {kind for kind, *_ in stage.stored(db)} == {"message", "block", "archival"}
        assert await stage.refs_near(queue, db, "milk for cats") == ["msg_1"]
        progress = await queue.progress()
        assert (progress.state, progress.done, progress.total) == ("idle", 5, 5)
        assert progress.model == "hashed-words"
        assert progress.active is not None
        assert progress.active.completed_at is not None


async def test_nothing_is_asked_of_the_model_before_there_is_a_text(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    embedder = ScriptedEmbedder(failure=EmbedderUnavailable("must not be asked"))
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await stage.settle(queue)
        assert (await queue.progress()).state == "idle"
        assert embedding_indexes.live(db) == []


async def test_what_comes_later_is_found_too(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    stage.say(db, 1, "cats like milk")
    async with Database.in_memory(db) as database, stage.running(database, ScriptedEmbedder()) as queue:
        await stage.settle(queue)
        stage.say(db, 2, "dogs like bones")
        await stage.settle(queue)
        assert stage.stored(db) == stage.wanted(db)
        stage.say(db, 3, "nobody said so")
        await trio.sleep(2 * RECHECK_S)
        assert stage.stored(db) == stage.wanted(db)


async def test_changes_and_removals(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(1, 6):
        stage.say(db, number, f"message {number}")
    block, entry = stage.note(db, "persona", "I am ada"), stage.keep(db, 1, "the moon")
    embedder = ScriptedEmbedder()
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await stage.settle(queue)
        embedder.asked.clear()
        messages.tombstone(db, ["msg_2"])
        memory_blocks.update_content(db, block, "I am eve", None, stage.NOW)
        archival.delete(db, entry)
        stage.keep(db, 2, "takes the removed entry's row")
        await stage.settle(queue)
        assert stage.stored(db) == stage.wanted(db)
        # The message after the removed one was embedded with it, and is embedded anew without.
        assert sorted(stage.texts_of(embedder)) == [
            "message 1\nmessage 3",
            "persona\nI am eve",
            "takes the removed entry's row",
        ]
        memory_blocks.deactivate(db, block, stage.NOW)
        agents.delete(db, "agt_ada")
        await stage.settle(queue)
        assert stage.stored(db) == set() == stage.wanted(db)
        assert fetch_all(db, "SELECT count(*) FROM embedding_changes") == [(0,)]


async def test_the_same_text_is_embedded_once(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(40):
        stage.keep(db, number, "always the same")
    embedder = ScriptedEmbedder()
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await stage.settle(queue)
        stage.keep(db, 99, "always the same")
        await stage.settle(queue)
        assert len(stage.stored(db)) == 41
        assert stage.texts_of(embedder) == ["always the same"]


async def test_killed_in_the_middle_it_goes_on_where_it_was(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(200):
        stage.keep(db, number, f"entry {number}")
    slow = stage.SlowEmbedder(10)
    async with Database.in_memory(db) as database:
        async with stage.running(database, slow):
            await trio.sleep(45)  # within the third batch
        left = len(stage.stored(db))
        assert 0 < left < 200
        embedder = ScriptedEmbedder()
        async with stage.running(database, embedder) as queue:
            await stage.settle(queue)
        assert stage.stored(db) == stage.wanted(db)
        assert len(stage.texts_of(embedder)) == 200 - left


async def test_the_newest_come_first(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(100):
        stage.keep(db, number, f"entry {number}")
    embedder = stage.SlowEmbedder(1)
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await trio.sleep(2.5)
        stage.keep(db, 100, "the newest of all")
        queue.wake()
        await stage.settle(queue)
    asked = stage.texts_of(embedder)
    assert asked[:2] == ["entry 99", "entry 98"]
    assert asked.index("the newest of all") < asked.index("entry 30")


async def test_a_model_that_is_down_is_asked_again(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    stage.say(db, 1, "words")
    embedder = ScriptedEmbedder(failure=EmbedderUnavailable("the service is down", retry_after_s=5))
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await trio.sleep(2)
        progress = await queue.progress()
        assert (progress.state, progress.reason, progress.done) == ("waiting", "the service is down", 0)
        answer = await queue.query_vector("words")
        assert answer.vector is None
        assert answer.notice == "searched by words alone: the service is down"
        embedder.failure = None
        await trio.sleep(10)
        assert stage.stored(db) == stage.wanted(db)
        assert (await queue.progress()).state == "idle"


async def test_without_a_model_it_says_what_is_missing(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    stage.say(db, 1, "words")
    embedder = ScriptedEmbedder(failure=EmbedderUnavailable("install pattern-server[local]"))
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await stage.settle(queue)
        progress = await queue.progress()
        assert (progress.state, progress.reason) == ("unavailable", "install pattern-server[local]")
        assert progress.active is None


async def test_vectors_of_a_wrong_length_are_never_stored(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    stage.say(db, 1, "words")
    async with Database.in_memory(db) as database, stage.running(database, stage.WrongEmbedder()) as queue:
        await stage.settle(queue)
        progress = await queue.progress()
        assert progress.state == "waiting"
        assert "2 numbers instead of 64" in str(progress.reason)
        assert fetch_all(db, "SELECT count(*) FROM embeddings") == [(0,)]
        answer = await queue.query_vector("words")
        assert answer.vector is None
        assert "2 numbers instead of 64" in str(answer.notice)


async def test_a_question_does_not_wait_for_a_slow_model(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    stage.say(db, 1, "words")
    slow = stage.SlowEmbedder(6)
    async with Database.in_memory(db) as database, stage.running(database, slow) as queue:
        await trio.sleep(10)
        began = trio.current_time()
        answer = await queue.query_vector("words")
        assert trio.current_time() - began < 3
        assert answer.vector is None
        assert answer.notice == "searched by words alone: the embedding model is still loading, or busy"
        await trio.sleep(6)
        assert await stage.refs_near(queue, db, "words") == ["msg_1"]  # it was embedded meanwhile, and remembered
        assert stage.texts_of(slow, "query") == ["words"]


async def test_a_text_that_changes_while_it_is_embedded(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    stage.say(db, 1, "to be removed")
    stage.keep(db, 1, "old words")
    async with Database.in_memory(db) as database, stage.running(database, stage.SlowEmbedder(10)) as queue:
        await trio.sleep(5)
        messages.tombstone(db, ["msg_1"])
        db.execute("UPDATE archival_entries SET content = 'new words'")
        await trio.sleep(6)
        assert ("message", "msg_1") not in {(kind, ref) for kind, ref, *_ in stage.stored(db)}
        await trio.sleep(60)
        await stage.settle(queue)
        assert stage.stored(db) == stage.wanted(db) != set()


async def test_partly_embedded_it_says_so(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(100):
        stage.say(db, number, f"message {number}")
    async with Database.in_memory(db) as database, stage.running(database, stage.SlowEmbedder(1)) as queue:
        await trio.sleep(5.5)
        answer = await queue.query_vector("message 99")
        assert answer.vector is not None
        assert "of 100 texts so far" in str(answer.notice)
        await trio.sleep(60)
        assert (await queue.query_vector("message 99")).notice is None


async def test_another_model_is_not_taken_over_by_itself(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    stage.say(db, 1, "words")
    old, new = ScriptedEmbedder(), ScriptedEmbedder(dimension=128, fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, old) as queue:
            await stage.settle(queue)
        async with stage.running(database, new) as queue:
            await stage.settle(queue)
            assert (await queue.progress()).switch_needed
            stage.say(db, 2, "more words")
            await stage.settle(queue)
            progress = await queue.progress()
            assert progress.state == "unavailable"
            assert "pattern embeddings switch" in str(progress.reason)
            answer = await queue.query_vector("words")
            assert answer.vector is None
            assert "pattern embeddings switch" in str(answer.notice)
            assert stage.texts_of(new) == []


async def test_a_switch_answers_from_the_old_vectors_until_it_is_complete(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(100):
        stage.say(db, number, f"message {number}")
    old, new = ScriptedEmbedder(), stage.SlowEmbedder(1, dimension=128, fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, old) as queue:
            await stage.settle(queue)
        async with stage.running(database, new, old) as queue:
            await queue.start_switch()
            await trio.sleep(4)
            stage.say(db, 200, "said during the switch")
            messages.tombstone(db, ["msg_7"])
            progress = await queue.progress()
            assert progress.state == "working"
            assert progress.building is not None
            assert progress.building.dimension == 128
            assert 0 < progress.done < progress.total
            assert await stage.refs_near(queue, db, "message 98 message 99") == ["msg_99"]
        # Stopped in the middle: the next start goes on, with what is stored.
        done = len(stage.stored(db))
        assert done > 0
        async with stage.running(database, new, old) as queue:
            await trio.sleep(60)
            await stage.settle(queue)
            progress = await queue.progress()
            assert progress.building is None
            assert progress.active is not None
            assert (progress.active.fingerprint, progress.active.dimension) == (OTHER, 128)
            assert stage.stored(db) == stage.wanted(db)
            assert await stage.refs_near(queue, db, "said during the switch") == ["msg_200"]
            # Nothing is left of the old one.
            assert fetch_all(db, "SELECT count(DISTINCT index_id) FROM embeddings") == [(1,)]
            assert embedding_indexes.kept(db) == embedding_indexes.live(db)
        assert len(stage.texts_of(new)) <= 101 + 40


async def test_a_switch_can_be_given_up(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(100):
        stage.say(db, number, f"message {number}")
    old, new = ScriptedEmbedder(), stage.SlowEmbedder(1, dimension=128, fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, old) as queue:
            await stage.settle(queue)
            with pytest.raises(Conflict, match="already"):
                await queue.start_switch()
            with pytest.raises(Conflict, match="no switch"):
                await queue.cancel_switch()
        async with stage.running(database, new) as queue:
            await queue.start_switch()
            await trio.sleep(3)
            db.execute("UPDATE messages SET content = 'changed' WHERE id = 'msg_50'")
            await trio.sleep(3)
            await queue.cancel_switch()
            await stage.settle(queue)
            assert (await queue.progress()).building is None
        old.asked.clear()
        async with stage.running(database, old) as queue:
            await stage.settle(queue)
            assert stage.stored(db) == stage.wanted(db)
            assert await stage.refs_near(queue, db, "changed") == ["msg_50"]
            assert len(stage.texts_of(old)) == 2  # what was changed meanwhile, and the message after it
            assert fetch_all(db, "SELECT count(DISTINCT index_id) FROM embeddings") == [(1,)]


async def test_back_to_the_old_model_after_half_a_switch(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(100):
        stage.say(db, number, f"message {number}")
    old, new = ScriptedEmbedder(), stage.SlowEmbedder(1, dimension=128, fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, old) as queue:
            await stage.settle(queue)
        async with stage.running(database, new, old) as queue:
            await queue.start_switch()
            await trio.sleep(4)
        async with stage.running(database, old, new) as queue:
            await queue.progress()  # so that it has asked which model is configured
            await stage.settle(queue)
            stage.say(db, 100, "said with the old model again")
            await stage.settle(queue)
            progress = await queue.progress()
            assert (progress.state, progress.done, progress.total) == ("idle", 101, 101)
            assert "--cancel" in str(progress.reason)
            assert progress.building is not None
            assert not progress.switch_needed
            assert await stage.refs_near(queue, db, "said with the old model again") == ["msg_100"]
            assert (await queue.start_switch()).dimension == 64
            await stage.settle(queue)
            progress = await queue.progress()
            assert (progress.building, progress.reason) == (None, None)
            assert fetch_all(db, "SELECT count(DISTINCT index_id) FROM embeddings") == [(1,)]


async def test_two_switches_in_a_row(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(60):
        stage.say(db, number, f"message {number}")
    models = [
        ScriptedEmbedder(),
        stage.SlowEmbedder(0.5, dimension=128, fingerprint=OTHER),
        stage.SlowEmbedder(0.5, dimension=128, fingerprint="2" * 64),
        ScriptedEmbedder(),
    ]
    async with Database.in_memory(db) as database:
        for number, model in enumerate(models):
            former = models[number - 1 : number]
            async with stage.running(database, model, *former) as queue:
                if number:
                    await queue.start_switch()
                while (await queue.progress()).building is not None:
                    answer = await queue.query_vector("message 59 message 58")
                    assert answer.vector is not None, answer.notice
                    await trio.sleep(0.3)
                await stage.settle(queue)
                assert stage.stored(db) == stage.wanted(db)
                assert await stage.refs_near(queue, db, "message 59 message 58") == ["msg_59"]
                assert (await queue.progress()).active is not None


async def test_the_old_model_that_is_gone_leaves_words_and_a_notice(
    db: Connection, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(60):
        stage.say(db, number, f"message {number}")
    new = stage.SlowEmbedder(1, dimension=128, fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, ScriptedEmbedder()) as queue:
            await stage.settle(queue)
        async with stage.running(database, new) as queue:
            before = await queue.query_vector("words")
            assert before.vector is None
            assert "hashed-words (deterministic, 64 numbers), which cannot be asked any more" in str(before.notice)
            assert "`pattern embeddings switch` goes over" in str(before.notice)
            await queue.start_switch()
            during = await queue.query_vector("words")
            assert during.vector is None
            assert "when the switch to hashed-words is complete" in str(during.notice)
            await trio.sleep(60)
            assert (await queue.query_vector("words")).notice is None


async def test_an_old_index_says_what_it_does_not_know(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    stage.say(db, 1, "words")
    old, new = ScriptedEmbedder(), ScriptedEmbedder(dimension=128, fingerprint=OTHER)
    async with Database.in_memory(db) as database:
        async with stage.running(database, old) as queue:
            await stage.settle(queue)
        async with stage.running(database, new, old) as queue:
            assert (await queue.query_vector("words")).notice is None
            stage.say(db, 2, "more words")
            await stage.settle(queue)
            answer = await queue.query_vector("words")
            assert answer.vector is not None
            assert "1 of 2 texts" in str(answer.notice)


async def test_a_rebuild_embeds_only_what_differs(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(50):
        stage.keep(db, number, f"entry {number}")
    embedder = ScriptedEmbedder()
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        with pytest.raises(Conflict):
            await queue.rebuild()
        await stage.settle(queue)
        embeddings.delete(db, SearchKind.ARCHIVAL, "arc_7")
        embedder.asked.clear()
        await queue.rebuild()
        await stage.settle(queue)
        assert stage.texts_of(embedder) == ["entry 7"]
        assert stage.stored(db) == stage.wanted(db)


async def test_batches_are_bounded(db: Connection, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(300):
        stage.keep(db, number, f"entry {number} " * 400)
    embedder = ScriptedEmbedder()
    async with Database.in_memory(db) as database, stage.running(database, embedder) as queue:
        await stage.settle(queue)
        assert max(len(texts) for _purpose, texts in embedder.asked) <= 16
        assert max(len(text) for text in stage.texts_of(embedder)) <= 900
        assert stage.stored(db) == stage.wanted(db)


FAILURES: list[Callable[[], ScriptedEmbedder]] = [
    stage.WrongEmbedder,
    lambda: stage.SlowEmbedder(100),
    lambda: ScriptedEmbedder(failure=EmbedderUnavailable("down")),
    lambda: ScriptedEmbedder(dimension=128),
]


@pytest.mark.parametrize("make", FAILURES)
async def test_a_question_always_gets_an_answer(
    db: Connection, autojump_clock: trio.testing.MockClock, make: Callable[[], ScriptedEmbedder]
) -> None:
    stage.say(db, 1, "words")
    async with Database.in_memory(db) as database:
        async with stage.running(database, ScriptedEmbedder()) as queue:
            await stage.settle(queue)
        async with stage.running(database, make()) as queue:
            answer = await queue.query_vector("words")
            assert answer.vector is None
            assert answer.notice is not None
            assert answer.notice.startswith("searched by words alone: ")
