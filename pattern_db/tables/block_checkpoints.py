"""Checkpoints: stored snapshots of blocks' documents, segments with the operations before them, and damaged bytes.

A document is its newest checkpoint (or, before the first one, the snapshot it was created with) and the updates
after it. Segments are its operations before that checkpoint, in the order of versions. A repair keeps bytes that could
not be read separately, since other tools may recover more of them. The bytes are opaque here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import DamagedPart, Encoding
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables.block_versions import Update, get_updates_since


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stored snapshot that holds everything up to the update `up_to_seq`.

    `id` is None for the snapshot with which the block was created. `frontier` is the snapshot's version.
    """

    id: int | None
    block_id: str
    snapshot: bytes
    encoding: Encoding
    frontier: bytes | None
    up_to_seq: int
    updates_consolidated: int
    created_at: str


@dataclass(frozen=True, slots=True)
class CheckpointStamp:
    """A checkpoint without its bytes."""

    id: int
    up_to_seq: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Segment:
    """The operations of the updates `first_seq` to `last_seq`; 0: from the document's beginning on."""

    block_id: str
    first_seq: int
    last_seq: int
    created_at: str
    encoding: Encoding
    data: bytes


LARGE_SNAPSHOT_BYTES = 64 * 1024  # longer snapshots are stored only in their checkpoint
_CHECKPOINTS = Table("memory_block_checkpoints", Checkpoint, types={"encoding": Encoding})
_STAMPS = Table("memory_block_checkpoints", CheckpointStamp)
_SEGMENTS = Table("memory_block_segments", Segment, types={"encoding": Encoding})
_PARTS = {
    DamagedPart.CREATED: (
        "SELECT id AS block_id, 0 AS seq, snapshot_encoding AS encoding, loro_snapshot AS data FROM memory_blocks"
        " WHERE length(loro_snapshot) > 0 AND NOT EXISTS"
        " (SELECT 1 FROM memory_block_checkpoints WHERE block_id = memory_blocks.id)"
    ),
    DamagedPart.CHECKPOINT: (
        "SELECT block_id, up_to_seq AS seq, encoding, snapshot AS data FROM memory_block_checkpoints"
    ),
    DamagedPart.UPDATE: "SELECT block_id, seq, 'raw' AS encoding, update_blob AS data FROM memory_block_updates",
    DamagedPart.SEGMENT: "SELECT block_id, last_seq AS seq, encoding, data FROM memory_block_segments",
}


def get_checkpoint_and_updates(connection: Connection, block_id: str) -> tuple[Checkpoint | None, list[Update]]:
    """Return the parts of the document: the newest checkpoint and the updates after it, in order.

    The checkpoint is None for a block with only updates. Deleted blocks can be read too.

    Raises:
        RowNotFound: there is no such block.
    """
    checkpoint = _newest_checkpoint(connection, block_id)
    return checkpoint, get_updates_since(connection, block_id, 0 if checkpoint is None else checkpoint.up_to_seq)


def consolidate_checkpoint(
    connection: Connection,
    block_id: str,
    new_snapshot: bytes,
    new_frontier: bytes | None,
    up_to_seq: int,
    created_at: str,
    encoding: Encoding = Encoding.RAW,
) -> int:
    """Store a snapshot that replaces the updates up to `up_to_seq` and return their number.

    Updates that were stored while the snapshot was made have greater numbers and stay. Earlier checkpoints stay too,
    see `drop_checkpoints`.

    Raises:
        RowNotFound: there is no such block.
        RowConflict: another consolidation was newer, or `up_to_seq` was never stored; load and merge again.
    """
    newest = _newest_checkpoint(connection, block_id)
    last_seq = fetch_all(connection, "SELECT last_seq FROM memory_blocks WHERE id = ?", (block_id,))[0][0]
    if not (0 if newest is None else newest.up_to_seq) <= up_to_seq <= last_seq:
        raise RowConflict(f"block {block_id} was consolidated by another writer; load it again")
    connection.execute("DELETE FROM memory_block_updates WHERE block_id = ? AND seq <= ?", (block_id, up_to_seq))
    merged = connection.changes()
    made = Checkpoint(
        id=None,
        block_id=block_id,
        snapshot=new_snapshot,
        encoding=encoding,
        frontier=new_frontier,
        up_to_seq=up_to_seq,
        updates_consolidated=merged,
        created_at=created_at,
    )
    _CHECKPOINTS.insert(connection, [made])
    is_large = len(new_snapshot) > LARGE_SNAPSHOT_BYTES
    connection.execute(
        "UPDATE memory_blocks SET loro_snapshot = ?, large_blob_id = ?, snapshot_encoding = ? WHERE id = ?",
        (
            b"" if is_large else new_snapshot,
            str(connection.last_insert_rowid()) if is_large else None,
            encoding,
            block_id,
        ),
    )
    return merged


def list_checkpoints(connection: Connection, block_id: str) -> list[Checkpoint]:
    """Return the stored checkpoints, newest first."""
    return _CHECKPOINTS.select(connection, "WHERE block_id = ? ORDER BY id DESC", (block_id,))


def list_stamps(connection: Connection, block_id: str) -> list[CheckpointStamp]:
    """Return the checkpoints without their bytes, newest first."""
    return _STAMPS.select(connection, "WHERE block_id = ? ORDER BY id DESC", (block_id,))


def snapshot_of(connection: Connection, checkpoint_id: int) -> tuple[bytes, Encoding]:
    """Return a checkpoint's bytes.

    Raises:
        RowNotFound: the checkpoint does not exist, or no longer.
    """
    row = connection.execute(
        "SELECT snapshot, encoding FROM memory_block_checkpoints WHERE id = ?", (checkpoint_id,)
    ).fetchone()
    if row is None:
        raise RowNotFound(f"there is no checkpoint {checkpoint_id}")
    return row[0], Encoding(row[1])


def drop_checkpoints(connection: Connection, block_id: str, ids: Iterable[int]) -> None:
    """Delete these checkpoints, but never the newest."""
    connection.executemany(
        "DELETE FROM memory_block_checkpoints WHERE id = ?1 AND block_id = ?2"
        " AND id < (SELECT max(id) FROM memory_block_checkpoints WHERE block_id = ?2)",
        [(checkpoint_id, block_id) for checkpoint_id in ids],
    )


def add_segment(connection: Connection, segment: Segment) -> None:
    """Store a segment; it replaces all that overlap with its updates.

    Raises:
        apsw.ConstraintError: there is no such block (translated to `RowConflict`).
    """
    connection.execute(
        "DELETE FROM memory_block_segments WHERE block_id = ? AND last_seq >= ?", (segment.block_id, segment.first_seq)
    )
    _SEGMENTS.insert(connection, [segment])


def segments_of(connection: Connection, block_id: str) -> list[Segment]:
    """Return the block's segments, oldest first."""
    return _SEGMENTS.select(connection, "WHERE block_id = ? ORDER BY first_seq", (block_id,))


def put_aside(connection: Connection, block_id: str, after: int, found_at: str, reason: str) -> None:
    """Set the block's checkpoints, segments and updates with anything after the version `after` aside as damaged; -1:
    all, with the initial snapshot.

    Raises:
        apsw.ConstraintError: there is no such block (translated to `RowConflict`).
    """
    for part, select in _PARTS.items():
        connection.execute(
            "INSERT INTO memory_block_damaged (block_id, part, seq, found_at, reason, encoding, data)"
            f" SELECT block_id, '{part}', seq, ?3, ?4, encoding, data FROM ({select})"
            " WHERE block_id = ?1 AND seq > ?2",
            (block_id, after, found_at, reason),
        )
    for table, column in (
        ("memory_block_checkpoints", "up_to_seq"),
        ("memory_block_updates", "seq"),
        ("memory_block_segments", "last_seq"),
    ):
        connection.execute(f"DELETE FROM {table} WHERE block_id = ? AND {column} > ?", (block_id, after))


def _newest_checkpoint(connection: Connection, block_id: str) -> Checkpoint | None:
    newest = _CHECKPOINTS.first(connection, "WHERE block_id = ? ORDER BY id DESC LIMIT 1", (block_id,))
    if newest is not None:
        return newest
    # `frontier` is the newest version, not the snapshot's, as soon as there are updates.
    created = connection.execute(
        "SELECT NULL, id, loro_snapshot, snapshot_encoding, CASE last_seq WHEN 0 THEN frontier END, 0, 0, created_at"
        " FROM memory_blocks WHERE id = ?",
        (block_id,),
    ).fetchone()
    if created is None:
        raise RowNotFound(f"there is no memory block {block_id}")
    return _CHECKPOINTS.make(created) if created[2] else None
