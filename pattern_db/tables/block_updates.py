"""Updates: what changed in a block's document since its newest checkpoint, as opaque bytes in the order of `seq`."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json_or_null
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import UpdateSource
from pattern_db.errors import NotFound
from pattern_db.tables.memory_blocks import Attribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One stored change. `author` is 'agent:{id}', 'user:{id}' or 'system'; `cause` a JSON object with what led to
    it: "message", "turn", "call". `frontier` is the version after it.
    """

    id: int
    block_id: str
    seq: int
    update_blob: bytes
    source: UpdateSource | None
    created_at: str
    frontier: bytes | None
    author: str | None
    cause: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What waits for consolidation: how many updates, their bytes, and their first and last numbers and first time
    (None without any).
    """

    count: int
    total_bytes: int
    first_seq: int | None
    last_seq: int | None
    oldest_at: str | None


_UPDATE_COLUMNS = "id, block_id, seq, update_blob, source, created_at, frontier, author, cause"


def store_update(
    connection: Connection,
    block_id: str,
    update_blob: bytes,
    source: UpdateSource | None,
    created_at: str,
    frontier: bytes | None = None,
    attribution: Attribution | None = None,
) -> int:
    """Store one update after the block's latest and return its number (1, 2, …); no number is given twice.

    Raises:
        NotFound: there is no such block, or it was deleted.
    """
    counted = fetch_all(
        connection,
        "UPDATE memory_blocks SET last_seq = last_seq + 1, frontier = coalesce(?, frontier), updated_at = ?"
        " WHERE id = ? AND is_active = 1 RETURNING last_seq",
        (frontier, created_at, block_id),
    )
    if not counted:
        raise NotFound(f"there is no memory block {block_id}")
    seq = int(counted[0][0])
    connection.execute(
        "INSERT INTO memory_block_updates (block_id, seq, update_blob, byte_size, source, created_at, frontier,"
        " author, cause) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            block_id,
            seq,
            update_blob,
            len(update_blob),
            source,
            created_at,
            frontier,
            None if attribution is None else attribution.author,
            None if attribution is None else to_json_or_null(attribution.cause),
        ),
    )
    return seq


def get_updates_since(connection: Connection, block_id: str, after_seq: int) -> list[Update]:
    """The stored updates with numbers greater than `after_seq`, in order; empty if there are none.

    Those that a checkpoint has taken in are gone: a reader that is behind the newest checkpoint starts over.
    """
    rows = connection.execute(
        f"SELECT {_UPDATE_COLUMNS} FROM memory_block_updates WHERE block_id = ? AND seq > ? ORDER BY seq",
        (block_id, after_seq),
    )
    return [
        Update(
            id=row[0],
            block_id=row[1],
            seq=row[2],
            update_blob=row[3],
            source=None if row[4] is None else UpdateSource(row[4]),
            created_at=row[5],
            frontier=row[6],
            author=row[7],
            cause=from_json(row[8]),
        )
        for row in rows
    ]


def has_updates_since(connection: Connection, block_id: str, after_seq: int) -> bool:
    """True if an update with a number greater than `after_seq` is stored."""
    row = connection.execute(
        "SELECT 1 FROM memory_block_updates WHERE block_id = ? AND seq > ? LIMIT 1", (block_id, after_seq)
    ).fetchone()
    return row is not None


def get_pending_update_stats(connection: Connection, block_id: str) -> UpdateStats:
    """How much waits to be consolidated; all zero or None if nothing does."""
    row = fetch_all(
        connection,
        "SELECT count(*), coalesce(sum(byte_size), 0), min(seq), max(seq), min(created_at)"
        " FROM memory_block_updates WHERE block_id = ?",
        (block_id,),
    )[0]
    return UpdateStats(count=row[0], total_bytes=row[1], first_seq=row[2], last_seq=row[3], oldest_at=row[4])


def list_pending(connection: Connection) -> list[tuple[str, UpdateStats]]:
    """The active blocks with updates since their checkpoints, and what these come to; longest waiting first."""
    rows = connection.execute(
        "SELECT block_id, count(*), sum(byte_size), min(seq), max(seq), min(memory_block_updates.created_at) AS oldest"
        " FROM memory_block_updates JOIN memory_blocks ON memory_blocks.id = block_id AND is_active = 1"
        " GROUP BY block_id ORDER BY oldest"
    )
    return [
        (row[0], UpdateStats(count=row[1], total_bytes=row[2], first_seq=row[3], last_seq=row[4], oldest_at=row[5]))
        for row in rows
    ]
