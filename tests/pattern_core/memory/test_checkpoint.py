from __future__ import annotations

from dataclasses import replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory import checkpoint
from pattern_core.memory.checkpoint import (
    COMPRESS_ABOVE_BYTES,
    Pending,
    Retention,
    open_document,
    pack,
    to_drop,
    unpack,
)
from pattern_core.memory.document import Document, DocumentDamaged
from pattern_db.enums import Encoding
from pattern_db.tables.block_checkpoints import Checkpoint, CheckpointStamp
from pattern_db.tables.block_versions import Update, UpdateStats
from tests.pattern_core.memory.rig import NOW

HOUR_MS = 3_600_000


@given(st.binary(max_size=50), st.integers(0, 1_000))
def test_packing_loses_nothing(piece: bytes, times: int) -> None:
    data = piece * times
    packed, encoding = pack(data)
    assert unpack(packed, encoding) == data
    assert encoding is (Encoding.ZSTD if len(data) > COMPRESS_ABOVE_BYTES else Encoding.RAW)


def test_compression_begins_above_the_bound() -> None:
    assert pack(b"x" * COMPRESS_ABOVE_BYTES)[1] is Encoding.RAW
    packed, encoding = pack(b"x" * (COMPRESS_ABOVE_BYTES + 1))
    assert encoding is Encoding.ZSTD
    assert len(packed) < 100


@pytest.mark.parametrize("data", [b"", b"junk", zstandard.compress(b"x" * 99)[:-4]])
def test_bytes_that_are_no_frame_are_damage(data: bytes) -> None:
    with pytest.raises(DocumentDamaged, match="cannot be unpacked"):
        unpack(data, Encoding.ZSTD)


def test_a_frame_that_claims_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SNAPSHOT_BYTES_MAX", 1_000)
    assert unpack(zstandard.compress(b"x" * 1_000), Encoding.ZSTD)
    for bomb in (zstandard.compress(b"x" * 1_001), zstandard.ZstdCompressor(write_content_size=False).compress(b"x")):
        with pytest.raises(DocumentDamaged, match="claims"):
            unpack(bomb, Encoding.ZSTD)


def test_due_by_number() -> None:
    pending = Pending()
    for _ in range(99):
        pending.add(1, now_ms=0)
    assert not pending.is_due(0)
    pending.add(1, now_ms=0)
    assert pending.is_due(0)


def test_due_by_bytes() -> None:
    pending = Pending()
    pending.add(50 * 1024 - 1, now_ms=0)
    assert not pending.is_due(0)
    pending.add(1, now_ms=0)
    assert pending.is_due(0)


def test_due_by_age_of_the_oldest() -> None:
    pending = Pending()
    assert not pending.is_due(10 * HOUR_MS)
    pending.add(1, now_ms=0)
    pending.add(1, now_ms=HOUR_MS - 1)
    assert not pending.is_due(HOUR_MS - 1)
    assert pending.is_due(HOUR_MS)


def test_what_was_merged_no_longer_counts() -> None:
    pending = Pending()
    for _ in range(120):
        pending.add(10, now_ms=0)
    pending.merged(100, 1_000, now_ms=HOUR_MS)
    assert (pending.count, pending.size, pending.oldest_ms) == (20, 200, HOUR_MS)
    pending.merged(100, 1_000, now_ms=HOUR_MS)
    assert pending == Pending()


def test_thresholds_are_floors_that_grow_with_the_document_and_end_somewhere() -> None:
    pending = Pending(count=100, size=200 * 1024, oldest_ms=0, base=1024 * 1024)
    assert not pending.is_due(0)
    assert Pending(count=100, size=256 * 1024, oldest_ms=0, base=1024 * 1024).is_due(0)
    assert Pending(count=1_000, size=1, oldest_ms=0, base=1024**3).is_due(0)
    assert pending.is_due(HOUR_MS)


def stamps(*days: str) -> list[CheckpointStamp]:
    return [
        CheckpointStamp(id=len(days) - number, up_to_seq=len(days) - number, created_at=f"2026-{day}T12:00:00.000Z")
        for number, day in enumerate(days)
    ]


def test_the_newest_checkpoints_and_the_last_of_each_day_stay() -> None:
    now, rule = "2026-11-30T12:00:00.000Z", Retention(newest=2, days=10)
    kept = stamps("11-30", "11-30", "11-30", "11-29", "11-28", "11-28", "11-21", "11-20", "11-01")
    assert to_drop(kept, now, rule) == [7, 4, 2, 1]
    assert to_drop(stamps("01-01", "01-01"), now, Retention(newest=0, days=0)) == [1]
    assert to_drop([], now, rule) == []
    assert (Retention().newest, Retention().days) == (10, 30)


@given(st.lists(st.integers(1, 28), max_size=60))
def test_retention_settles(days: list[int]) -> None:
    now = "2026-11-28T13:00:00.000Z"
    kept: list[CheckpointStamp] = []
    for number, day in enumerate(sorted(days)):
        kept.insert(0, replace(stamps(f"11-{day:02d}")[0], id=number))
        dropped = to_drop(kept, now, Retention())
        kept = [one for one in kept if one.id not in dropped]
        assert kept[0].id == number
    assert to_drop(kept, now, Retention()) == []
    assert len(kept) <= 40
    assert {int(one.created_at[8:10]) for one in kept} == set(days)


def test_pending_as_storage_counted_it() -> None:
    stats = UpdateStats(count=2, total_bytes=30, first_seq=1, last_seq=2, oldest_at="1970-01-01T00:00:01.000Z")
    assert Pending.of(stats) == Pending(2, 30, 1_000)
    none = UpdateStats(count=0, total_bytes=0, first_seq=None, last_seq=None, oldest_at=None)
    assert Pending.of(none) == Pending()


def test_a_document_opens_from_checkpoint_and_updates() -> None:
    document = Document(1)
    document.append("x" * 20_000)
    document.commit("user:1", {}, now_ms=0)
    snapshot, encoding = pack(document.snapshot())
    version = document.version()
    document.append("y")
    document.commit("user:1", {}, now_ms=0)
    stored = Checkpoint(
        id=1,
        block_id="mem_1",
        snapshot=snapshot,
        encoding=encoding,
        frontier=None,
        up_to_seq=1,
        updates_consolidated=1,
        created_at=NOW,
    )
    update = Update(
        id=1,
        block_id="mem_1",
        seq=2,
        update_blob=document.export_since(version),
        source=None,
        created_at=NOW,
        frontier=None,
        author=None,
        cause=None,
    )
    assert open_document(stored, [update], peer=2).text == "x" * 20_000 + "y"
    assert open_document(None, [], peer=2).text == ""
    with pytest.raises(DocumentDamaged):
        open_document(None, [update], peer=2)
