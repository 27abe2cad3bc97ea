"""Checkpoints: stored snapshots of blocks' documents, and the segments that hold what came before them.

A document is its newest checkpoint (or, before the first one, the snapshot it was created with) and the updates
after it. What the bytes mean is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pattern_db.columns import Json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import Encoding
from pattern_db.errors import Conflict, NotFound
from pattern_db.tables.block_updates import Update, get_updates_since


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStamp:
    """A checkpoint without its bytes."""

    id: int
    up_to_seq: int
    created_at: str


LARGE_SNAPSHOT_BYTES = 64 * 1024  # from here on a snapshot is kept only in its checkpoint
_CHECKPOINT_COLUMNS = "id, block_id, snapshot, encoding, frontier, up_to_seq, updates_consolidated, created_at"


def get_checkpoint_and_updates(connection: Connection, block_id: str) -> tuple[Checkpoint | None, list[Update]]:
    """What the document is made of: the newest checkpoint and the updates after it, in order.

    The checkpoint is None for a block that has only updates so far. Deleted blocks can be read too.

    Raises:
        NotFound: there is no such block.
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
    """Store a snapshot in place of the updates up to `up_to_seq` and return how many those were.

    Updates that were stored while the snapshot was made have greater numbers and stay. Earlier checkpoints stay too,
    see `drop_checkpoints`.

    Raises:
        NotFound: there is no such block.
        Conflict: another consolidation went further already, or `up_to_seq` was never stored; load and merge again.
    """
    newest = _newest_checkpoint(connection, block_id)
    last_seq = fetch_all(connection, "SELECT last_seq FROM memory_blocks WHERE id = ?", (block_id,))[0][0]
    if not (0 if newest is None else newest.up_to_seq) <= up_to_seq <= last_seq:
        raise Conflict(f"block {block_id} was consolidated by somebody else meanwhile; load it again")
    connection.execute("DELETE FROM memory_block_updates WHERE block_id = ? AND seq <= ?", (block_id, up_to_seq))
    merged = connection.changes()
    connection.execute(
        "INSERT INTO memory_block_checkpoints (block_id, snapshot, encoding, frontier, up_to_seq,"
        " updates_consolidated, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (block_id, new_snapshot, encoding, new_frontier, up_to_seq, merged, created_at),
    )
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
    """The stored checkpoints, newest first."""
    rows = connection.execute(
        f"SELECT {_CHECKPOINT_COLUMNS} FROM memory_block_checkpoints WHERE block_id = ? ORDER BY id DESC", (block_id,)
    )
    return [_checkpoint(row) for row in rows]


def list_stamps(connection: Connection, block_id: str) -> list[CheckpointStamp]:
    """What checkpoints there are, newest first."""
    rows = connection.execute(
        "SELECT id, up_to_seq, created_at FROM memory_block_checkpoints WHERE block_id = ? ORDER BY id DESC",
        (block_id,),
    )
    return [CheckpointStamp(id=row[0], up_to_seq=row[1], created_at=row[2]) for row in rows]


def snapshot_of(connection: Connection, checkpoint_id: int) -> tuple[bytes, Encoding]:
    """A checkpoint's bytes.

    Raises:
        NotFound: there is no such checkpoint (any more).
    """
    row = connection.execute(
        "SELECT snapshot, encoding FROM memory_block_checkpoints WHERE id = ?", (checkpoint_id,)
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no checkpoint {checkpoint_id}")
    return row[0], Encoding(row[1])


def drop_checkpoints(connection: Connection, block_id: str, ids: Iterable[int]) -> int:
    """Remove these checkpoints, but never the newest; return how many went."""
    dropped = 0
    for checkpoint_id in ids:
        connection.execute(
            "DELETE FROM memory_block_checkpoints WHERE id = ?1 AND block_id = ?2"
            " AND id < (SELECT max(id) FROM memory_block_checkpoints WHERE block_id = ?2)",
            (checkpoint_id, block_id),
        )
        dropped += connection.changes()
    return dropped


def _newest_checkpoint(connection: Connection, block_id: str) -> Checkpoint | None:
    row = connection.execute(
        f"SELECT {_CHECKPOINT_COLUMNS} FROM memory_block_checkpoints WHERE block_id = ? ORDER BY id DESC LIMIT 1",
        (block_id,),
    ).fetchone()
    if row is not None:
        return _checkpoint(row)
    # `frontier` is the newest version, not the snapshot's, as soon as there are updates.
    created = connection.execute(
        "SELECT NULL, id, loro_snapshot, snapshot_encoding, CASE last_seq WHEN 0 THEN frontier END, 0, 0, created_at"
        " FROM memory_blocks WHERE id = ?",
        (block_id,),
    ).fetchone()
    if created is None:
        raise NotFound(f"there is no memory block {block_id}")
    return _checkpoint(created) if created[2] else None


def _checkpoint(row: Sequence[Json]) -> Checkpoint:
    return Checkpoint(
        id=row[0],
        block_id=row[1],
        snapshot=row[2],
        encoding=Encoding(row[3]),
        frontier=row[4],
        up_to_seq=row[5],
        updates_consolidated=row[6],
        created_at=row[7],
    )
