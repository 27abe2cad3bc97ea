"""The lines of a block's history that people read; they outlive the updates they describe."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json, to_json_or_null
from pattern_db.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One version. `frontiers` is a JSON value, `cause` a JSON object; `seq` the update that made it."""

    block_id: str
    frontiers: Json
    changed_by: str
    timestamp: str
    seq: int | None = None
    change_summary: str | None = None
    cause: Json = None


def append(connection: Connection, row: HistoryRow) -> None:
    """Add a line.

    Raises:
        apsw.ConstraintError: there is no such block (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO memory_block_history (block_id, seq, version_frontiers, change_summary, changed_by, cause,"
        " timestamp) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            row.block_id,
            row.seq,
            to_json(row.frontiers),
            row.change_summary,
            row.changed_by,
            to_json_or_null(row.cause),
            row.timestamp,
        ),
    )


def recent(connection: Connection, block_id: str, limit: int) -> list[HistoryRow]:
    """The block's newest `limit` lines, newest first."""
    rows = connection.execute(
        "SELECT block_id, seq, version_frontiers, change_summary, changed_by, cause, timestamp"
        " FROM memory_block_history WHERE block_id = ? ORDER BY id DESC LIMIT ?",
        (block_id, limit),
    )
    return [
        HistoryRow(
            block_id=row[0],
            seq=row[1],
            frontiers=from_json(row[2]),
            change_summary=row[3],
            changed_by=row[4],
            cause=from_json(row[5]),
            timestamp=row[6],
        )
        for row in rows
    ]
