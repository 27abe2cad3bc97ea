from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from pattern_db.connection import Connection, transaction
from pattern_db.enums import UpdateSource
from pattern_db.errors import NotFound
from pattern_db.tables import block_updates, memory_blocks
from pattern_db.tables.memory_blocks import Attribution, BlockRow

MakeBlock = Callable[..., BlockRow]
LATER = "2026-11-21T23:00:00.000Z"


@pytest.fixture
def block(make_block: MakeBlock) -> str:
    return make_block("persona").id


def store(db: Connection, block: str, *blobs: bytes) -> list[int]:
    return [block_updates.store_update(db, block, blob, UpdateSource.AGENT, LATER) for blob in blobs]


def test_numbers_rise_by_one_for_all_writers_of_a_block(db: Connection, make_block: MakeBlock) -> None:
    shared, other = make_block("shared").id, make_block("other").id
    assert store(db, shared, b"a", b"b") == [1, 2]
    assert store(db, other, b"x") == [1]
    attribution = Attribution(author="agent:agt_bob", cause={"message": "msg_1", "call": 2})
    seq = block_updates.store_update(db, shared, b"c", UpdateSource.SYNC, LATER, b"v3", attribution)
    assert seq == 3
    last = block_updates.get_updates_since(db, shared, 2)[0]
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
    assert [update.seq for update in block_updates.get_updates_since(db, block, 1)] == [2, 3]
    assert block_updates.get_updates_since(db, block, 3) == []
    assert block_updates.has_updates_since(db, block, 2)
    assert not block_updates.has_updates_since(db, block, 3)
    stats = block_updates.get_pending_update_stats(db, block)
    assert (stats.count, stats.total_bytes, stats.first_seq, stats.last_seq) == (3, 6, 1, 3)


def test_an_update_and_its_number_are_stored_together_or_not_at_all(db: Connection, block: str) -> None:
    db.execute("CREATE TRIGGER refuse BEFORE INSERT ON memory_block_updates BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(apsw.ConstraintError), transaction(db):
        store(db, block, b"a")
    assert memory_blocks.get(db, block).last_seq == 0


def test_no_update_for_a_missing_or_deleted_block(db: Connection, block: str) -> None:
    with pytest.raises(NotFound):
        store(db, "blk_none", b"a")
    memory_blocks.deactivate(db, block, LATER)
    with pytest.raises(NotFound):
        store(db, block, b"a")


def test_what_waits_to_be_merged_longest_first(db: Connection, make_block: MakeBlock, block: str) -> None:
    other = make_block("other").id
    gone = make_block("gone").id
    for block_id, at in ((block, LATER), (other, "2026-11-21T22:30:00.000Z"), (gone, LATER)):
        block_updates.store_update(db, block_id, b"xx", None, at)
    store(db, other, b"x")
    memory_blocks.deactivate(db, gone, LATER)
    waiting = block_updates.list_pending(db)
    assert [(block_id, stats.count, stats.total_bytes) for block_id, stats in waiting] == [(other, 2, 3), (block, 1, 2)]
    assert waiting[0][1] == block_updates.get_pending_update_stats(db, other)
