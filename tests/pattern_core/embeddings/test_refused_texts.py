"""The queue and texts that a model cannot take."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import SearchKind
from pattern_db.tables import archival
from tests.pattern_core.embeddings import stage
from tests.pattern_core.embeddings.stage import ScriptedEmbedder

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
