"""Checkpoints of documents: packing, retention, and merging of updates in the background.

A document that is edited for years still opens fast: a checkpoint has the document's state and not its history, so
opening a block and merging its updates depends only on the document's size and the new updates. The operations before
the newest checkpoint go into a segment, once, and are needed only for a whole document.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from pattern_core.ids import Clock, now_text
from pattern_core.limits import MemoryLimits
from pattern_core.memory.document import READER_PEER, BlockDocument, DocumentDamaged, compressed, decompressed
from pattern_db import errors as storage
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import Encoding
from pattern_db.tables import block_checkpoints
from pattern_db.tables.block_checkpoints import Checkpoint, CheckpointStamp, Segment
from pattern_db.tables.block_versions import Update, UpdateStats

# For a large document the limits on its updates grow with the size of a merge, so that each edit is written a bounded
# number of times; and the number of updates stays bounded, so that the document still opens fast.
BASE_FRACTION = 4
BASE_BYTES_PER_UPDATE = 512
UPDATES_HARD_MAX = 1_000
LIMITS = MemoryLimits()
_log = logging.getLogger(__name__)
_DAY_MS, _DAY_CHARS = 24 * 60 * 60 * 1000, len("2026-11-21")


@dataclass(slots=True)
class Pending:
    """The sums over a block's updates since its checkpoint; `oldest_ms` is the time of the first, None without any.

    `base` is the size of that checkpoint in bytes.
    """

    count: int = 0
    size: int = 0
    oldest_ms: int | None = None
    base: int = 0

    @classmethod
    def of(cls, stats: UpdateStats) -> Pending:
        """Return the counts of storage, without the checkpoint."""
        return cls(stats.count, stats.total_bytes, unix_ms(stats.oldest_at))

    @classmethod
    def stored(cls, checkpoint: Checkpoint | None, updates: Sequence[Update]) -> Pending:
        """Return the counts of a document that was just read."""
        oldest = unix_ms(updates[0].created_at) if updates else None
        size = sum(len(update.update_blob) for update in updates)
        return cls(len(updates), size, oldest, 0 if checkpoint is None else len(checkpoint.snapshot))

    def add(self, size: int, now_ms: int) -> None:
        """Count one more update of `size` bytes."""
        self.count, self.size = self.count + 1, self.size + size
        self.oldest_ms = now_ms if self.oldest_ms is None else self.oldest_ms

    def is_due(self, now_ms: int, limits: MemoryLimits = LIMITS) -> bool:
        """Return whether it is time to merge: by number, by bytes, or by age."""
        if self.oldest_ms is None:
            return False
        count_max = max(limits.checkpoint_update_count, self.base // BASE_BYTES_PER_UPDATE)
        return (
            self.count >= min(count_max, max(UPDATES_HARD_MAX, limits.checkpoint_update_count))
            or self.size >= max(limits.checkpoint_update_size, self.base // BASE_FRACTION)
            or now_ms - self.oldest_ms >= limits.checkpoint_interval_s * 1000
        )


def to_drop(checkpoints: Sequence[CheckpointStamp], now: str, limits: MemoryLimits) -> list[int]:
    """Return the ids of superfluous checkpoints. `checkpoints` are newest first; the first one is always kept."""
    since = iso(unix_ms(now) - limits.checkpoints_days * _DAY_MS)[:_DAY_CHARS]
    dropped: list[int] = []
    days: set[str] = set()
    for number, one in enumerate(checkpoints):
        day = one.created_at[:_DAY_CHARS]
        if number >= max(limits.checkpoints_newest, 1) and (day in days or day <= since):
            dropped.append(one.id)
        days.add(day)
    return dropped


def pack(snapshot: bytes, limits: MemoryLimits = LIMITS) -> tuple[bytes, Encoding]:
    """Return the bytes to store, compressed if they are long."""
    data = compressed(snapshot, limits.compression_threshold_bytes)
    return data, Encoding.RAW if data is snapshot else Encoding.ZSTD


def unpack(data: bytes, encoding: Encoding) -> bytes:
    """Return the inverse of `pack`.

    Raises:
        DocumentDamaged: the bytes are not such a frame, or are larger than any document when decompressed.
    """
    if encoding is Encoding.RAW:
        return data
    try:
        return decompressed(data)
    except ValueError as error:
        raise DocumentDamaged(f"a stored snapshot cannot be unpacked ({error}); restore a backup") from None


def open_document(checkpoint: Checkpoint | None, updates: list[Update], *, peer: int) -> BlockDocument:
    """Return the document that is stored as a checkpoint and the updates after it.

    Raises:
        DocumentDamaged: they do not belong together.
    """
    snapshot = None if checkpoint is None else unpack(checkpoint.snapshot, checkpoint.encoding)
    return BlockDocument.load(snapshot, [update.update_blob for update in updates], peer=peer)


class Consolidator:
    """Merges blocks passed to `ask`, one after the other, while `run` runs.

    `on_merged(block_id)` is called when the updates of a block are in a checkpoint.
    """

    def __init__(
        self, database: Database, clock: Clock, on_merged: Callable[[str], None], limits: MemoryLimits = LIMITS
    ) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock
        self._on_merged = on_merged
        self._due: dict[str, None] = {}  # a set in order; at most one entry per block
        self._merging = ""  # the block that `run` works on
        self._asked = trio.Event()

    def ask(self, block_id: str) -> None:
        """Queue the block for merging, unless it is being merged. Never waits."""
        if block_id != self._merging:
            self._due[block_id] = None
            self._asked.set()

    async def run(self) -> None:
        """Merge queued blocks until cancelled.

        Raises:
            StorageFailed: the disk failed; the file must be opened again.
        """
        while True:
            while self._due:
                self._merging = next(iter(self._due))
                del self._due[self._merging]
                try:
                    await self.consolidate(self._merging)
                except (DocumentDamaged, storage.RowNotFound) as error:
                    # Nothing is lost without merging, and the error is reported when the block is opened.
                    _log.error("the updates of block %s cannot be merged: %s", self._merging, error)
            self._merging = ""
            self._asked = trio.Event()
            await self._asked.wait()

    async def consolidate(self, block_id: str) -> bool:
        """Merge a block's stored updates into a checkpoint, now; return whether there were any.

        Updates that are stored during the merge are not affected; earlier checkpoints are kept according to the limits.

        Raises:
            NotFound: (of storage) there is no such block.
            DocumentDamaged: the stored document cannot be opened; nothing is changed.
        """
        checkpoint, updates = await self._database.read(block_checkpoints.get_checkpoint_and_updates, block_id)
        if not updates:
            return False
        try:
            await self._database.write(_merge, checkpoint, updates, now_text(self._clock), self._limits)
        except storage.RowConflict:  # another task merged newer updates
            return False
        self._on_merged(block_id)
        return True


def _merge(
    connection: Connection, checkpoint: Checkpoint | None, updates: list[Update], now: str, limits: MemoryLimits
) -> None:
    """Make the snapshot and store it. On the database's thread, so that packing does not block the event loop."""
    block_id, last_seq = updates[-1].block_id, updates[-1].seq
    document = open_document(checkpoint, [], peer=READER_PEER)
    version = document.version()
    for update in updates:
        document.import_update(update.update_blob)
    store_checkpoint(connection, block_id, document, checkpoint, version, last_seq, now, limits)
    dropped = to_drop(block_checkpoints.list_stamps(connection, block_id), now, limits)
    block_checkpoints.drop_checkpoints(connection, block_id, dropped)


def store_checkpoint(
    connection: Connection,
    block_id: str,
    document: BlockDocument,
    checkpoint: Checkpoint | None,
    version: bytes,
    last_seq: int,
    now: str,
    limits: MemoryLimits,
) -> None:
    """Make the document's state the block's newest checkpoint, and a segment of what came since `checkpoint`.

    `version` is that of the document in `checkpoint`. A document with its whole history exports all of it, which
    replaces earlier segments; this is the case if its checkpoint was made with history or imported.

    Raises:
        Conflict: (of storage) another consolidation was newer.
    """
    is_whole = checkpoint is None or document.has_whole_history()
    data, encoding = pack(document.export_since(None if is_whole else version), limits)
    segment = Segment(
        block_id=block_id,
        first_seq=0 if checkpoint is None or is_whole else checkpoint.up_to_seq + 1,
        last_seq=last_seq,
        created_at=now,
        encoding=encoding,
        data=data,
    )
    data, encoding = pack(document.state_snapshot(), limits)
    block_checkpoints.consolidate_checkpoint(connection, block_id, data, document.frontier(), last_seq, now, encoding)
    block_checkpoints.add_segment(connection, segment)


def whole_document(connection: Connection, block_id: str) -> BlockDocument:
    """Return the block's document with all of its history, for export. Slow for a long history.

    Raises:
        NotFound: (of storage) there is no such block.
        DocumentDamaged: a part of it cannot be read.
    """
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block_id)
    segments = block_checkpoints.segments_of(connection, block_id)
    parts = [unpack(segment.data, segment.encoding) for segment in segments]
    if not segments and checkpoint is not None:
        parts = [unpack(checkpoint.snapshot, checkpoint.encoding)]
    document = BlockDocument.load(None, [*parts, *(update.update_blob for update in updates)], peer=READER_PEER)
    if not document.has_whole_history():
        raise DocumentDamaged("the beginning of the document's history is missing; its content is complete")
    return document
