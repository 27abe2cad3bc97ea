"""The operations of documents before their newest checkpoints, packed away: needed only by whoever wants a whole one.

A checkpoint holds a document's state and not its history, so that opening a block and merging its updates cost what the
block's size asks for, whatever has been edited over the years. With every merge the operations go into a segment, once.
"""

from __future__ import annotations

from pattern_core.memory.checkpoint import pack, unpack
from pattern_core.memory.document import READER_PEER, Document, DocumentDamaged, has_whole_history, nothing
from pattern_db.connection import Connection
from pattern_db.tables import block_checkpoints
from pattern_db.tables.block_checkpoints import Checkpoint, Segment


def segment_of(
    block_id: str, document: Document, checkpoint: Checkpoint | None, version: bytes, last_seq: int, now: str
) -> Segment:
    """What must be packed away before the document's state becomes the next checkpoint.

    `version` is that of the checkpoint. A document that knows its whole history gives all of it, which takes the place
    of earlier segments: so does one whose checkpoint was made with its history, or came from elsewhere.
    """
    is_whole = checkpoint is None or has_whole_history(document)
    data, encoding = pack(document.export_since(nothing() if is_whole else version))
    first = 0 if checkpoint is None or is_whole else checkpoint.up_to_seq + 1
    return Segment(
        block_id=block_id,
        first_seq=first,
        last_seq=last_seq,
        created_at=now,
        encoding=encoding,
        data=data,
    )


def whole_document(connection: Connection, block_id: str) -> Document:
    """The block's document with all of its history: for handing it to somebody else. Slow where it is long.

    Raises:
        NotFound: (of storage) there is no such block.
        DocumentDamaged: a part of it cannot be read.
    """
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block_id)
    segments = block_checkpoints.segments_of(connection, block_id)
    parts = [unpack(segment.data, segment.encoding) for segment in segments]
    if not segments and checkpoint is not None:
        parts = [unpack(checkpoint.snapshot, checkpoint.encoding)]
    document = Document.load(None, [*parts, *(update.update_blob for update in updates)], peer=READER_PEER)
    if not has_whole_history(document):
        raise DocumentDamaged("the beginning of the document's history is missing; its content is whole")
    return document
