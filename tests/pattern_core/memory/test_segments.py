from __future__ import annotations

from collections.abc import Iterator

import pytest

from pattern_core.memory.document import DocumentDamaged, has_whole_history, state_snapshot
from pattern_core.memory.segments import segment_of, whole_document
from pattern_db.errors import NotFound
from pattern_db.tables import block_checkpoints
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.rig import NOW, constellation


@pytest.fixture
def life() -> Iterator[Life]:
    connection = constellation()
    yield Life(connection, create(connection, "initial"))
    connection.close()


def test_a_document_without_segments_is_whole_in_its_checkpoint(life: Life) -> None:
    life.append("user:1", " more")
    whole = whole_document(life.connection, life.block_id)
    assert (whole.text, whole.frontier()) == ("initial more", life.document.frontier())
    with pytest.raises(NotFound):
        whole_document(life.connection, "mem_none")


def test_a_whole_document_is_one_segment_from_the_beginning(life: Life) -> None:
    version = life.document.version()
    life.append("user:1", " more")
    checkpoint, _ = block_checkpoints.get_checkpoint_and_updates(life.connection, life.block_id)
    segment = segment_of(life.block_id, life.document, checkpoint, version, 1, NOW)
    assert (segment.first_seq, segment.last_seq) == (0, 1)


def test_a_missing_beginning_is_told(life: Life) -> None:
    from_shallow = life.connection
    life.append("user:1", " more")
    stored = block_checkpoints.get_checkpoint_and_updates(from_shallow, life.block_id)
    assert stored[0] is not None
    from_shallow.execute("UPDATE memory_blocks SET loro_snapshot = ?", (_state_only(life),))
    with pytest.raises(DocumentDamaged, match="beginning"):
        whole_document(from_shallow, life.block_id)


def _state_only(life: Life) -> bytes:
    assert has_whole_history(life.document)
    return state_snapshot(life.document)
