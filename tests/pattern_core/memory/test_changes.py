from __future__ import annotations

import pytest

from pattern_core.ids import Ids, seeded_randomness
from pattern_core.memory.changes import Made, archive, make, opened, record, told
from pattern_core.memory.document import Document
from pattern_core.memory.hot import Hot
from pattern_core.memory.shapes.containers import SpliceText
from pattern_core.memory.shapes.schema import LogSchema
from pattern_core.testing.clock import StoppedClock
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import BlockType, Permission
from pattern_db.tables import archival, block_versions, memory_blocks
from pattern_db.tables.memory_blocks import Attribution, BlockRow, Via, VisibleBlock
from tests.pattern_core.memory.rig import ADA, BY_ADA, NOW, constellation

BY = Attribution(author=BY_ADA, cause={"turn": "turn_1"})
ROW = BlockRow(
    id="mem_1", agent_id=ADA, label="notes", description="", block_type=BlockType.CORE, created_at=NOW, updated_at=NOW
)
HELLO = [SpliceText(container="content", at=0, delete=0, insert="hello")]


@pytest.fixture
def connection() -> Connection:
    connection = constellation()
    memory_blocks.create(connection, ROW)
    return connection


def test_a_change_becomes_an_update_that_others_can_take() -> None:
    document = Document(1)
    update = make(document, HELLO, BY, 1_795_000_000_000).update
    assert document.text == Document.load(None, [update], peer=2).text == "hello"


def test_a_change_is_recorded_with_its_text_version_and_event(connection: Connection) -> None:
    hot = Hot(block_id="mem_1", document=Document(1))
    work = UnitOfWork()
    made = Made(signed=make(opened(hot), HELLO, BY, 0), plain="hello", note="Said hello")
    visible = VisibleBlock(block=ROW, via=Via.OWN, permission=Permission.READ_WRITE)
    changed = record(visible, hot, made, BY, 1_795_000_000_000, work)
    assert (changed.block.last_seq, changed.block.content_preview, hot.seq) == (1, "hello", 1)
    assert hot.row is changed.block
    work.run(connection)
    stored = memory_blocks.get(connection, "mem_1")
    assert stored == changed.block
    [update] = block_versions.get_updates_since(connection, "mem_1", 0)
    assert (update.update_blob, update.cause) == (made.signed.update, {"turn": "turn_1"})
    assert [draft.data for draft in work.drafts] == [told(changed.block, BY)]


def test_a_block_that_was_not_opened_cannot_be_changed() -> None:
    with pytest.raises(RuntimeError, match="not opened"):
        opened(Hot(block_id="mem_1"))


def test_entries_go_to_the_archive_with_their_time_and_origin(connection: Connection) -> None:
    work = UnitOfWork()
    ids = Ids(StoppedClock(1_795_000_000_000), seeded_randomness(1))
    entries = [{"text": "a", "timestamp": "2020-01-01T00:00:00Z"}, {"text": "b", "timestamp": "junk"}, "c"]
    archive(ROW, LogSchema(), entries, ids, work)
    work.run(connection)
    rows = sorted(archival.list_for_agent(connection, ADA, 10), key=lambda row: row.content)
    assert [(row.content, row.created_at) for row in rows] == [
        ("- c", NOW),
        ("[2020-01-01T00:00:00Z] a", "2020-01-01T00:00:00.000Z"),
        ("[junk] b", NOW),
    ]
    assert all(row.id.startswith("arch_") for row in rows)
    assert rows[0].metadata == {"from_block": "notes", "block_id": "mem_1"}
