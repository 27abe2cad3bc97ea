"""The blocks that are worked on, what agents see of them, and what is stored of a change."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.ids import seeded_randomness
from pattern_core.limits import Limits
from pattern_core.memory import opened
from pattern_core.memory.block import Operation
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.edits import AppendText
from pattern_core.memory.opened import OpenBlock, OpenBlocks
from pattern_core.memory.plan import Planned
from pattern_core.unit_of_work import UnitOfWork
from tests.pattern_core.memory.rig import ADA, BY_USER, Rig, block_row, prompt_blocks


def open_blocks(rig: Rig, open_max: int) -> OpenBlocks:
    return OpenBlocks(rig.storage, randomness=seeded_randomness(7), limits=Limits(open_documents_max=open_max))


@pytest.fixture
def blocks(rig: Rig) -> OpenBlocks:
    return open_blocks(rig, 4)


async def hold(blocks: OpenBlocks, label: str, work: UnitOfWork) -> OpenBlock:
    return await blocks.hold(ADA, label, BY_USER, Operation.READ, work)


def is_open(blocks: OpenBlocks, block_id: str) -> bool:
    return block_id in blocks._open


async def test_the_least_recently_used_is_closed_and_none_in_use(rig: Rig) -> None:
    blocks = open_blocks(rig, 2)
    ids = {label: await rig.block("text", label=label) for label in ("held", "a", "b", "c")}
    held = UnitOfWork()
    await hold(blocks, "held", held)
    for label in ("a", "b", "a", "c"):
        work = UnitOfWork()
        await hold(blocks, label, work)
        work.settle(committed=True)
    assert [label for label in ids if is_open(blocks, ids[label])] == ["held", "c"]
    held.settle(committed=True)
    assert [label for label in ids if is_open(blocks, ids[label])] == ["held", "c"]


async def test_forgetting_an_owner_closes_what_is_not_in_use(rig: Rig, blocks: OpenBlocks) -> None:
    used, idle = await rig.block("text", label="used"), await rig.block("text", label="idle")
    work, done = UnitOfWork(), UnitOfWork()
    await hold(blocks, "used", work)
    await hold(blocks, "idle", done)
    done.settle(committed=True)
    generation = blocks.generation
    blocks.forget(ADA)
    assert (is_open(blocks, used), is_open(blocks, idle)) == (True, False)
    assert blocks.generation > generation
    work.settle(committed=True)


async def test_holding_can_be_cancelled_before_it_begins(rig: Rig, blocks: OpenBlocks) -> None:
    block_id = await rig.block("text")
    first = UnitOfWork()
    hot = await hold(blocks, "notes", first)
    with trio.move_on_after(0.01) as scope:
        await hold(blocks, "notes", UnitOfWork())
    assert scope.cancelled_caught
    assert (hot.holder, hot.users) == (first, 1)
    first.settle(committed=True)
    assert (hot.holder, hot.users) == (None, 0)
    assert is_open(blocks, block_id)
    await hold(blocks, "notes", UnitOfWork())


async def test_what_is_open_is_read_as_it_is_stored(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    row = await rig.store.view(ADA, "notes")
    work = UnitOfWork()
    hot = await blocks.hold(ADA, "notes", BY_USER, Operation.OVERWRITE, work)
    before = await blocks.load(hot)
    said = Planned(plain="new", note="", writes={"content": "new"})
    blocks.change(hot, before, said, BY_USER, work)
    assert await blocks.read(row) == {"content": "text"}
    await rig.commit(work)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    assert await blocks.read(hot.row) == {"content": "new"}  # the open document, without a look at what is stored


async def test_the_versions_that_were_looked_at_last_are_known_to_be_sound(
    rig: Rig, blocks: OpenBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "SOUND_MAX", 1)
    for label in ("first", "second"):
        await rig.block("one", label=label)
    first, second = [await rig.store.view(ADA, label) for label in ("first", "second")]
    for row in (first, second):
        await blocks.check(row)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    await blocks.check(second)
    with pytest.raises(DocumentDamaged, match="memory repair second"):
        await blocks.read(second)
    for row in (first, replace(second, last_seq=1)):
        with pytest.raises(DocumentDamaged, match=f"memory repair {row.label}"):
            await blocks.check(row)


async def test_what_agents_see_is_read_once_until_something_is_stored(rig: Rig) -> None:
    assert await prompt_blocks(rig.store, ADA) == []
    await rig.block("green", label="tea")
    assert "green" in (await prompt_blocks(rig.store, ADA))[0]
    await rig.store.edit(ADA, "tea", AppendText(text=" or black"), by=BY_USER)
    [shown] = await prompt_blocks(rig.store, ADA)
    assert "green or black" in shown
    await rig.database.write(lambda connection: connection.execute("DELETE FROM memory_blocks").fetchall())
    assert await prompt_blocks(rig.store, ADA) == [shown]  # only the store writes blocks
    rig.store.blocks.forget(ADA)
    assert await prompt_blocks(rig.store, ADA) == []


async def test_a_block_that_was_not_opened_cannot_be_changed(blocks: OpenBlocks) -> None:
    with pytest.raises(RuntimeError, match="not opened"):
        blocks.change(OpenBlock(row=block_row()), {}, Planned(note="", writes={}), BY_USER, UnitOfWork())
