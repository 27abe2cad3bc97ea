"""The lines of a block's history: one per version, with who made it, why, and what it changed.

They outlive the updates they describe. What `change` holds is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json, to_json_or_null
from pattern_db.connection import Connection
from pattern_db.enums import HistoryKind

_COLUMNS = (
    "block_id, seq, version_frontiers, change_summary, changed_by, cause, timestamp, kind, stack, reverts, is_undone,"
    " change"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One version. `frontiers` is a JSON value, `cause` a JSON object; `seq` the update that made it, 0 for the
    block as it was created.

    `stack` is whose undo stack the version belongs to; None for that of `changed_by`. An undo or redo names in
    `reverts` the version that it takes back. `is_undone` tells that one took this version back and none brought it
    again. `change` is what it changed, packed; None if that is not known.
    """

    block_id: str
    frontiers: Json
    changed_by: str
    timestamp: str
    seq: int | None = None
    change_summary: str | None = None
    cause: Json = None
    kind: HistoryKind = HistoryKind.EDIT
    stack: str | None = None
    reverts: int | None = None
    is_undone: bool = False
    change: bytes | None = None


def append(connection: Connection, row: HistoryRow) -> None:
    """Add a line. One that takes a version back marks that version, and one that brings it again unmarks it.

    Raises:
        apsw.ConstraintError: there is no such block, or it has that version already (a `Conflict` once translated).
    """
    connection.execute(
        f"INSERT INTO memory_block_history ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.block_id,
            row.seq,
            to_json(row.frontiers),
            row.change_summary,
            row.changed_by,
            to_json_or_null(row.cause),
            row.timestamp,
            row.kind,
            row.stack or row.changed_by,
            row.reverts,
            int(row.is_undone),
            row.change,
        ),
    )
    if row.reverts is None:
        return
    connection.execute(
        "UPDATE memory_block_history SET is_undone = 1 WHERE block_id = ? AND seq = ?", (row.block_id, row.reverts)
    )
    if row.kind is HistoryKind.REDO:
        connection.execute(
            "UPDATE memory_block_history SET is_undone = 0 WHERE block_id = ?1 AND seq ="
            " (SELECT reverts FROM memory_block_history WHERE block_id = ?1 AND seq = ?2)",
            (row.block_id, row.reverts),
        )


def recent(connection: Connection, block_id: str, limit: int, *, before: int | None = None) -> list[HistoryRow]:
    """The block's newest `limit` lines, newest first; with `before` those of versions less than that."""
    return _select(
        connection, "WHERE block_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3", (block_id, _end(before), limit)
    )


def get(connection: Connection, block_id: str, seq: int) -> HistoryRow | None:
    """The line of the version `seq`, or None: there is no such version, or it is older than the history."""
    found = _select(connection, "WHERE block_id = ? AND seq = ?", (block_id, seq))
    return found[0] if found else None


def between(connection: Connection, block_id: str, after: int, last: int, *, limit: int) -> list[HistoryRow]:
    """The lines of the versions greater than `after` up to `last`, oldest first; at most the newest `limit` of them."""
    found = _select(
        connection,
        "WHERE block_id = ? AND seq > ? AND seq <= ? ORDER BY seq DESC LIMIT ?",
        (block_id, after, last, limit),
    )
    return found[::-1]


def changes(
    connection: Connection, block_id: str, after: int, last: int, *, newest_first: bool = False
) -> Iterator[tuple[int, bytes | None]]:
    """Number and packed change of each version greater than `after` up to `last`, in order; read as they are asked for.

    Versions without a line are left out.
    """
    cursor = connection.execute(
        "SELECT seq, change FROM memory_block_history WHERE block_id = ? AND seq > ? AND seq <= ?"
        f" ORDER BY seq {'DESC' if newest_first else 'ASC'}",
        (block_id, after, last),
    )
    for row in cursor:
        yield row[0], row[1]


def _end(before: int | None) -> int:
    return 2**62 if before is None else before


def _select(connection: Connection, where: str, values: Sequence[str | int]) -> list[HistoryRow]:
    return [
        HistoryRow(
            block_id=row[0],
            seq=row[1],
            frontiers=from_json(row[2]),
            change_summary=row[3],
            changed_by=row[4],
            cause=from_json(row[5]),
            timestamp=row[6],
            kind=HistoryKind(row[7]),
            stack=row[8],
            reverts=row[9],
            is_undone=bool(row[10]),
            change=row[11],
        )
        for row in connection.execute(f"SELECT {_COLUMNS} FROM memory_block_history {where}", values)
    ]
