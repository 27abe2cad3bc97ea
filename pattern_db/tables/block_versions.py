"""Versions of blocks: the update that made each one, and its line of history.

Updates are what changed in a block's document since its newest checkpoint, as opaque bytes in the order of `seq`. Lines
are kept longer than their updates; `change` is opaque here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, Table
from pattern_db.enums import HistoryKind, UpdateSource
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables.memory_blocks import Attribution


@dataclass(frozen=True, slots=True)
class Update:
    """One stored change. `author` is 'agent:{id}', 'user:{id}' or 'system'; `cause` a JSON object with its cause:
    "message", "turn", "call". `frontier` is the version after it.
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


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Updates that wait for consolidation: their number, their bytes, and the time of the first."""

    count: int
    total_bytes: int
    oldest_at: str


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One version. `frontiers` is a JSON value, `cause` a JSON object; `seq` the update that made it, 0 for the
    block as it was created.

    `stack` is the author with the undo stack of this version; None: `changed_by`. An undo or redo has in `reverts` the
    version that it reverts. `is_undone`: this version was undone and not redone. `change` is its packed change; None if
    unknown.
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


_UPDATES = Table("memory_block_updates", Update, json=("cause",), types={"source": UpdateSource})
_LINES = Table(
    "memory_block_history",
    HistoryRow,
    columns={"frontiers": "version_frontiers"},
    json=("cause",),
    types={"frontiers": from_json, "kind": HistoryKind, "is_undone": bool},
)


def store_update(
    connection: Connection,
    block_id: str,
    update_blob: bytes,
    source: UpdateSource | None,
    created_at: str,
    frontier: bytes | None = None,
    attribution: Attribution | None = None,
    content_preview: str | None = None,
    expected_seq: int | None = None,
) -> int:
    """Store one update after the block's latest and return its number (1, 2, …); no number is used twice.

    `content_preview` is the block's text after it, which search finds immediately; None leaves the text unchanged.

    Raises:
        RowNotFound: there is no such block, or it was deleted.
        RowConflict: its number is not `expected_seq`: another writer was first.
    """
    found = connection.execute(
        "UPDATE memory_blocks SET last_seq = last_seq + 1, frontier = coalesce(?, frontier),"
        " content_preview = coalesce(?, content_preview), updated_at = ?"
        " WHERE id = ? AND is_active = 1 RETURNING last_seq, label",
        (frontier, content_preview, created_at, block_id),
    ).fetchone()
    if found is None:
        raise RowNotFound(f"there is no memory block {block_id}")
    seq, label = found
    if expected_seq not in (None, seq):
        raise RowConflict(f"the block {label} was changed by another writer; read it again")
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
            None if attribution is None or attribution.cause is None else to_json(attribution.cause),
        ),
    )
    return int(seq)


def get_updates_since(connection: Connection, block_id: str, after_seq: int) -> list[Update]:
    """Return the stored updates with numbers greater than `after_seq`, in order; empty if there are none.

    Those merged into a checkpoint are deleted: a reader behind the newest checkpoint must start again.
    """
    return _UPDATES.select(connection, "WHERE block_id = ? AND seq > ? ORDER BY seq", (block_id, after_seq))


def list_pending(connection: Connection) -> list[tuple[str, UpdateStats]]:
    """Return the active blocks with updates since their checkpoints, and the sums of these; longest waiting first."""
    rows = connection.execute(
        "SELECT block_id, count(*), sum(byte_size), min(memory_block_updates.created_at) AS oldest FROM"
        " memory_block_updates JOIN memory_blocks ON memory_blocks.id = block_id AND is_active = 1"
        " GROUP BY block_id ORDER BY oldest"
    )
    return [(block_id, UpdateStats(*stats)) for block_id, *stats in rows]


def append(connection: Connection, row: HistoryRow) -> None:
    """Add a line. A line that undoes a version marks that version, and one that redoes it unmarks it.

    Raises:
        apsw.ConstraintError: there is no such block, or it already has that version (translated to `RowConflict`).
    """
    # A version without frontiers is stored as JSON's null: the column is never NULL.
    _LINES.insert(connection, [replace(row, stack=row.stack or row.changed_by, frontiers=to_json(row.frontiers))])
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
    """Return the block's newest `limit` lines, newest first; with `before` those of versions less than that."""
    return _LINES.select(
        connection,
        "WHERE block_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3",
        (block_id, 2**62 if before is None else before, limit),
    )


def get(connection: Connection, block_id: str, seq: int) -> HistoryRow | None:
    """Return the line of the version `seq`, or None: there is no such version, or it is older than the history."""
    return _LINES.first(connection, "WHERE block_id = ? AND seq = ?", (block_id, seq))


def between(connection: Connection, block_id: str, after: int, last: int, *, limit: int) -> list[HistoryRow]:
    """Return the lines of the versions greater than `after` up to `last`, oldest first; at most the newest `limit` of
    them.
    """
    found = _LINES.select(
        connection,
        "WHERE block_id = ? AND seq > ? AND seq <= ? ORDER BY seq DESC LIMIT ?",
        (block_id, after, last, limit),
    )
    return found[::-1]


def changes(
    connection: Connection, block_id: str, after: int, last: int, *, newest_first: bool = False
) -> Iterator[tuple[int, bytes | None]]:
    """Return number and packed change of each version greater than `after` up to `last`, in order; read lazily.

    Versions without a line are left out.
    """
    cursor = connection.execute(
        "SELECT seq, change FROM memory_block_history WHERE block_id = ? AND seq > ? AND seq <= ?"
        f" ORDER BY seq {'DESC' if newest_first else 'ASC'}",
        (block_id, after, last),
    )
    for row in cursor:
        yield row[0], row[1]
