from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, Permission
from pattern_db.errors import NotFound
from pattern_db.tables import agents, memory_blocks
from pattern_db.tables.memory_blocks import Attachment, BlockRow, Via

MakeBlock = Callable[..., BlockRow]


def lend(db: Connection, block: BlockRow, agent: str, permission: Permission, second: int = 0) -> Attachment:
    row = Attachment(
        block_id=block.id, agent_id=agent, permission=permission, attached_at=f"2026-11-21T22:24:{second:02d}.000Z"
    )
    memory_blocks.attach(db, row)
    return row


def test_a_loan_is_made_changed_and_ended(db: Connection, make_block: MakeBlock) -> None:
    block = make_block("plan")
    loan = lend(db, block, "agt_bob", Permission.READ_ONLY)
    assert memory_blocks.list_attachments(db, block_id=block.id) == [loan]
    lend(db, block, "agt_bob", Permission.APPEND, second=9)
    assert memory_blocks.list_attachments(db, agent_id="agt_bob")[0].permission is Permission.APPEND
    assert db.execute("SELECT write_access FROM shared_block_agents").fetchall() == [(1,)]
    memory_blocks.detach(db, block.id, "agt_bob")
    assert memory_blocks.list_attachments(db) == []
    with pytest.raises(NotFound):
        memory_blocks.detach(db, block.id, "agt_bob")


def test_the_loans_of_a_block_and_of_an_agent_are_its_own(db: Connection, make_block: MakeBlock) -> None:
    plan, diary = make_block("plan"), make_block("diary")
    for_bob = lend(db, plan, "agt_bob", Permission.APPEND)
    for_ada = lend(db, diary, "agt_ada", Permission.READ_ONLY, second=1)
    too = lend(db, diary, "agt_bob", Permission.READ_ONLY, second=2)
    assert memory_blocks.list_attachments(db, block_id=plan.id) == [for_bob]
    assert memory_blocks.list_attachments(db, agent_id="agt_ada") == [for_ada]
    assert memory_blocks.list_attachments(db, block_id=diary.id, agent_id="agt_bob") == [too]
    assert memory_blocks.list_attachments(db) == [for_bob, for_ada, too]


def test_asking_first_is_no_write_access(db: Connection, make_block: MakeBlock) -> None:
    for permission in Permission:
        lend(db, make_block(permission), "agt_bob", permission)
    rows = db.execute(
        "SELECT permission FROM shared_block_agents WHERE write_access = 1 ORDER BY permission"
    ).fetchall()
    assert [row[0] for row in rows] == ["admin", "append", "read_write"]


def test_a_label_means_own_then_lent_then_everybodys(db: Connection, make_block: MakeBlock) -> None:
    everybody = make_block("plan", owner=CONSTELLATION_OWNER, permission=Permission.READ_ONLY)
    assert memory_blocks.resolve_label(db, "agt_bob", "plan").block.id == everybody.id
    lent = make_block("plan", owner="grp_team")
    lend(db, lent, "agt_bob", Permission.APPEND)
    seen = memory_blocks.resolve_label(db, "agt_bob", "plan")
    assert (seen.block.id, seen.via, seen.permission) == (lent.id, Via.ATTACHED, Permission.APPEND)
    own = make_block("plan", owner="agt_bob")
    seen = memory_blocks.resolve_label(db, "agt_bob", "plan")
    assert (seen.block.id, seen.via, seen.permission) == (own.id, Via.OWN, Permission.READ_WRITE)
    memory_blocks.deactivate(db, own.id, own.updated_at)
    memory_blocks.deactivate(db, lent.id, lent.updated_at)
    seen = memory_blocks.resolve_label(db, "agt_bob", "plan")
    assert (seen.block.id, seen.via, seen.permission) == (everybody.id, Via.CONSTELLATION, Permission.READ_ONLY)


def test_of_two_lent_blocks_the_one_lent_first_is_meant(db: Connection, make_block: MakeBlock) -> None:
    later, earlier = make_block("plan", owner="grp_a"), make_block("plan", owner="grp_b")
    lend(db, later, "agt_bob", Permission.APPEND, second=2)
    lend(db, earlier, "agt_bob", Permission.APPEND, second=1)
    assert memory_blocks.resolve_label(db, "agt_bob", "plan").block.id == earlier.id


def test_what_is_not_lent_is_not_seen(db: Connection, make_block: MakeBlock) -> None:
    make_block("secret")
    with pytest.raises(NotFound):
        memory_blocks.resolve_label(db, "agt_bob", "secret")
    assert memory_blocks.list_visible(db, "agt_bob") == []


def test_visible_blocks_come_once_in_order(db: Connection, make_block: MakeBlock) -> None:
    make_block("z", owner="agt_bob")
    make_block("a", owner="agt_bob")
    common = make_block("rules", owner=CONSTELLATION_OWNER)
    lend(db, common, "agt_bob", Permission.ADMIN)
    make_block("house", owner=CONSTELLATION_OWNER)
    seen = [(item.block.label, item.via) for item in memory_blocks.list_visible(db, "agt_bob")]
    assert seen == [("a", Via.OWN), ("z", Via.OWN), ("rules", Via.ATTACHED), ("house", Via.CONSTELLATION)]


def test_loans_go_with_the_block_and_with_the_agent(db: Connection, make_block: MakeBlock) -> None:
    mine = make_block("plan")
    lend(db, mine, "agt_bob", Permission.APPEND)
    agents.delete(db, "agt_bob")
    assert memory_blocks.list_attachments(db) == []
    with pytest.raises(apsw.ConstraintError):
        lend(db, mine, "agt_bob", Permission.APPEND)
