"""When a block's updates are merged into a checkpoint, how checkpoints are packed, and which are kept. Pure.

Source: thresholds and compression as in the database design (LoroStorageConfig).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zstandard

from pattern_core.memory.document import Document, DocumentDamaged
from pattern_db.columns import iso, unix_ms
from pattern_db.enums import Encoding
from pattern_db.tables.block_checkpoints import Checkpoint, CheckpointStamp
from pattern_db.tables.block_versions import Update, UpdateStats

COMPRESS_ABOVE_BYTES = 10 * 1024
UPDATES_MAX = 100
UPDATE_BYTES_MAX = 50 * 1024
INTERVAL_MS = 60 * 60 * 1000
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
# The first three are floors. For a large document they grow with what a merge writes, so that each edit is written a
# bounded number of times; and the number of updates stays bounded, so that the document still opens at once.
BASE_FRACTION = 4
BASE_BYTES_PER_UPDATE = 512
UPDATES_HARD_MAX = 1_000
_DAY_MS, _DAY_CHARS = 24 * 60 * 60 * 1000, len("2026-11-21")
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay: the newest `newest` and, going back `days` days of UTC, the last one of each day."""

    newest: int = 10
    days: int = 30


def to_drop(checkpoints: Sequence[CheckpointStamp], now: str, retention: Retention) -> list[int]:
    """The ids of those that need not be kept. `checkpoints` come newest first; the first one always stays."""
    since = iso(unix_ms(now) - retention.days * _DAY_MS)[:_DAY_CHARS]
    dropped: list[int] = []
    days: set[str] = set()
    for number, one in enumerate(checkpoints):
        day = one.created_at[:_DAY_CHARS]
        if number >= max(retention.newest, 1) and (day in days or day <= since):
            dropped.append(one.id)
        days.add(day)
    return dropped


@dataclass(slots=True)
class Pending:
    """What a block's updates since its checkpoint come to; `oldest_ms` is the first one's time, None without any.

    `base` is the size of that checkpoint in bytes.
    """

    count: int = 0
    size: int = 0
    oldest_ms: int | None = None
    base: int = 0

    @classmethod
    def of(cls, stats: UpdateStats, base: int = 0) -> Pending:
        """As storage counted it."""
        oldest = None if stats.oldest_at is None else unix_ms(stats.oldest_at)
        return cls(stats.count, stats.total_bytes, oldest, base)

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
        return (
            self.count >= min(max(UPDATES_MAX, self.base // BASE_BYTES_PER_UPDATE), UPDATES_HARD_MAX)
            or self.size >= max(UPDATE_BYTES_MAX, self.base // BASE_FRACTION)
            or now_ms - self.oldest_ms >= INTERVAL_MS
        )


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
