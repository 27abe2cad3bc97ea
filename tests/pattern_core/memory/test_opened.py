from __future__ import annotations

import pytest

from pattern_core.errors import NotFound, PermissionDenied
from pattern_core.ids import seeded_randomness
from pattern_core.memory import opened
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.opened import OpenBlocks
from pattern_core.memory.permission import Operation
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import Permission
from pattern_db.tables.memory_blocks import Attribution
from tests.pattern_core.memory.rig import ADA, BY_ADA, BY_USER, Rig

ADA_DOES, USER_DOES = Attribution(author=BY_ADA), Attribution(author=BY_USER)


@pytest.fixture
def blocks(rig: Rig) -> OpenBlocks:
    return OpenBlocks(rig.database, rig.clock, seeded_randomness(7), 4)


async def test_a_block_is_held_until_its_unit_is_settled(rig: Rig, blocks: OpenBlocks) -> None:
    block_id = await rig.block("text")
    work = UnitOfWork()
    visible, hot = await blocks.hold(ADA, "notes", ADA_DOES, Operation.OVERWRITE, work)
    assert (visible.block.id, hot.holder) == (block_id, work)
    document = await blocks.document(hot, visible.block)
    assert document.text == "text"
    assert await blocks.document(hot, visible.block) is document
    assert blocks.settled_document(block_id, 0) is document
    hot.is_changed = True
    assert blocks.settled_document(block_id, 0) is None
    work.settle(committed=False)
    assert hot.holder is None
    assert hot.document is None  # it has seen what the disk has not


async def test_edits_after_a_failure_come_from_another_peer(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    peer, generation = blocks.peer, blocks.seen.generation
    work = UnitOfWork()
    _, hot = await blocks.hold(ADA, "notes", USER_DOES, Operation.OVERWRITE, work)
    work.settle(committed=False)
    assert (blocks.peer, blocks.seen.generation) == (peer, generation)  # nothing was changed
    work = UnitOfWork()
    _, hot = await blocks.hold(ADA, "notes", USER_DOES, Operation.OVERWRITE, work)
    hot.is_changed = True
    work.settle(committed=False)
    assert blocks.peer != peer
    assert blocks.seen.generation > generation


async def test_who_may_not_gets_no_block(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text", permission=Permission.READ_ONLY)
    work = UnitOfWork()
    with pytest.raises(PermissionDenied):
        await blocks.hold(ADA, "notes", ADA_DOES, Operation.APPEND, work)
    await blocks.hold(ADA, "notes", ADA_DOES, Operation.READ, work)
    await blocks.hold(ADA, "notes", USER_DOES, Operation.OVERWRITE, work)
    with pytest.raises(NotFound, match="there are: notes"):
        await blocks.hold(ADA, "note", USER_DOES, Operation.READ, work)
    work.settle(committed=False)


async def test_only_its_own_agent_sees_what_is_not_stored(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    work = UnitOfWork()
    visible, hot = await blocks.hold(ADA, "notes", ADA_DOES, Operation.READ, work)
    assert blocks.as_changed(visible, ADA) is visible
    hot.row, hot.author, hot.is_changed = visible.block, BY_ADA, True
    assert blocks.as_changed(visible, ADA).block is visible.block
    assert blocks.as_changed(visible, "agt_bob") is visible
    work.settle(committed=True)
    blocks.forget(ADA)
    assert blocks.settled_document(visible.block.id, 0) is None


async def test_each_version_of_a_block_is_looked_at_once(rig: Rig, blocks: OpenBlocks) -> None:
    block_id = await rig.block("one")
    await blocks.check(block_id, "notes", 0)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    await blocks.check(block_id, "notes", 0)  # known to have been sound
    with pytest.raises(DocumentDamaged, match="memory repair notes"):
        await blocks.to_read(block_id, "notes", 0)
    with pytest.raises(DocumentDamaged, match="memory repair notes"):
        await blocks.check(block_id, "notes", 1)


async def test_only_so_many_sound_blocks_are_remembered(
    rig: Rig, blocks: OpenBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "SOUND_MAX", 1)
    first, second = await rig.block("one", label="first"), await rig.block("two", label="second")
    await blocks.check(first, "first", 0)
    await blocks.check(second, "second", 0)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    await blocks.check(second, "second", 0)
    with pytest.raises(DocumentDamaged):
        await blocks.check(first, "first", 0)
