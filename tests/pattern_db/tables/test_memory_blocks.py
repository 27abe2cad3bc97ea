from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import BlockType, Permission, UpdateSource
from pattern_db.errors import NotFound
from pattern_db.tables import block_updates, memory_blocks
from pattern_db.tables.memory_blocks import BlockChanges, BlockRow

MakeBlock = Callable[..., BlockRow]
LATER = "2026-11-21T23:00:00.000Z"


@pytest.fixture
def block(make_block: MakeBlock) -> str:
    return make_block("persona").id


def store(db: Connection, block: str, *blobs: bytes) -> list[int]:
    return [block_updates.store_update(db, block, blob, UpdateSource.AGENT, LATER) for blob in blobs]


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
    assert memory_blocks.list_for_agent(db, "agt_ada") == [row]
    assert memory_blocks.list_for_agent(db, "agt_ada", block_type=BlockType.CORE) == []


def test_read_only_follows_the_permission(db: Connection, make_block: MakeBlock) -> None:
    make_block("open")
    make_block("shut", permission=Permission.READ_ONLY)
    rows = db.execute("SELECT label, read_only FROM memory_blocks ORDER BY label").fetchall()
    assert rows == [("open", 0), ("shut", 1)]


def test_a_deleted_label_can_be_used_again(db: Connection, make_block: MakeBlock, block: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        make_block("persona", id="blk_second")
    memory_blocks.deactivate(db, block, LATER)
    make_block("persona", id="blk_second")
    assert [row.id for row in memory_blocks.list_for_agent(db, "agt_ada")] == ["blk_second"]
    with pytest.raises(NotFound):
        memory_blocks.get(db, block)
    assert not memory_blocks.get(db, block, include_inactive=True).is_active
    with pytest.raises(NotFound):
        memory_blocks.deactivate(db, block, LATER)


def test_settings_change_one_by_one(db: Connection, block: str) -> None:
    before = memory_blocks.get(db, block)
    memory_blocks.update_config(db, block, BlockChanges(pinned=True), LATER)
    memory_blocks.update_config(db, block, BlockChanges(block_type=BlockType.WORKING), LATER)
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
