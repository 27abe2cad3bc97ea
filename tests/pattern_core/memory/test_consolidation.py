from __future__ import annotations

import logging

import pytest
import trio
import trio.lowlevel
import trio.testing

from pattern_core.memory.checkpoint import INTERVAL_MS, open_document
from pattern_core.memory.consolidation import Consolidator
from pattern_core.memory.document import has_whole_history
from pattern_core.memory.edits.edit import AppendText
from pattern_core.memory.segments import whole_document
from pattern_db.errors import NotFound
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from tests.pattern_core.memory.rig import ADA, BY_ADA, NOW, Rig


def make(rig: Rig) -> tuple[Consolidator, list[tuple[str, int, int]]]:
    merged: list[tuple[str, int, int]] = []
    return Consolidator(rig.database, rig.clock, lambda *what: merged.append(what)), merged


async def test_updates_become_a_checkpoint_once(rig: Rig) -> None:
    consolidator, merged = make(rig)
    block_id = await rig.block("a")
    for _ in range(3):
        await rig.store.edit(ADA, "notes", AppendText(text="b"), author=BY_ADA)
    updates = await rig.database.read(block_versions.get_updates_since, block_id, 0)
    assert await consolidator.consolidate(block_id)
    assert not await consolidator.consolidate(block_id)
    assert merged == [(block_id, 3, sum(len(update.update_blob) for update in updates))]
    [checkpoint] = await rig.database.read(block_checkpoints.list_checkpoints, block_id)
    row = await rig.database.read(memory_blocks.get, block_id)
    assert (checkpoint.up_to_seq, checkpoint.frontier, row.last_seq) == (3, row.frontier, 3)


async def test_updates_that_arrive_during_merges_survive(file_rig: Rig) -> None:
    consolidator, merged = make(file_rig)
    block_id = await file_rig.block("")
    unfinished = 4

    async def write(name: str) -> None:
        nonlocal unfinished
        for number in range(10):
            await file_rig.store.edit(ADA, "notes", AppendText(text=f"{name}{number} "), author=BY_ADA)
        unfinished -= 1

    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(write, name)
        while unfinished:
            await consolidator.consolidate(block_id)
            await trio.lowlevel.checkpoint()
    assert len(merged) > 1
    fresh = Rig(file_rig.database, seed=1)
    words = (await fresh.store.edit(ADA, "notes", AppendText(text="end"), author=BY_ADA)).block.content.split()
    assert sorted(words) == sorted(["end", *(f"{name}{number}" for name in "abcd" for number in range(10))])


async def test_what_is_asked_for_while_it_is_merged_is_not_merged_twice(rig: Rig) -> None:
    asked: list[str] = []

    def ask_again(block_id: str, _count: int, _size: int) -> None:
        asked.append(block_id)
        consolidator.ask(block_id)

    consolidator = Consolidator(rig.database, rig.clock, ask_again)
    block_id = await rig.block("a")
    await rig.store.edit(ADA, "notes", AppendText(text="b"), author=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.run)
        consolidator.ask(block_id)
        await trio.testing.wait_all_tasks_blocked()
        await rig.store.edit(ADA, "notes", AppendText(text="c"), author=BY_ADA)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert asked == [block_id]


async def test_two_at_once_merge_once(rig: Rig) -> None:
    consolidator, merged = make(rig)
    block_id = await rig.block("a")
    await rig.store.edit(ADA, "notes", AppendText(text="b"), author=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.consolidate, block_id)
        nursery.start_soon(consolidator.consolidate, block_id)
    assert merged[0][1] == 1
    assert await rig.database.read(block_versions.get_updates_since, block_id, 0) == []
    assert (await rig.store.edit(ADA, "notes", AppendText(text="c"), author=BY_ADA)).block.content == "abc"


async def test_an_unknown_block(rig: Rig) -> None:
    consolidator, _ = make(rig)
    with pytest.raises(NotFound):
        await consolidator.consolidate("mem_none")


async def test_a_damaged_block_is_logged_and_the_others_go_on(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    consolidator, merged = make(rig)
    bad = await rig.block("a", label="bad")
    good = await rig.block("a")
    await rig.database.write(block_versions.store_update, bad, b"junk", None, NOW)
    await rig.store.edit(ADA, "notes", AppendText(text="b"), author=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.run)
        for block_id in (bad, "mem_none", good, good):
            consolidator.ask(block_id)
        with caplog.at_level(logging.ERROR):
            await trio.testing.wait_all_tasks_blocked()
        assert [block_id for block_id, *_ in merged] == [good]
        assert len(caplog.records) == 2
        await rig.store.edit(ADA, "notes", AppendText(text="c"), author=BY_ADA)
        consolidator.ask(good)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(merged) == 2
    assert len(await rig.database.read(block_versions.get_updates_since, bad, 0)) == 1


async def test_what_grew_old_while_nobody_was_here_is_merged_on_waking(rig: Rig) -> None:
    consolidator, merged = make(rig)
    old = await rig.block("a", label="old")
    new = await rig.block("a", label="new")
    await rig.store.edit(ADA, "old", AppendText(text="b"), author=BY_ADA)
    rig.clock.advance(INTERVAL_MS)
    await rig.store.edit(ADA, "new", AppendText(text="b"), author=BY_ADA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consolidator.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [block_id for block_id, *_ in merged] == [old]
    assert new != old


async def test_checkpoints_hold_the_state_and_segments_the_rest(rig: Rig) -> None:
    consolidator, _ = make(rig)
    block_id = await rig.block("a")
    texts = ["a"]
    for number in range(12):
        for word in ("b", "c"):
            await rig.store.edit(ADA, "notes", AppendText(text=f" {word}{number}" * 50), author=BY_ADA)
            texts.append(await rig.content())
        assert await consolidator.consolidate(block_id)
    checkpoints = await rig.database.read(block_checkpoints.list_checkpoints, block_id)
    assert [one.up_to_seq for one in checkpoints] == list(range(24, 4, -2))  # the newest ten
    for one in checkpoints:
        document = open_document(one, [], peer=1)
        assert document.text == texts[one.up_to_seq]
        assert not has_whole_history(document)
    segments = await rig.database.read(block_checkpoints.segments_of, block_id)
    assert [(one.first_seq, one.last_seq) for one in segments] == [(0, 2), *((n, n + 1) for n in range(3, 24, 2))]
    whole = await rig.database.read(whole_document, block_id)
    row = await rig.database.read(memory_blocks.get, block_id)
    assert (whole.text, whole.frontier()) == (texts[-1], row.frontier)
    assert has_whole_history(whole)
