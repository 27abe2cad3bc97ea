from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all, transaction
from pattern_db.enums import DamagedPart, Encoding, HistoryKind, UpdateSource
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_checkpoints import Segment
from pattern_db.tables.block_versions import HistoryRow, UpdateStats
from pattern_db.tables.memory_blocks import Attribution
from tests.pattern_db.conftest import LATER, NOW, MakeBlock


@pytest.fixture
def block(make_block: MakeBlock) -> str:
    return make_block("persona").id


def store(db: Connection, block: str, *blobs: bytes) -> list[int]:
    return [block_versions.store_update(db, block, blob, UpdateSource.AGENT, LATER) for blob in blobs]


def test_numbers_rise_by_one_for_all_writers_of_a_block(db: Connection, make_block: MakeBlock) -> None:
    shared, other = make_block("shared").id, make_block("other").id
    assert store(db, shared, b"a", b"b") == [1, 2]
    assert store(db, other, b"x") == [1]
    attribution = Attribution(author="agent:agt_bob", cause={"message": "msg_1", "call": 2})
    seq = block_versions.store_update(db, shared, b"c", UpdateSource.SYNC, LATER, b"v3", attribution)
    assert seq == 3
    assert [update.seq for update in block_versions.get_updates_since(db, shared, 1)] == [2, 3]
    [last] = block_versions.get_updates_since(db, shared, 2)
    assert block_versions.get_updates_since(db, shared, 3) == []
    assert (last.source, last.frontier) == (UpdateSource.SYNC, b"v3")
    assert (last.author, last.cause) == (attribution.author, attribution.cause)
    row = memory_blocks.get(db, shared)
    assert (row.last_seq, row.frontier, row.updated_at) == (3, b"v3", LATER)


def test_an_update_is_refused_after_a_lost_race_and_for_a_missing_block(db: Connection, block: str) -> None:
    assert block_versions.store_update(db, block, b"a", None, LATER, expected_seq=1) == 1
    with pytest.raises(RowConflict, match="changed by another writer"):
        block_versions.store_update(db, block, b"b", None, LATER, expected_seq=1)
    memory_blocks.deactivate(db, block, LATER)
    for missing in ("blk_none", block):
        with pytest.raises(RowNotFound):
            store(db, missing, b"a")


def test_an_update_and_its_number_are_stored_together_or_not_at_all(db: Connection, block: str) -> None:
    db.execute("CREATE TRIGGER refuse BEFORE INSERT ON memory_block_updates BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(apsw.ConstraintError), transaction(db):
        store(db, block, b"a")
    assert memory_blocks.get(db, block).last_seq == 0


def test_what_waits_to_be_merged_longest_first(db: Connection, make_block: MakeBlock, block: str) -> None:
    other = make_block("other").id
    gone = make_block("gone").id
    for block_id, at in ((block, LATER), (other, "2026-11-21T22:30:00.000Z"), (gone, LATER)):
        block_versions.store_update(db, block_id, b"xx", None, at)
    store(db, other, b"x")
    memory_blocks.deactivate(db, gone, LATER)
    assert block_versions.list_pending(db) == [
        (other, UpdateStats(2, 3, "2026-11-21T22:30:00.000Z")),
        (block, UpdateStats(1, 2, LATER)),
    ]


def test_lines_are_newest_first_and_outlive_their_updates(db: Connection, block: str) -> None:
    rows = [
        replace(
            line(block, seq, change_summary=f"change {seq}", cause={"message": "msg_1"}),
            frontiers=[{"peer": "1", "counter": seq}],
            changed_by="agent:agt_ada",
        )
        for seq in store(db, block, b"x", b"x", b"x")
    ]
    for row in rows:
        block_versions.append(db, row)
    block_checkpoints.consolidate_checkpoint(db, block, b"s", None, 3, NOW)
    assert block_versions.recent(db, block, 2) == [replace(row, stack="agent:agt_ada") for row in (rows[2], rows[1])]
    assert [row.seq for row in block_versions.recent(db, block, 9, before=3)] == [2, 1]
    assert [row.seq for row in block_versions.between(db, block, 0, 3, limit=2)] == [2, 3]


def line(block: str, seq: int, **columns: object) -> HistoryRow:
    return HistoryRow(block_id=block, seq=seq, frontiers=None, changed_by="user:1", timestamp=NOW, **columns)  # type: ignore[arg-type]  # columns as the test names them


def test_an_undo_marks_what_it_takes_back_and_a_redo_unmarks_it(db: Connection, block: str) -> None:
    def undone() -> list[int | None]:
        return [row.seq for row in block_versions.between(db, block, 0, 9, limit=9) if row.is_undone]

    block_versions.append(db, line(block, 1))
    block_versions.append(db, line(block, 2, kind=HistoryKind.UNDO, reverts=1))
    assert undone() == [1]
    block_versions.append(db, line(block, 3, kind=HistoryKind.REDO, reverts=2))
    assert undone() == [2]
    with pytest.raises(apsw.ConstraintError):
        block_versions.append(db, line(block, 3))


def test_changes_come_in_either_order_and_versions_one_by_one(db: Connection, block: str) -> None:
    for seq, change in ((1, b"a"), (2, None), (3, b"c")):
        block_versions.append(db, line(block, seq, change=change))
    assert list(block_versions.changes(db, block, 0, 2)) == [(1, b"a"), (2, None)]
    assert list(block_versions.changes(db, block, 1, 3, newest_first=True)) == [(3, b"c"), (2, None)]
    assert block_versions.get(db, block, 3) == line(block, 3, change=b"c", stack="user:1")
    assert block_versions.get(db, block, 4) is None


def test_the_first_write_may_be_a_snapshot(db: Connection, make_block: MakeBlock) -> None:
    block = make_block("persona", snapshot=b"snap", frontier=b"v0").id
    store(db, block, b"one")
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert (checkpoint.id, checkpoint.snapshot, checkpoint.up_to_seq) == (None, b"snap", 0)
    assert [update.update_blob for update in updates] == [b"one"]


def test_consolidation_keeps_what_arrived_meanwhile(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b")
    merged_up_to = memory_blocks.get(db, block).last_seq
    store(db, block, b"c")  # while a and b are merged
    merged = block_checkpoints.consolidate_checkpoint(db, block, b"ab", b"v2", merged_up_to, LATER, Encoding.ZSTD)
    assert merged == 2
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert (checkpoint.snapshot, checkpoint.encoding, checkpoint.frontier) == (b"ab", Encoding.ZSTD, b"v2")
    assert (checkpoint.up_to_seq, checkpoint.updates_consolidated) == (2, 2)
    assert [(update.seq, update.update_blob) for update in updates] == [(3, b"c")]
    assert store(db, block, b"d") == [4]
    base = db.execute("SELECT loro_snapshot, snapshot_encoding FROM memory_blocks WHERE id = ?", (block,)).fetchall()
    assert base == [(b"ab", "zstd")]


def test_a_large_snapshot_is_kept_once(db: Connection, block: str) -> None:
    large = bytes(block_checkpoints.LARGE_SNAPSHOT_BYTES + 1)
    store(db, block, b"a", b"b")
    block_checkpoints.consolidate_checkpoint(db, block, large, None, 1, LATER)
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert (checkpoint.snapshot, len(updates)) == (large, 1)
    rows = db.execute(
        "SELECT length(loro_snapshot), length(data) FROM memory_blocks"
        " JOIN large_blobs ON large_blobs.id = large_blob_id"
    ).fetchall()
    assert rows == [(0, len(large))]
    block_checkpoints.consolidate_checkpoint(db, block, b"small", None, 2, LATER)
    assert db.execute("SELECT loro_snapshot, large_blob_id FROM memory_blocks").fetchall() == [(b"small", None)]


def test_a_late_consolidation_does_not_undo_a_newer_one(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b", b"c")
    block_checkpoints.consolidate_checkpoint(db, block, b"abc", None, 3, LATER)
    assert block_versions.list_pending(db) == []
    with pytest.raises(RowConflict):
        block_checkpoints.consolidate_checkpoint(db, block, b"ab", None, 2, LATER)
    with pytest.raises(RowConflict):
        block_checkpoints.consolidate_checkpoint(db, block, b"future", None, 9, LATER)
    checkpoint, _ = block_checkpoints.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert checkpoint.snapshot == b"abc"
    assert store(db, block, b"d") == [4], "no number is given twice"


def test_earlier_checkpoints_stay_until_dropped(db: Connection, block: str) -> None:
    for number in range(1, 4):
        store(db, block, b"x")
        block_checkpoints.consolidate_checkpoint(db, block, b"s%d" % number, None, number, LATER)
    assert [item.snapshot for item in block_checkpoints.list_checkpoints(db, block)] == [b"s3", b"s2", b"s1"]
    stamps = block_checkpoints.list_stamps(db, block)
    assert [(stamp.up_to_seq, stamp.created_at) for stamp in stamps] == [(3, LATER), (2, LATER), (1, LATER)]
    assert block_checkpoints.snapshot_of(db, stamps[1].id) == (b"s2", Encoding.RAW)
    block_checkpoints.drop_checkpoints(db, block, [stamp.id for stamp in stamps])  # never the newest
    assert [item.snapshot for item in block_checkpoints.list_checkpoints(db, block)] == [b"s3"]
    with pytest.raises(RowNotFound):
        block_checkpoints.snapshot_of(db, stamps[1].id)


def test_deleting_the_row_takes_updates_and_checkpoints_along(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b")
    block_checkpoints.consolidate_checkpoint(db, block, b"a", None, 1, LATER)
    db.execute("DELETE FROM memory_blocks WHERE id = ?", (block,))
    for table in ("memory_block_updates", "memory_block_checkpoints"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
    with pytest.raises(RowNotFound):
        block_checkpoints.get_checkpoint_and_updates(db, block)


def segment(block: str, first: int, last: int) -> Segment:
    data = b"%d-%d" % (first, last)
    return Segment(block_id=block, first_seq=first, last_seq=last, created_at=NOW, encoding=Encoding.RAW, data=data)


def test_segments_follow_one_another_and_a_wider_one_takes_their_place(db: Connection, block: str) -> None:
    one, two, three = segment(block, 0, 3), segment(block, 4, 5), segment(block, 6, 9)
    for part in (one, two, three):
        block_checkpoints.add_segment(db, part)
    assert block_checkpoints.segments_of(db, block) == [one, two, three]
    block_checkpoints.add_segment(db, again := segment(block, 4, 8))
    assert block_checkpoints.segments_of(db, block) == [one, again]
    block_checkpoints.add_segment(db, whole := segment(block, 0, 9))
    assert block_checkpoints.segments_of(db, block) == [whole]
    db.execute("DELETE FROM memory_blocks")
    assert block_checkpoints.segments_of(db, block) == []


def damaged(db: Connection, block: str) -> list[tuple[object, ...]]:
    sql = "SELECT part, seq, data, encoding, found_at, reason FROM memory_block_damaged WHERE block_id = ? ORDER BY id"
    return fetch_all(db, sql, (block,))


def test_what_is_newer_is_put_aside_and_the_rest_stays(db: Connection, make_block: MakeBlock) -> None:
    block = make_block("persona", snapshot=b"born").id
    for number in range(1, 4):
        block_versions.store_update(db, block, b"u%d" % number, None, NOW)
        if number < 3:
            block_checkpoints.consolidate_checkpoint(db, block, b"c%d" % number, None, number, NOW, Encoding.ZSTD)
            block_checkpoints.add_segment(db, segment(block, number, number))
    block_checkpoints.put_aside(db, block, 1, NOW, "rot")
    assert damaged(db, block) == [
        (DamagedPart.CHECKPOINT, 2, b"c2", Encoding.ZSTD, NOW, "rot"),
        (DamagedPart.UPDATE, 3, b"u3", Encoding.RAW, NOW, "rot"),
        (DamagedPart.SEGMENT, 2, b"2-2", Encoding.RAW, NOW, "rot"),
    ]
    assert [stamp.up_to_seq for stamp in block_checkpoints.list_stamps(db, block)] == [1]
    assert [segment.data for segment in block_checkpoints.segments_of(db, block)] == [b"1-1"]
    assert block_versions.get_updates_since(db, block, 0) == []


def test_what_a_block_was_created_with_counts_until_there_is_a_checkpoint(
    db: Connection, make_block: MakeBlock
) -> None:
    block = make_block("persona", snapshot=b"born").id
    block_checkpoints.put_aside(db, block, 0, NOW, "rot")
    assert damaged(db, block) == []
    block_checkpoints.put_aside(db, block, -1, NOW, "rot")
    assert [(part, data) for part, _seq, data, *_ in damaged(db, block)] == [(DamagedPart.CREATED, b"born")]
