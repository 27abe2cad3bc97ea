from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import BlockType, Encoding, Permission, UpdateSource
from pattern_db.errors import Conflict, NotFound
from pattern_db.tables import memory_blocks
from pattern_db.tables.memory_blocks import Attribution, BlockChanges, BlockRow

MakeBlock = Callable[..., BlockRow]
LATER = "2026-11-21T23:00:00.000Z"


@pytest.fixture
def block(make_block: MakeBlock) -> str:
    return make_block("persona").id


def store(db: Connection, block: str, *blobs: bytes) -> list[int]:
    return [memory_blocks.store_update(db, block, blob, UpdateSource.AGENT, LATER) for blob in blobs]


def test_a_block_comes_back_as_it_was_stored(db: Connection, make_block: MakeBlock) -> None:
    row = make_block(
        "notes",
        snapshot=b"\x00\xff",
        description="what to know",
        block_type=BlockType.WORKING,
        char_limit=7,
        permission=Permission.APPEND,
        pinned=True,
        content_preview="Grüße 🌍",
        metadata={"schema": {"kind": "text"}},
        embedding_model="m",
        frontier=b"v1",
    )
    assert memory_blocks.get(db, row.id) == row
    assert memory_blocks.get_by_label(db, "agt_ada", "notes") == row
    assert memory_blocks.list_for_agent(db, "agt_ada") == [row]
    assert memory_blocks.list_for_agent(db, "agt_ada", block_type=BlockType.CORE) == []


def test_read_only_follows_the_permission(db: Connection, make_block: MakeBlock) -> None:
    make_block("open")
    make_block("shut", permission=Permission.READ_ONLY)
    rows = db.execute("SELECT label, read_only FROM memory_blocks ORDER BY label").fetchall()
    assert rows == [("open", 0), ("shut", 1)]


def test_a_new_block_has_no_updates_and_no_checkpoint(db: Connection, block: str) -> None:
    assert memory_blocks.get(db, block).last_seq == 0
    assert memory_blocks.get_checkpoint_and_updates(db, block) == (None, [])
    assert not memory_blocks.has_updates_since(db, block, 0)
    stats = memory_blocks.get_pending_update_stats(db, block)
    assert (stats.count, stats.total_bytes, stats.first_seq, stats.oldest_at) == (0, 0, None, None)


def test_the_first_write_may_be_a_snapshot(db: Connection, make_block: MakeBlock) -> None:
    block = make_block("persona", snapshot=b"snap", frontier=b"v0").id
    store(db, block, b"one")
    checkpoint, updates = memory_blocks.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert (checkpoint.id, checkpoint.snapshot, checkpoint.up_to_seq) == (None, b"snap", 0)
    assert [update.update_blob for update in updates] == [b"one"]


def test_numbers_rise_by_one_for_all_writers_of_a_block(db: Connection, make_block: MakeBlock) -> None:
    shared, other = make_block("shared").id, make_block("other").id
    assert store(db, shared, b"a", b"b") == [1, 2]
    assert store(db, other, b"x") == [1]
    attribution = Attribution(author="agent:agt_bob", cause={"message": "msg_1", "call": 2})
    seq = memory_blocks.store_update(db, shared, b"c", UpdateSource.SYNC, LATER, b"v3", attribution)
    assert seq == 3
    last = memory_blocks.get_updates_since(db, shared, 2)[0]
    assert (last.seq, last.source, last.author, last.cause, last.frontier) == (
        3,
        UpdateSource.SYNC,
        "agent:agt_bob",
        {"message": "msg_1", "call": 2},
        b"v3",
    )
    row = memory_blocks.get(db, shared)
    assert (row.last_seq, row.frontier, row.updated_at) == (3, b"v3", LATER)


def test_updates_since_returns_only_what_is_newer(db: Connection, block: str) -> None:
    store(db, block, b"a", b"bb", b"ccc")
    assert [update.seq for update in memory_blocks.get_updates_since(db, block, 1)] == [2, 3]
    assert memory_blocks.get_updates_since(db, block, 3) == []
    assert memory_blocks.has_updates_since(db, block, 2)
    assert not memory_blocks.has_updates_since(db, block, 3)
    stats = memory_blocks.get_pending_update_stats(db, block)
    assert (stats.count, stats.total_bytes, stats.first_seq, stats.last_seq) == (3, 6, 1, 3)


def test_an_update_and_its_number_are_stored_together_or_not_at_all(db: Connection, block: str) -> None:
    db.execute("CREATE TRIGGER refuse BEFORE INSERT ON memory_block_updates BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(apsw.ConstraintError):
        store(db, block, b"a")
    assert memory_blocks.get(db, block).last_seq == 0


def test_no_update_for_a_missing_or_deleted_block(db: Connection, block: str) -> None:
    with pytest.raises(NotFound):
        store(db, "blk_none", b"a")
    memory_blocks.deactivate(db, block, LATER)
    with pytest.raises(NotFound):
        store(db, block, b"a")


def test_consolidation_keeps_what_arrived_meanwhile(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b")
    merged_up_to = memory_blocks.get(db, block).last_seq
    store(db, block, b"c")  # while somebody merges a and b
    merged = memory_blocks.consolidate_checkpoint(db, block, b"ab", b"v2", merged_up_to, LATER, Encoding.ZSTD)
    assert merged == 2
    checkpoint, updates = memory_blocks.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert (checkpoint.snapshot, checkpoint.encoding, checkpoint.frontier) == (b"ab", Encoding.ZSTD, b"v2")
    assert (checkpoint.up_to_seq, checkpoint.updates_consolidated) == (2, 2)
    assert [(update.seq, update.update_blob) for update in updates] == [(3, b"c")]
    assert store(db, block, b"d") == [4]
    base = db.execute("SELECT loro_snapshot, snapshot_encoding FROM memory_blocks WHERE id = ?", (block,)).fetchall()
    assert base == [(b"ab", "zstd")]


def test_a_large_snapshot_is_kept_once(db: Connection, block: str) -> None:
    large = bytes(memory_blocks.LARGE_SNAPSHOT_BYTES + 1)
    store(db, block, b"a", b"b")
    memory_blocks.consolidate_checkpoint(db, block, large, None, 1, LATER)
    checkpoint, updates = memory_blocks.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert (checkpoint.snapshot, len(updates)) == (large, 1)
    rows = db.execute(
        "SELECT length(loro_snapshot), length(data) FROM memory_blocks"
        " JOIN large_blobs ON large_blobs.id = large_blob_id"
    ).fetchall()
    assert rows == [(0, len(large))]
    memory_blocks.consolidate_checkpoint(db, block, b"small", None, 2, LATER)
    assert db.execute("SELECT loro_snapshot, large_blob_id FROM memory_blocks").fetchall() == [(b"small", None)]


def test_numbers_are_not_reused_after_everything_was_merged(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b")
    memory_blocks.consolidate_checkpoint(db, block, b"ab", None, 2, LATER)
    assert memory_blocks.get_pending_update_stats(db, block).count == 0
    assert store(db, block, b"c") == [3]


def test_a_late_consolidation_does_not_undo_a_newer_one(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b", b"c")
    memory_blocks.consolidate_checkpoint(db, block, b"abc", None, 3, LATER)
    with pytest.raises(Conflict):
        memory_blocks.consolidate_checkpoint(db, block, b"ab", None, 2, LATER)
    with pytest.raises(Conflict):
        memory_blocks.consolidate_checkpoint(db, block, b"future", None, 9, LATER)
    checkpoint, _ = memory_blocks.get_checkpoint_and_updates(db, block)
    assert checkpoint is not None
    assert checkpoint.snapshot == b"abc"


def test_earlier_checkpoints_stay_until_pruned(db: Connection, block: str) -> None:
    for number in range(1, 4):
        store(db, block, b"x")
        memory_blocks.consolidate_checkpoint(db, block, b"s%d" % number, None, number, LATER)
    assert [item.snapshot for item in memory_blocks.list_checkpoints(db, block)] == [b"s3", b"s2", b"s1"]
    assert memory_blocks.prune_checkpoints(db, block, 2) == 1
    assert memory_blocks.prune_checkpoints(db, block, 0) == 1
    assert [item.snapshot for item in memory_blocks.list_checkpoints(db, block)] == [b"s3"]


def test_deleting_the_row_takes_updates_and_checkpoints_along(db: Connection, block: str) -> None:
    store(db, block, b"a", b"b")
    memory_blocks.consolidate_checkpoint(db, block, b"a", None, 1, LATER)
    db.execute("DELETE FROM memory_blocks WHERE id = ?", (block,))
    for table in ("memory_block_updates", "memory_block_checkpoints"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
    with pytest.raises(NotFound):
        memory_blocks.get_checkpoint_and_updates(db, block)


def test_a_deleted_label_can_be_used_again(db: Connection, make_block: MakeBlock, block: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        make_block("persona", id="blk_second")
    memory_blocks.deactivate(db, block, LATER)
    make_block("persona", id="blk_second")
    assert memory_blocks.get_by_label(db, "agt_ada", "persona").id == "blk_second"
    with pytest.raises(NotFound):
        memory_blocks.get(db, block)
    assert not memory_blocks.get(db, block, include_inactive=True).is_active
    with pytest.raises(NotFound):
        memory_blocks.deactivate(db, block, LATER)


def test_settings_change_one_by_one(db: Connection, block: str) -> None:
    before = memory_blocks.get(db, block)
    memory_blocks.set_pinned(db, block, True, LATER)
    memory_blocks.set_type(db, block, BlockType.WORKING, LATER)
    after = memory_blocks.get(db, block)
    assert (after.pinned, after.block_type, after.updated_at) == (True, BlockType.WORKING, LATER)
    assert (after.label, after.char_limit, after.permission) == (before.label, before.char_limit, before.permission)
    changes = BlockChanges(
        label="me", description="d", char_limit=9, permission=Permission.ADMIN, metadata={"a": 1}, pinned=False
    )
    memory_blocks.update_config(db, block, changes, LATER)
    row = memory_blocks.get(db, block)
    assert (row.label, row.description, row.char_limit, row.permission) == ("me", "d", 9, Permission.ADMIN)
    assert (row.metadata, row.pinned, row.block_type) == ({"a": 1}, False, BlockType.WORKING)


def test_content_changes_preview_and_version(db: Connection, block: str) -> None:
    memory_blocks.update_content(db, block, "likes tea", b"v9", LATER)
    row = memory_blocks.get(db, block)
    assert (row.content_preview, row.frontier, row.updated_at) == ("likes tea", b"v9", LATER)
    with pytest.raises(NotFound):
        memory_blocks.update_content(db, "blk_none", "", None, LATER)


def test_labels_by_prefix_across_owners(db: Connection, make_block: MakeBlock) -> None:
    for owner, label in (("agt_bob", "file:b"), ("agt_ada", "file:a"), ("agt_ada", "100%"), ("agt_ada", "100x")):
        make_block(label, owner=owner)
    labels = [(row.agent_id, row.label) for row in memory_blocks.list_all(db, label_prefix="file:")]
    assert labels == [("agt_ada", "file:a"), ("agt_bob", "file:b")]
    assert [row.label for row in memory_blocks.list_all(db, label_prefix="100%")] == ["100%"]
