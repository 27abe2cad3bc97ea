"""The blocks that are worked on, what agents see of them, and what is stored of a change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.errors import NotFound, PermissionDenied
from pattern_core.ids import seeded_randomness
from pattern_core.limits import Limits
from pattern_core.memory import opened
from pattern_core.memory.block import NewBlock, Operation
from pattern_core.memory.document import BlockDocument, DocumentDamaged
from pattern_core.memory.edits import AppendText
from pattern_core.memory.opened import LABELS_SHOWN_MAX, OpenBlock, OpenBlocks, distinct, resolve, told
from pattern_core.memory.plan import Planned
from pattern_core.memory.store import store_block, store_settings
from pattern_core.testing.model import says
from pattern_core.unit_of_work import UnitOfWork
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.enums import BlockType, Encoding, HistoryKind, Permission, UpdateSource
from pattern_db.tables import block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow
from pattern_db.tables.memory_blocks import Attachment, Attribution, BlockChanges, BlockRow
from tests.pattern_core.memory.rig import ADA, ALL, BOB, BY_ADA, BY_USER, NOW, Rig, constellation, prompt_blocks
from tests.support import USER, running

ADA_DOES, USER_DOES = Attribution(author=BY_ADA), Attribution(author=BY_USER)


def open_blocks(rig: Rig, open_max: int) -> OpenBlocks:
    return OpenBlocks(
        database=rig.database,
        clock=rig.clock,
        randomness=seeded_randomness(7),
        limits=Limits(open_documents_max=open_max),
        commit=rig.commit,
    )


@pytest.fixture
def blocks(rig: Rig) -> OpenBlocks:
    return open_blocks(rig, 4)


async def hold(blocks: OpenBlocks, label: str, work: UnitOfWork) -> OpenBlock:
    return await blocks.hold(ADA, label, USER_DOES, Operation.READ, work)


def is_open(blocks: OpenBlocks, block_id: str) -> bool:
    return block_id in blocks._open


async def test_a_block_is_kept_until_its_unit_of_work_is_settled(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    first, second = UnitOfWork(), UnitOfWork()
    hot = await hold(blocks, "notes", first)
    assert await hold(blocks, "notes", first) is hot  # the same unit again, without waiting
    with trio.move_on_after(0.01) as scope:
        await hold(blocks, "notes", second)
    assert scope.cancelled_caught
    first.settle(committed=True)
    assert (await hold(blocks, "notes", second)).holder is second
    second.settle(committed=False)
    assert (hot.holder, hot.users, hot.author) == (None, 0, "")


async def test_waiters_come_in_order_and_a_unit_may_be_settled_by_another_task(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    order: list[int] = []
    first = UnitOfWork()
    await hold(blocks, "notes", first)

    async def wait(number: int) -> None:
        work = UnitOfWork()
        await hold(blocks, "notes", work)
        order.append(number)
        work.settle(committed=True)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        first.settle(committed=True)
    assert order == [0, 1, 2]


async def test_who_waited_sees_what_was_stored_meanwhile(rig: Rig) -> None:
    blocks = rig.store.blocks
    await rig.block("text")
    first, second = UnitOfWork(), UnitOfWork()
    await rig.store.edit(ADA, "notes", AppendText(text="!"), author=BY_USER, work=first)
    seen: list[BlockRow] = []

    async def wait() -> None:
        seen.append((await hold(blocks, "notes", second)).row)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit(first)
    assert [(row.content_preview, row.last_seq) for row in seen] == [("text!", 1)]
    second.settle(committed=True)


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


async def test_a_block_is_held_until_its_unit_is_settled(rig: Rig, blocks: OpenBlocks) -> None:
    block_id = await rig.block("text")
    work = UnitOfWork()
    hot = await blocks.hold(ADA, "notes", ADA_DOES, Operation.OVERWRITE, work)
    assert (hot.row.id, hot.holder) == (block_id, work)
    assert await blocks.load(hot) == {"content": "text"}
    document = hot.document
    assert await blocks.load(hot) == {"content": "text"}
    assert hot.document is document
    hot.author = BY_ADA
    work.settle(committed=False)
    assert hot.holder is None
    assert hot.document is None  # it has seen what the disk has not


async def test_edits_after_a_failure_come_from_another_peer(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    peer, generation = blocks.peer, blocks.generation
    work = UnitOfWork()
    hot = await blocks.hold(ADA, "notes", USER_DOES, Operation.OVERWRITE, work)
    work.settle(committed=False)
    assert (blocks.peer, blocks.generation) == (peer, generation)  # nothing was changed
    work = UnitOfWork()
    hot = await blocks.hold(ADA, "notes", USER_DOES, Operation.OVERWRITE, work)
    hot.author = BY_USER
    work.settle(committed=False)
    assert blocks.peer != peer
    assert blocks.generation > generation


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
    hot = await blocks.hold(ADA, "notes", ADA_DOES, Operation.READ, work)
    stored = hot.row
    await rig.block("old", owner=ALL)
    blocks.stored(True)
    assert await blocks.seen_by(ADA) == [stored]
    hot.row, hot.author = replace(stored, content_preview="new"), BY_ADA
    assert await blocks.seen_by(ADA) == [hot.row]
    assert [one.content for one in await blocks.seen_by(BOB)] == ["old"]
    hot.row = replace(stored, is_active=False)
    assert [one.content for one in await blocks.seen_by(ADA)] == ["old"]
    hot.author = BY_USER
    assert await blocks.seen_by(ADA) == [stored]
    work.settle(committed=True)
    blocks.forget(ADA)
    assert not is_open(blocks, stored.id)


async def test_what_is_open_is_read_as_it_is_stored(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("text")
    row = await rig.store.view(ADA, "notes")
    work = UnitOfWork()
    hot = await blocks.hold(ADA, "notes", USER_DOES, Operation.OVERWRITE, work)
    before = await blocks.load(hot)
    said = Planned(plain="new", note="", writes={"content": "new"})
    blocks.change(hot, before, said, USER_DOES, work)
    assert await blocks.read(row) == {"content": "text"}
    await rig.commit(work)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    assert await blocks.read(hot.row) == {"content": "new"}  # the open document, without a look at what is stored


async def test_each_version_of_a_block_is_looked_at_once(rig: Rig, blocks: OpenBlocks) -> None:
    await rig.block("one")
    row = await rig.store.view(ADA, "notes")
    await blocks.check(row)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    await blocks.check(row)  # known to have been sound
    with pytest.raises(DocumentDamaged, match="memory repair notes"):
        await blocks.read(row)
    with pytest.raises(DocumentDamaged, match="memory repair notes"):
        await blocks.check(replace(row, last_seq=1))


async def test_only_so_many_sound_blocks_are_remembered(
    rig: Rig, blocks: OpenBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "SOUND_MAX", 1)
    for label in ("first", "second"):
        await rig.block("one", label=label)
    first, second = [await rig.store.view(ADA, label) for label in ("first", "second")]
    await blocks.check(first)
    await blocks.check(second)
    await rig.database.write(lambda connection: connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00'"))
    await blocks.check(second)
    with pytest.raises(DocumentDamaged):
        await blocks.check(first)


# What agents see is read once, until something is stored.


async def test_every_change_shows_in_the_next_prompt() -> None:
    async with running(otherwise=says("ok")) as world:
        ada = await world.agent()
        memory = world.constellation.memory
        await world.say("one")
        await memory.create(ada.id, NewBlock(label="tea", content="green", block_type=BlockType.CORE), author=USER)
        await world.say("two")
        await memory.edit(ada.id, "tea", AppendText(text=" or black"), author=USER)
        await world.say("three")
        await memory.delete(ada.id, "tea", author=USER)
        await world.say("four")
        shown = ["\n".join(request.system) for request in world.provider.requests]
        assert ["green" in text for text in shown] == [False, True, True, False]
        assert ["green or black" in text for text in shown] == [False, False, True, False]


async def test_nothing_is_read_again_without_a_change() -> None:
    async with running(otherwise=says("ok")) as world:
        ada = await world.agent()
        memory = world.constellation.memory
        first = await prompt_blocks(memory, ada.id)
        await world.database.write(lambda connection: connection.execute("DELETE FROM memory_blocks").fetchall())
        assert await prompt_blocks(memory, ada.id) == first  # nobody but the store writes blocks
        memory.blocks.forget(ada.id)
        assert await prompt_blocks(memory, ada.id) == []


# What a change writes.

ROW = BlockRow(
    id="mem_1", agent_id=ADA, label="notes", description="", block_type=BlockType.CORE, created_at=NOW, updated_at=NOW
)


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = constellation()
    yield connection
    connection.close()


@pytest.mark.parametrize(("author", "source"), [(BY_ADA, UpdateSource.AGENT), (BY_USER, UpdateSource.MANUAL)])
async def test_a_change_is_recorded_with_its_text_version_and_event(
    blocks: OpenBlocks, db: Connection, author: str, source: UpdateSource
) -> None:
    memory_blocks.create(db, ROW)
    hot = OpenBlock(row=ROW, document=BlockDocument(1))
    work, by = UnitOfWork(), Attribution(author=author, cause={"turn": "turn_1"})
    said = Planned(plain="hello", note="Said hello", writes={"content": "hello"})
    blocks.change(hot, {}, said, by, work)
    assert (hot.row.last_seq, hot.row.content_preview, hot.seq) == (1, "hello", 1)
    assert hot.pending.count == 1
    work.run(db)
    assert memory_blocks.get(db, "mem_1") == hot.row
    [update] = block_versions.get_updates_since(db, "mem_1", 0)
    assert (update.source, update.cause) == (source, {"turn": "turn_1"})
    assert BlockDocument.load(None, [update.update_blob], peer=2).text == "hello"  # others can take it
    [line] = block_versions.recent(db, "mem_1", 5)
    assert (line.change_summary, line.changed_by, line.cause) == ("Said hello", author, {"turn": "turn_1"})
    assert [draft.data for draft in work.drafts] == [told(hot.row, by)]


async def test_a_block_that_was_not_opened_cannot_be_changed(blocks: OpenBlocks) -> None:
    nothing = Planned(plain="", note="", writes={})
    with pytest.raises(RuntimeError, match="not opened"):
        blocks.change(OpenBlock(row=ROW), {}, nothing, USER_DOES, UnitOfWork())


def row(label: str = "notes", owner: str = ADA, number: int = 1) -> BlockRow:
    return BlockRow(
        id=f"mem_{owner}_{label}_{number}",
        agent_id=owner,
        label=label,
        description="",
        block_type=BlockType.CORE,
        created_at=NOW,
        updated_at=NOW,
        content_preview="",
    )


def begun(block: BlockRow) -> HistoryRow:
    """The first line of a block's history."""
    return HistoryRow(
        block_id=block.id,
        seq=0,
        frontiers=None,
        changed_by="user:1",
        timestamp=NOW,
        kind=HistoryKind.CREATE,
        stack="user:1",
    )


def test_a_block_and_its_label(db: Connection) -> None:
    store_block(db, row(), b"", Encoding.RAW, begun(row()))
    with pytest.raises(storage.Conflict, match="there is a block 'notes' already"):
        store_block(db, row(number=2), b"", Encoding.RAW, begun(row(number=2)))
    store_block(db, row("todo"), b"", Encoding.RAW, begun(row("todo")))
    with pytest.raises(storage.Conflict, match="there is a block 'notes' already"):
        store_settings(db, row("todo").id, BlockChanges(label="notes"), NOW)
    store_settings(db, row("todo").id, BlockChanges(pinned=True), NOW)
    assert resolve(db, ADA, "todo").pinned
    with pytest.raises(storage.NotFound):
        store_settings(db, "mem_none", BlockChanges(pinned=True), NOW)


def test_a_wrong_label_is_answered_with_some_right_ones(db: Connection) -> None:
    with pytest.raises(NotFound, match="no memory block 'x'; there are: none"):
        resolve(db, ADA, "x")
    for number in range(LABELS_SHOWN_MAX + 10):
        store_block(db, row(f"n{number:03d}"), b"", Encoding.RAW, begun(row(f"n{number:03d}")))
    with pytest.raises(NotFound) as caught:
        resolve(db, ADA, "x")
    assert caught.value.message.count("n0") == LABELS_SHOWN_MAX


def test_lenders_have_names_and_labels_one_meaning(db: Connection) -> None:
    for owner, label in ((BOB, "plan"), (ALL, "plan"), ("grp_1", "log")):
        store_block(db, row(label, owner), b"", Encoding.RAW, begun(row(label, owner)))
        if owner != ALL:
            lent = Attachment(
                block_id=row(label, owner).id, agent_id=ADA, permission=Permission.APPEND, attached_at=NOW
            )
            memory_blocks.attach(db, lent)
    visible = memory_blocks.list_visible(db, ADA)
    assert [one.lender for one in visible] == [None, "bob", None]
    assert [(one.agent_id, one.label) for one in distinct(visible)] == [("grp_1", "log"), (BOB, "plan")]
    assert [one.lender for one in memory_blocks.list_visible(db, BOB)] == [None, None]
