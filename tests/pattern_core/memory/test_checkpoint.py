from __future__ import annotations

import logging

import pytest
import trio
import trio.lowlevel
import trio.testing
import zstandard

from pattern_core.limits import MemoryLimits
from pattern_core.memory import document
from pattern_core.memory.checkpoint import (
    LIMITS,
    Consolidator,
    Pending,
    open_document,
    pack,
    to_drop,
    unpack,
    whole_document,
)
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.edits import AppendText
from pattern_db.enums import Encoding
from pattern_db.errors import RowNotFound
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_checkpoints import CheckpointStamp
from tests.pattern_core.memory.life import Life
from tests.pattern_core.memory.rig import ADA, BY_ADA, NOW, Rig

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("size", "encoding"),
    [
        (0, Encoding.RAW),
        (LIMITS.compression_threshold_bytes, Encoding.RAW),
        (LIMITS.compression_threshold_bytes + 1, Encoding.ZSTD),
    ],
)
def test_packing_loses_nothing(size: int, encoding: Encoding) -> None:
    data = b"x" * size
    packed, found = pack(data)
    assert (unpack(packed, found), found) == (data, encoding)
    assert encoding is Encoding.RAW or len(packed) < 100


@pytest.mark.parametrize("data", [b"", b"junk", zstandard.compress(b"x" * 99)[:-4]])
def test_bytes_that_are_no_frame_are_damage(data: bytes) -> None:
    with pytest.raises(DocumentDamaged, match="cannot be unpacked"):
        unpack(data, Encoding.ZSTD)


def test_a_frame_that_claims_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "DECOMPRESSED_BYTES_MAX", 1_000)
    assert unpack(zstandard.compress(b"x" * 1_000), Encoding.ZSTD)
    for bomb in (zstandard.compress(b"x" * 1_001), zstandard.ZstdCompressor(write_content_size=False).compress(b"x")):
        with pytest.raises(DocumentDamaged, match="claims"):
            unpack(bomb, Encoding.ZSTD)


KIB, HOURLY = 1024, MemoryLimits()
FEW = MemoryLimits(checkpoint_update_count=3, checkpoint_update_size=10, checkpoint_interval_s=1)
MANY = MemoryLimits(checkpoint_update_count=5_000)


@pytest.mark.parametrize(
    ("count", "size", "base", "age_ms", "limits", "is_due"),
    [
        (99, 99, 0, 0, HOURLY, False),
        (100, 100, 0, 0, HOURLY, True),
        (1, 50 * KIB - 1, 0, 0, HOURLY, False),
        (2, 50 * KIB, 0, 0, HOURLY, True),
        (2, 2, 0, HOUR_MS - 1, HOURLY, False),
        (2, 2, 0, HOUR_MS, HOURLY, True),
        # They grow with the document, and end somewhere.
        (100, 200 * KIB, KIB * KIB, 0, HOURLY, False),
        (100, 256 * KIB, KIB * KIB, 0, HOURLY, True),
        (100, 200 * KIB, KIB * KIB, HOUR_MS, HOURLY, True),
        (1_000, 1, KIB**3, 0, HOURLY, True),
        (2, 9, 0, 999, FEW, False),
        (3, 1, 0, 0, FEW, True),
        (1, 10, 0, 0, FEW, True),
        (1, 1, 0, 1_000, FEW, True),
        (4_999, 1, 0, 0, MANY, False),
    ],
)
def test_when_a_merge_is_due(count: int, size: int, base: int, age_ms: int, limits: MemoryLimits, is_due: bool) -> None:
    assert Pending(count=count, size=size, oldest_ms=0, base=base).is_due(age_ms, limits) is is_due
    assert not Pending(base=base).is_due(age_ms, limits)


def stamps(*days: str) -> list[CheckpointStamp]:
    return [
        CheckpointStamp(id=len(days) - number, up_to_seq=len(days) - number, created_at=f"2026-{day}T12:00:00.000Z")
        for number, day in enumerate(days)
    ]


def test_the_newest_checkpoints_and_the_last_of_each_day_stay() -> None:
    now, rule = "2026-11-30T12:00:00.000Z", MemoryLimits(checkpoints_newest=2, checkpoints_days=10)
    kept = stamps("11-30", "11-30", "11-30", "11-29", "11-28", "11-28", "11-21", "11-20", "11-01")
    assert to_drop(kept, now, rule) == [7, 4, 2, 1]
    assert to_drop(stamps("01-01", "01-01"), now, MemoryLimits(checkpoints_newest=0, checkpoints_days=0)) == [1]
    assert to_drop([], now, rule) == []
    assert (HOURLY.checkpoints_newest, HOURLY.checkpoints_days) == (10, 30)


# Merging updates into checkpoints.


def make(rig: Rig) -> tuple[Consolidator, list[str]]:
    merged: list[str] = []
    return Consolidator(rig.database, rig.clock, merged.append), merged


async def test_updates_that_arrive_during_merges_survive(file_rig: Rig) -> None:
    consolidator, merged = make(file_rig)
    block_id = await file_rig.block("")
    unfinished = 4

    async def write(name: str) -> None:
        nonlocal unfinished
        for number in range(10):
            await file_rig.store.edit(ADA, "notes", AppendText(text=f"{name}{number} "), by=BY_ADA)
        unfinished -= 1

    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(write, name)
        while unfinished:
            await consolidator.consolidate(block_id)
            await trio.lowlevel.checkpoint()
    assert len(merged) > 1
    fresh = Rig(file_rig.database, seed=1)
    words = (await fresh.store.edit(ADA, "notes", AppendText(text="end"), by=BY_ADA)).block.content.split()
    assert sorted(words) == sorted(["end", *(f"{name}{number}" for name in "abcd" for number in range(10))])
    assert [event.data["version"] for event in file_rig.events] == list(range(41))


async def test_what_is_asked_for_while_it_is_merged_is_not_merged_twice(rig: Rig) -> None:
    asked: list[str] = []

    def ask_again(block_id: str) -> None:
        asked.append(block_id)
        consolidator.ask(block_id)

    consolidator = Consolidator(rig.database, rig.clock, ask_again)
    block_id = await rig.block("a")
    await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.run)
        consolidator.ask(block_id)
        await trio.testing.wait_all_tasks_blocked()
        await rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_ADA)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert asked == [block_id]


async def test_two_merges_at_once_lose_nothing(file_rig: Rig) -> None:
    consolidator, merged = make(file_rig)
    block_id = await file_rig.block("a")
    await file_rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.consolidate, block_id)
        nursery.start_soon(consolidator.consolidate, block_id)
    assert set(merged) == {block_id}
    assert await file_rig.database.read(block_versions.get_updates_since, block_id, 0) == []
    assert (await file_rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_ADA)).block.content == "abc"


async def test_a_damaged_block_is_logged_and_the_others_are_merged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    consolidator, merged = make(rig)
    bad = await rig.block("a", label="bad")
    good = await rig.block("a")
    await rig.database.write(block_versions.store_update, bad, b"junk", None, NOW)
    await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.run)
        for block_id in (bad, "mem_none", good, good):
            consolidator.ask(block_id)
        with caplog.at_level(logging.ERROR):
            await trio.testing.wait_all_tasks_blocked()
        assert merged == [good]
        assert len(caplog.records) == 2
        await rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_ADA)
        consolidator.ask(good)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert merged == [good, good]
    assert len(await rig.database.read(block_versions.get_updates_since, bad, 0)) == 1


async def test_what_grew_old_while_parked_is_merged_on_waking(rig: Rig) -> None:
    old = await rig.block("a", label="old")
    new = await rig.block("a", label="new")
    await rig.store.edit(ADA, "old", AppendText(text="b"), by=BY_ADA)
    rig.clock.advance(HOUR_MS)
    await rig.store.edit(ADA, "new", AppendText(text="b"), by=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Rig(rig.database, seed=1, clock=rig.clock).store.blocks.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    pending = await rig.database.read(block_versions.list_pending)
    assert [block_id for block_id, _ in pending] == [new]
    assert await rig.database.read(block_checkpoints.list_checkpoints, old)


async def test_checkpoints_hold_the_state_and_segments_the_rest(rig: Rig) -> None:
    consolidator, merged = make(rig)
    block_id = await rig.block("a")
    texts = ["a"]
    for number in range(12):
        for word in ("b", "c"):
            await rig.store.edit(ADA, "notes", AppendText(text=f" {word}{number}" * 50), by=BY_ADA)
            texts.append(await rig.content())
        assert await consolidator.consolidate(block_id)
    assert not await consolidator.consolidate(block_id)
    assert merged == [block_id] * 12
    checkpoints = await rig.database.read(block_checkpoints.list_checkpoints, block_id)
    assert [one.up_to_seq for one in checkpoints] == list(range(24, 4, -2))  # the newest ten
    for one in checkpoints:
        document = open_document(one, [], peer=1)
        assert document.state()["content"] == texts[one.up_to_seq]
        assert not document.has_whole_history()
    segments = await rig.database.read(block_checkpoints.segments_of, block_id)
    assert [(one.first_seq, one.last_seq) for one in segments] == [(0, 2), *((n, n + 1) for n in range(3, 24, 2))]
    whole = await rig.database.read(whole_document, block_id)
    row = await rig.database.read(memory_blocks.get, block_id)
    assert (whole.state()["content"], whole.frontier()) == (texts[-1], row.frontier)
    assert checkpoints[0].frontier == row.frontier
    assert whole.has_whole_history()


# Segments.


def test_a_document_without_segments_is_whole_in_its_checkpoint(life: Life) -> None:
    life.append("user:1", " more")
    whole = whole_document(life.connection, life.block_id)
    assert (whole.state()["content"], whole.frontier()) == ("initial more", life.document.frontier())
    with pytest.raises(RowNotFound):
        whole_document(life.connection, "mem_none")


def test_a_missing_beginning_is_reported(life: Life) -> None:
    assert life.document.has_whole_history()
    life.connection.execute("UPDATE memory_blocks SET loro_snapshot = ?", (life.document.state_snapshot(),))
    with pytest.raises(DocumentDamaged, match="beginning"):
        whole_document(life.connection, life.block_id)
