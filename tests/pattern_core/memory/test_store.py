"""One path for every edit: what is stored with it, what it refuses, and who waits for whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.limits import Limits, MemoryLimits
from pattern_core.memory.block import BlockSettings, NewBlock
from pattern_core.memory.edits import AppendText, ReplaceText, SetText
from pattern_core.memory.opened import LABELS_SHOWN_MAX
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import BlockType, Encoding, HistoryKind, Permission, UpdateSource
from pattern_db.errors import RowConflict
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.memory_blocks import Attachment, Via
from tests.pattern_core.memory.rig import ADA, ALL, BOB, BY_ADA, BY_USER, NOW, Rig, prompt_blocks


def lend(connection: Connection, block_id: str, permission: Permission, agent_id: str = BOB) -> None:
    row = Attachment(block_id=block_id, agent_id=agent_id, permission=permission, attached_at=NOW)
    memory_blocks.attach(connection, row)


async def test_a_new_block_is_seen_and_announced(rig: Rig) -> None:
    made = await rig.store.create(
        ADA, NewBlock(label="human", content="Likes tea.", description="The user"), by=BY_USER
    )
    assert made == await rig.store.view(ADA, "human")
    assert made.id.startswith("mem_")
    assert (made.content, made.version, made.char_limit, made.via) == ("Likes tea.", 0, 5000, Via.OWN)
    assert made.block_type is BlockType.CORE
    [event] = rig.events
    assert event.name == "memory.changed"
    assert event.data == {"block_id": made.id, "label": "human", "agent_id": ADA, "version": 0, "by": BY_USER.author}


async def test_a_label_is_taken_once_and_free_again_after_deletion(rig: Rig) -> None:
    first = await rig.block("old")
    with pytest.raises(Conflict, match="block 'notes' already exists"):
        await rig.block("new")
    await rig.block("theirs", owner=BOB)
    await rig.store.delete(ADA, "notes", by=BY_USER)
    assert rig.events[-1].data["deleted"] is True
    with pytest.raises(NotFound, match="no memory block 'notes'; there are: none"):
        await rig.store.view(ADA, "notes")
    assert await rig.store.list(ADA) == []
    second = await rig.block("")
    assert second != first
    assert await rig.content() == ""


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (NewBlock(label=""), "cannot be a label"),
        (NewBlock(label="x", char_limit=-1), "limit is between"),
        (NewBlock(label="x", char_limit=3, content="four"), "at most 3 characters"),
        (NewBlock(label="x", description="\ud800"), "surrogate"),
        (NewBlock(label="x", metadata={"schema": {"Map": {}}}), "a Map needs `fields`"),
        (NewBlock(label="x", schema="Table"), "there are: Text, Map, List, Log, Composite"),
    ],
)
async def test_blocks_that_cannot_be(rig: Rig, new: NewBlock, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await rig.store.create(ADA, new, by=BY_USER)
    assert await rig.store.list(ADA) == []


async def test_an_edit_stores_update_text_history_and_event_together(rig: Rig) -> None:
    block_id = await rig.block("Hello")
    rig.clock.advance(1000)
    by = replace(BY_ADA, cause={"turn": "turn_1", "call": "call_1"})
    edited = await rig.store.edit(ADA, "notes", AppendText(text=" 🌍"), by=by)
    assert edited.block == await rig.store.view(ADA, "notes")
    assert (edited.block.content, edited.block.version) == ("Hello 🌍", 1)
    [update] = await rig.database.read(block_versions.get_updates_since, block_id, 0)
    assert (update.seq, update.author, update.source) == (1, BY_ADA.author, UpdateSource.AGENT)
    assert update.cause == {"turn": "turn_1", "call": "call_1"}
    line, first = await rig.database.read(block_versions.recent, block_id, 10)
    assert (first.seq, first.kind) == (0, HistoryKind.CREATE)
    assert (line.changed_by, line.change_summary, line.seq) == (BY_ADA.author, "Appended 2 characters", 1)
    assert update.frontier is not None
    assert line.frontiers == update.frontier.hex()
    assert rig.events[-1].data["version"] == 1
    await rig.store.edit(ADA, "notes", SetText(text="Hello"), by=BY_USER)
    [by_user] = await rig.database.read(block_versions.get_updates_since, block_id, 1)
    assert by_user.source is UpdateSource.MANUAL
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await rig.store.edit(ADA, "notes", SetText(text=""), by=BY_USER, expected_version=1)


async def test_an_edit_that_changes_nothing_stores_nothing(rig: Rig) -> None:
    block_id = await rig.block("same")
    for edit in (SetText(text="same"), ReplaceText(old="same", new="same"), AppendText(text="")):
        edited = await rig.store.edit(ADA, "notes", edit, by=BY_USER)
        assert (edited.note, edited.block.version) == ("Nothing changed", 0)
    assert await rig.database.read(block_versions.get_updates_since, block_id, 0) == []
    assert len(rig.events) == 1


async def test_labels_resolve_own_then_lent_then_the_constellations(rig: Rig) -> None:
    shared = await rig.block("bob's", owner=BOB)
    await rig.block("for all", owner=ALL)
    assert (await rig.store.view(ADA, "notes")).via is Via.CONSTELLATION
    await rig.database.write(lend, shared, Permission.APPEND, ADA)
    assert await rig.content() == "bob's"
    await rig.block("mine")
    assert await rig.content() == "mine"
    assert [view.content for view in await rig.store.list(ADA)] == ["mine"]


@pytest.mark.parametrize(
    "settings",
    [
        BlockSettings(label="</x>"),
        BlockSettings(char_limit=0),
        BlockSettings(char_limit=10_000_000),
        BlockSettings(description="x" * 2001),
        BlockSettings(metadata={"schema": "Log"}),
        BlockSettings(block_type=BlockType.ARCHIVAL),
    ],
)
async def test_invalid_settings_are_refused(rig: Rig, settings: BlockSettings) -> None:
    await rig.block("x")
    before = await rig.store.view(ADA, "notes")
    with pytest.raises(InvalidInput):
        await rig.store.set_metadata(ADA, "notes", settings, by=BY_USER)
    assert await rig.store.view(ADA, "notes") == before


async def test_a_given_unit_of_work_is_not_committed_by_the_store(rig: Rig) -> None:
    await rig.block("a")
    work = UnitOfWork()
    edited = await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA, work=work)
    again = await rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_ADA, work=work)
    assert (edited.block.version, again.block.version, again.block.content) == (1, 2, "abc")
    assert await rig.content() == "a"
    await rig.commit(work)
    assert await rig.content() == "abc"
    assert [event.data["version"] for event in rig.events] == [0, 1, 2]


async def test_only_the_agent_whose_call_it_is_sees_it_in_its_prompt_before_the_commit(rig: Rig) -> None:
    block_id = await rig.block("a")
    await rig.database.write(lend, block_id, Permission.APPEND)
    work = UnitOfWork()
    await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA, work=work)
    await rig.store.set_metadata(ADA, "notes", BlockSettings(description="new"), by=BY_ADA, work=work)
    [shown] = await prompt_blocks(rig.store, ADA)
    assert shown == "## notes (2 of 5,000 characters): new\nab"
    [theirs] = await prompt_blocks(rig.store, BOB)
    assert theirs == "## notes (lent by ada, append only, 1 of 5,000 characters)\na"
    work.settle(committed=False)
    assert (await prompt_blocks(rig.store, ADA))[0].endswith("\na")


async def test_a_block_deleted_by_the_call_under_way_uncovers_what_it_hid(rig: Rig) -> None:
    await rig.block("mine", permission=Permission.ADMIN)
    await rig.block("for all", owner=ALL)
    work = UnitOfWork()
    await rig.store.delete(ADA, "notes", by=BY_ADA, work=work)
    [shown] = await prompt_blocks(rig.store, ADA)
    assert "for all" in shown
    work.settle(committed=False)


async def commit_below(rig: Rig, work: UnitOfWork, task: Callable[[], Awaitable[object]]) -> None:
    """Commit `work` when the task waits for it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit(work)


async def test_an_edit_waits_for_the_unit_that_has_the_block(rig: Rig) -> None:
    await rig.block("a")
    await rig.block("free", label="other")
    work = UnitOfWork()
    await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA, work=work)
    done: list[str] = []

    async def edit() -> None:
        edited = await rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_USER, expected_version=1)
        done.append(edited.block.content)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(edit)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        await rig.store.edit(ADA, "other", AppendText(text="!"), by=BY_USER)  # other blocks do not wait
        await rig.commit(work)
    assert done == ["abc"]


async def test_what_changed_while_waiting_is_seen(rig: Rig) -> None:
    await rig.block("a")
    work = UnitOfWork()
    await rig.store.set_metadata(ADA, "notes", BlockSettings(permission=Permission.READ_ONLY), by=BY_USER, work=work)

    async def edit() -> None:
        with pytest.raises(PermissionDenied):
            await rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_ADA)

    await commit_below(rig, work, edit)
    assert await rig.content() == "a"


async def test_a_label_that_means_another_block_meanwhile_is_followed(rig: Rig) -> None:
    await rig.block("old")
    work = UnitOfWork()
    await rig.store.delete(ADA, "notes", by=BY_USER, work=work)
    rest = await rig.store.create(ALL, NewBlock(label="notes", content="all"), by=BY_USER)
    await commit_below(rig, work, lambda: rig.store.edit(ADA, "notes", AppendText(text="!"), by=BY_USER))
    view = await rig.store.view(ADA, "notes")
    assert (view.id, view.content) == (rest.id, "all!")


async def test_another_writer_is_noticed(rig: Rig) -> None:
    block_id = await rig.block("a")
    work = UnitOfWork()
    await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA, work=work)
    other = await rig.database.read(block_checkpoints.get_checkpoint_and_updates, block_id)
    assert other[0] is not None
    await rig.database.write(block_versions.store_update, block_id, other[0].snapshot, None, NOW)
    with pytest.raises(RowConflict, match="changed by another writer"):
        await rig.commit(work)
    edited = await rig.store.edit(ADA, "notes", AppendText(text="c"), by=BY_ADA)
    assert (edited.block.content, edited.block.version) == ("ac", 2)


async def test_consolidation_is_due_by_number_by_bytes_and_by_age(database: Database) -> None:
    rig = Rig(database, limits=Limits(block_chars_max=100_000, memory=MemoryLimits(checkpoint_update_count=5)))
    ids = [await rig.block(label=label, char_limit=100_000) for label in ("many", "big", "old")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.store.blocks.run)
        for _ in range(7):
            await rig.store.edit(ADA, "many", AppendText(text="x"), by=BY_ADA)
            await trio.testing.wait_all_tasks_blocked()
        await rig.store.edit(ADA, "big", SetText(text="".join(map(str, range(20_000)))[:90_000]), by=BY_ADA)
        await rig.store.edit(ADA, "old", AppendText(text="1"), by=BY_ADA)
        rig.clock.advance(60 * 60 * 1000)
        await rig.store.edit(ADA, "old", AppendText(text="2"), by=BY_ADA)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    stored = [await rig.database.read(block_checkpoints.list_checkpoints, block_id) for block_id in ids]
    found = [[(one.up_to_seq, one.encoding) for one in checkpoints] for checkpoints in stored]
    assert found == [[(5, Encoding.RAW)], [(1, Encoding.ZSTD)], [(2, Encoding.RAW)]]


async def test_a_wrong_label_is_answered_with_some_right_ones(rig: Rig) -> None:
    for number in range(LABELS_SHOWN_MAX + 1):
        await rig.block(label=f"n{number:03d}")
    with pytest.raises(NotFound, match="no memory block 'x'; there are: n000, n001") as caught:
        await rig.store.view(ADA, "x")
    assert caught.value.message.count("n0") == LABELS_SHOWN_MAX
