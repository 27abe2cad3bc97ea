from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, BlockType, Permission
from pattern_db.errors import RowNotFound
from pattern_db.tables import agents, memory_blocks
from pattern_db.tables.memory_blocks import Attachment, BlockChanges, BlockRow, Via
from tests.pattern_db.conftest import LATER, MakeBlock


@pytest.fixture
def block(make_block: MakeBlock) -> str:
    return make_block("persona").id


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
        frontier=b"v1",
    )
    assert memory_blocks.get(db, row.id) == row
    assert memory_blocks.list_all(db) == memory_blocks.list_visible(db, "agt_ada") == [row]


def test_a_deleted_label_can_be_used_again(db: Connection, make_block: MakeBlock, block: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        make_block("persona", id="blk_second")
    memory_blocks.deactivate(db, block, LATER)
    make_block("persona", id="blk_second")
    assert [row.id for row in memory_blocks.list_all(db)] == ["blk_second"]
    with pytest.raises(RowNotFound):
        memory_blocks.get(db, block)
    assert not memory_blocks.get(db, block, include_inactive=True).is_active
    with pytest.raises(RowNotFound):
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
    with pytest.raises(RowNotFound):
        memory_blocks.update_content(db, "blk_none", "", None, LATER)


def lend(db: Connection, block: BlockRow, agent: str, permission: Permission, second: int = 0) -> Attachment:
    row = Attachment(
        block_id=block.id, agent_id=agent, permission=permission, attached_at=f"2026-11-21T22:24:{second:02d}.000Z"
    )
    memory_blocks.attach(db, row)
    return row


def test_loans_are_made_listed_changed_and_ended(db: Connection, make_block: MakeBlock) -> None:
    plan, diary = make_block("plan"), make_block("diary")
    for_bob = lend(db, plan, "agt_bob", Permission.APPEND)
    for_ada = lend(db, diary, "agt_ada", Permission.READ_ONLY, second=2)
    too = lend(db, diary, "agt_bob", Permission.READ_ONLY, second=1)
    assert memory_blocks.list_attachments(db, plan.id) == [for_bob]
    assert memory_blocks.list_attachments(db, diary.id) == [too, for_ada]
    lend(db, plan, "agt_bob", Permission.READ_ONLY, second=9)
    assert memory_blocks.list_attachments(db, plan.id) == [replace(for_bob, permission=Permission.READ_ONLY)]
    memory_blocks.detach(db, plan.id, "agt_bob")
    assert memory_blocks.list_attachments(db, plan.id) == []
    with pytest.raises(RowNotFound):
        memory_blocks.detach(db, plan.id, "agt_bob")


def test_a_label_means_own_then_lent_first_then_common(db: Connection, make_block: MakeBlock) -> None:
    common = make_block("plan", owner=CONSTELLATION_OWNER, permission=Permission.READ_ONLY)
    later, earlier = make_block("plan", owner="grp_a"), make_block("plan", owner="grp_b")
    lend(db, later, "agt_bob", Permission.ADMIN, second=2)
    lend(db, earlier, "agt_bob", Permission.APPEND, second=1)
    own = make_block("plan", owner="agt_bob")
    for expected in (
        (own.id, Via.OWN, Permission.READ_WRITE),
        (earlier.id, Via.ATTACHED, Permission.APPEND),
        (later.id, Via.ATTACHED, Permission.ADMIN),
        (common.id, Via.CONSTELLATION, Permission.READ_ONLY),
    ):
        seen = memory_blocks.list_visible(db, "agt_bob", label="plan")[0]
        assert (seen.id, seen.via, seen.permission) == expected
        memory_blocks.deactivate(db, seen.id, seen.updated_at)
    assert memory_blocks.list_visible(db, "agt_bob") == []


def test_visible_blocks_come_once_in_order(db: Connection, make_block: MakeBlock) -> None:
    make_block("secret")
    make_block("z", owner="agt_bob")
    make_block("a", owner="agt_bob")
    common = make_block("rules", owner=CONSTELLATION_OWNER)
    lend(db, common, "agt_bob", Permission.ADMIN)
    make_block("house", owner=CONSTELLATION_OWNER)
    seen = [(item.label, item.via) for item in memory_blocks.list_visible(db, "agt_bob")]
    assert seen == [("a", Via.OWN), ("z", Via.OWN), ("rules", Via.ATTACHED), ("house", Via.CONSTELLATION)]
    assert memory_blocks.list_visible(db, "agt_bob", label="secret") == []
    every = [(row.agent_id, row.label) for row in memory_blocks.list_all(db)]
    assert every == sorted(every), "by owner and label"


def test_loans_go_with_the_block_and_with_the_agent(db: Connection, make_block: MakeBlock) -> None:
    mine = make_block("plan")
    lend(db, mine, "agt_bob", Permission.APPEND)
    agents.delete(db, "agt_bob")
    assert memory_blocks.list_attachments(db, mine.id) == []
    with pytest.raises(apsw.ConstraintError):
        lend(db, mine, "agt_bob", Permission.APPEND)
