"""When a block's updates are merged into a checkpoint, and how checkpoints are packed. Pure.

Source: thresholds and compression as in the database design (LoroStorageConfig).
"""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

from pattern_core.memory.document import Document, DocumentDamaged
from pattern_db.enums import Encoding
from pattern_db.tables.memory_blocks import Checkpoint, Update, UpdateStats
from pattern_db.timestamps import unix_ms

COMPRESS_ABOVE_BYTES = 10 * 1024
UPDATES_MAX = 100
UPDATE_BYTES_MAX = 50 * 1024
INTERVAL_MS = 60 * 60 * 1000
CHECKPOINTS_KEPT = 5  # for rollback; each holds the whole history up to its time
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
_LEVEL = 3


@dataclass(slots=True)
class Pending:
    """What a block's updates since its checkpoint come to; `oldest_ms` is the first one's time, None without any."""

    count: int = 0
    size: int = 0
    oldest_ms: int | None = None

    @classmethod
    def of(cls, stats: UpdateStats) -> Pending:
        """As storage counted it."""
        return cls(stats.count, stats.total_bytes, None if stats.oldest_at is None else unix_ms(stats.oldest_at))

    def add(self, size: int, now_ms: int) -> None:
        """Count one more update of `size` bytes."""
        self.count += 1
        self.size += size
        self.oldest_ms = now_ms if self.oldest_ms is None else self.oldest_ms

    def merged(self, count: int, size: int, now_ms: int) -> None:
        """Take off `count` updates of `size` bytes that are in a checkpoint now; those left are taken for new ones."""
        self.count, self.size = max(self.count - count, 0), max(self.size - size, 0)
        self.oldest_ms = now_ms if self.count else None

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time to merge: by number, by bytes, or by age."""
        if self.oldest_ms is None:
            return False
        return self.count >= UPDATES_MAX or self.size >= UPDATE_BYTES_MAX or now_ms - self.oldest_ms >= INTERVAL_MS


def pack(snapshot: bytes) -> tuple[bytes, Encoding]:
    """The bytes to store: compressed where that pays."""
    if len(snapshot) <= COMPRESS_ABOVE_BYTES:
        return snapshot, Encoding.RAW
    # The module's function, never a shared compressor: one used by two threads crashes the process.
    return zstandard.compress(snapshot, _LEVEL), Encoding.ZSTD


def unpack(data: bytes, encoding: Encoding) -> bytes:
    """The inverse of `pack`.

    Raises:
        DocumentDamaged: the bytes are no such frame, or unfold to more than any document may have.
    """
    if encoding is Encoding.RAW:
        return data
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > SNAPSHOT_BYTES_MAX:  # also where the frame does not say: pack's always do
            raise DocumentDamaged(f"a stored snapshot claims {size} bytes; restore the block from a backup")
        return zstandard.decompress(data)
    except zstandard.ZstdError as error:
        raise DocumentDamaged(f"a stored snapshot cannot be unpacked ({error}); restore a backup") from None


def open_document(checkpoint: Checkpoint | None, updates: list[Update], *, peer: int) -> Document:
    """The document that is stored as a checkpoint and the updates after it.

    Raises:
        DocumentDamaged: they do not fit together.
    """
    snapshot = None if checkpoint is None else unpack(checkpoint.snapshot, checkpoint.encoding)
    return Document.load(snapshot, [update.update_blob for update in updates], peer=peer)
