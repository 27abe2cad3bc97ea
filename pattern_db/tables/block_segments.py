"""Segments: what blocks' documents did before their newest checkpoints, as opaque bytes in the order of versions."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.enums import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The operations of the updates `first_seq` to `last_seq`; with 0 those from the document's beginning on."""

    block_id: str
    first_seq: int
    last_seq: int
    created_at: str
    encoding: Encoding
    data: bytes


def add(connection: Connection, segment: Segment) -> None:
    """Store a segment, in place of all that hold something of the same updates.

    Raises:
        apsw.ConstraintError: there is no such block (a `Conflict` once translated).
    """
    connection.execute(
        "DELETE FROM memory_block_segments WHERE block_id = ? AND last_seq >= ?", (segment.block_id, segment.first_seq)
    )
    connection.execute(
        "INSERT INTO memory_block_segments (block_id, first_seq, last_seq, created_at, encoding, data)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            segment.block_id,
            segment.first_seq,
            segment.last_seq,
            segment.created_at,
            segment.encoding,
            segment.data,
        ),
    )


def of_block(connection: Connection, block_id: str) -> list[Segment]:
    """The block's segments, oldest first."""
    rows = connection.execute(
        "SELECT block_id, first_seq, last_seq, created_at, encoding, data FROM memory_block_segments"
        " WHERE block_id = ? ORDER BY first_seq",
        (block_id,),
    )
    return [
        Segment(
            block_id=row[0],
            first_seq=row[1],
            last_seq=row[2],
            created_at=row[3],
            encoding=Encoding(row[4]),
            data=row[5],
        )
        for row in rows
    ]
