from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pattern_core.errors import NotFound
from pattern_core.memory.document import Document
from pattern_core.memory.stored import (
    LABELS_SHOWN_MAX,
    StoredEdit,
    distinct,
    load,
    resolve,
    store_block,
    store_edit,
    store_settings,
    with_owners,
)
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.enums import BlockType, Encoding, HistoryKind, Permission, UpdateSource
from pattern_db.tables import block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow
from pattern_db.tables.memory_blocks import Attachment, Attribution, BlockChanges, BlockRow
from tests.pattern_core.memory.rig import ADA, ALL, BOB, NOW, constellation


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = constellation()
    yield connection
    connection.close()


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


def edited(block: BlockRow, author: str, cause: dict[str, str] | None = None) -> StoredEdit:
    """An edit that makes a block what it is given as."""
    line = HistoryRow(
        block_id=block.id,
        seq=block.last_seq,
        frontiers=None,
        changed_by=author,
        timestamp=NOW,
        change_summary="n",
        cause=cause,
    )
    return StoredEdit(row=block, update=b"bytes", by=Attribution(author=author, cause=cause), line=line)


def test_a_block_and_its_label(db: Connection) -> None:
    store_block(db, row(), b"", begun(row()))
    with pytest.raises(storage.Conflict, match="there is a block 'notes' already"):
        store_block(db, row(number=2), b"", begun(row(number=2)))
    store_block(db, row("todo"), b"", begun(row("todo")))
    with pytest.raises(storage.Conflict, match="there is a block 'notes' already"):
        store_settings(db, row("todo").id, BlockChanges(label="notes"), NOW)
    store_settings(db, row("todo").id, BlockChanges(pinned=True), NOW)
    assert resolve(db, ADA, "todo").block.pinned
    with pytest.raises(storage.NotFound):
        store_settings(db, "mem_none", BlockChanges(pinned=True), NOW)


def test_a_long_snapshot_is_stored_compressed(db: Connection) -> None:
    store_block(db, row(), b"x" * 20_000, begun(row()))
    checkpoint, updates, stats = load(db, row().id)
    assert checkpoint is not None
    assert (checkpoint.encoding, updates, stats.count) == (Encoding.ZSTD, [], 0)


@pytest.mark.parametrize(("author", "source"), [("agent:agt_ada", UpdateSource.AGENT), ("user:1", UpdateSource.MANUAL)])
def test_an_edit_stores_update_text_and_history(db: Connection, author: str, source: UpdateSource) -> None:
    store_block(db, row(), b"", begun(row()))
    document = Document(1)
    changed = replace(row(), content_preview="hello", frontier=document.frontier(), last_seq=1)
    edit = edited(changed, author, {"turn": "t"})
    store_edit(db, edit)
    assert resolve(db, ADA, "notes").block == changed
    _checkpoint, [update], stats = load(db, row().id)
    assert (update.update_blob, update.source, update.cause, stats.total_bytes) == (b"bytes", source, {"turn": "t"}, 5)
    line, first = block_versions.recent(db, row().id, 5)
    assert first == begun(row())
    assert (line.change_summary, line.changed_by, line.cause) == ("n", author, {"turn": "t"})
    with pytest.raises(storage.Conflict, match="changed by another writer"):
        store_edit(db, edit)


def test_an_edit_of_a_deleted_block_is_refused(db: Connection) -> None:
    store_block(db, row(), b"", begun(row()))
    memory_blocks.deactivate(db, row().id, NOW)
    edit = edited(row(), "user:1")
    with pytest.raises(storage.NotFound):
        store_edit(db, edit)


def test_a_wrong_label_is_answered_with_some_right_ones(db: Connection) -> None:
    with pytest.raises(NotFound, match="no memory block 'x'; there are: none"):
        resolve(db, ADA, "x")
    for number in range(LABELS_SHOWN_MAX + 10):
        store_block(db, row(f"n{number:03d}"), b"", begun(row(f"n{number:03d}")))
    with pytest.raises(NotFound) as caught:
        resolve(db, ADA, "x")
    assert caught.value.message.count("n0") == LABELS_SHOWN_MAX


def test_lenders_have_names_and_labels_one_meaning(db: Connection) -> None:
    for owner, label in ((BOB, "plan"), (ALL, "plan"), ("grp_1", "log")):
        store_block(db, row(label, owner), b"", begun(row(label, owner)))
        if owner != ALL:
            lent = Attachment(
                block_id=row(label, owner).id, agent_id=ADA, permission=Permission.APPEND, attached_at=NOW
            )
            memory_blocks.attach(db, lent)
    visible, names = with_owners(db, ADA)
    assert names == {BOB: "bob"}
    assert [(one.block.agent_id, one.block.label) for one in distinct(visible)] == [("grp_1", "log"), (BOB, "plan")]
    assert with_owners(db, BOB)[1] == {}
