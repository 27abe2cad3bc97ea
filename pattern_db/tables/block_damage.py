"""Bytes of documents that could not be read: put aside by a repair, kept for whoever can make more of them."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.enums import DamagedPart, Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBytes:
    """One part of a block's document, as it was stored. `seq` is the newest update that it held."""

    block_id: str
    part: DamagedPart
    seq: int
    found_at: str
    reason: str
    encoding: Encoding
    data: bytes


def put_aside(connection: Connection, block_id: str, after: int, found_at: str, reason: str) -> int:
    """Move the block's checkpoints, segments and updates that hold anything after the version `after` out of use; with
    -1 all of them and what the block was created with. Return how many.

    Raises:
        apsw.ConstraintError: there is no such block (a `Conflict` once translated).
    """
    values = (block_id, after, found_at, reason)
    moved = 0
    for part, select in _PARTS.items():
        connection.execute(
            "INSERT INTO memory_block_damaged (block_id, part, seq, found_at, reason, encoding, data)"
            f" SELECT block_id, '{part}', seq, ?3, ?4, encoding, data FROM ({select})"
            " WHERE block_id = ?1 AND seq > ?2",
            values,
        )
        moved += connection.changes()
    for table, column in (
        ("memory_block_checkpoints", "up_to_seq"),
        ("memory_block_updates", "seq"),
        ("memory_block_segments", "last_seq"),
    ):
        connection.execute(f"DELETE FROM {table} WHERE block_id = ? AND {column} > ?", (block_id, after))
    return moved


def of_block(connection: Connection, block_id: str) -> list[DamagedBytes]:
    """What was put aside of the block, oldest first."""
    rows = connection.execute(
        "SELECT block_id, part, seq, found_at, reason, encoding, data FROM memory_block_damaged"
        " WHERE block_id = ? ORDER BY id",
        (block_id,),
    )
    return [
        DamagedBytes(
            block_id=row[0],
            part=DamagedPart(row[1]),
            seq=row[2],
            found_at=row[3],
            reason=row[4],
            encoding=Encoding(row[5]),
            data=row[6],
        )
        for row in rows
    ]


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
