"""Memory blocks: their settings, and the opaque snapshots and updates of their documents.

A document is its newest checkpoint (or, before the first one, the snapshot it was created with) and the updates
after it, in the order of `seq`. What the bytes mean is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db import vectors
from pattern_db.columns import Json, from_json, to_json_or_null
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import BlockType, Encoding, Permission, SearchKind, UpdateSource
from pattern_db.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """One block without its bytes.

    `agent_id` is an agent, a group or `_constellation_`. `char_limit` is in Unicode code points. `metadata` is a JSON
    object whose "schema" describes the document. `frontier` is its newest version (opaque), `last_seq` its newest
    update. `content_preview` is the text that search and lists show.
    """

    id: str
    agent_id: str
    label: str
    description: str
    block_type: BlockType
    created_at: str
    updated_at: str
    char_limit: int = 5000
    permission: Permission = Permission.READ_WRITE
    pinned: bool = False
    content_preview: str | None = None
    metadata: Json = None
    embedding_model: str | None = None
    is_active: bool = True
    frontier: bytes | None = None
    last_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChanges:
    """Settings to change; None leaves one as it is."""

    label: str | None = None
    description: str | None = None
    block_type: BlockType | None = None
    char_limit: int | None = None
    permission: Permission | None = None
    pinned: bool | None = None
    metadata: Json = None
    embedding_model: str | None = None


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
class Attribution:
    """Who made a change, and the message, turn or call (a JSON object) that caused it."""

    author: str
    cause: Json = None


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


LARGE_SNAPSHOT_BYTES = 64 * 1024  # from here on a snapshot is kept only in its checkpoint

_COLUMNS = (
    "id, agent_id, label, description, block_type, created_at, updated_at, char_limit, permission, pinned,"
    " content_preview, metadata, embedding_model, is_active, frontier, last_seq"
)
_UPDATE_COLUMNS = "id, block_id, seq, update_blob, source, created_at, frontier, author, cause"
_CHECKPOINT_COLUMNS = "id, block_id, snapshot, encoding, frontier, up_to_seq, updates_consolidated, created_at"


def create(connection: Connection, row: BlockRow, snapshot: bytes = b"", *, encoding: Encoding = Encoding.RAW) -> None:
    """Add a block that starts with `snapshot`; empty bytes for one whose first write will be an update.

    `row.last_seq` must be 0.

    Raises:
        apsw.ConstraintError: the owner has an active block of that label (a `Conflict` once translated).
    """
    connection.execute(
        f"INSERT INTO memory_blocks ({_COLUMNS}, snapshot_encoding, loro_snapshot)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.agent_id,
            row.label,
            row.description,
            row.block_type,
            row.created_at,
            row.updated_at,
            row.char_limit,
            row.permission,
            int(row.pinned),
            row.content_preview,
            to_json_or_null(row.metadata),
            row.embedding_model,
            int(row.is_active),
            row.frontier,
            row.last_seq,
            encoding,
            snapshot,
        ),
    )


def get(connection: Connection, block_id: str, *, include_inactive: bool = False) -> BlockRow:
    """The block with this id.

    Raises:
        NotFound: there is none, or it was deleted.
    """
    found = select(connection, "WHERE id = ? AND is_active >= ?", (block_id, int(not include_inactive)))
    if not found:
        raise NotFound(f"there is no memory block {block_id}")
    return found[0]


def get_by_label(connection: Connection, agent_id: str, label: str) -> BlockRow:
    """The owner's active block of this label.

    Raises:
        NotFound: the owner has none.
    """
    found = select(connection, "WHERE agent_id = ? AND label = ? AND is_active = 1", (agent_id, label))
    if not found:
        raise NotFound(f"there is no memory block {label!r}")
    return found[0]


def list_for_agent(connection: Connection, agent_id: str, *, block_type: BlockType | None = None) -> list[BlockRow]:
    """The owner's active blocks (of one type), by label. Those lent to an agent: see `block_sharing`."""
    return select(
        connection,
        "WHERE agent_id = ?1 AND is_active = 1 AND (?2 IS NULL OR block_type = ?2) ORDER BY label",
        (agent_id, block_type),
    )


def list_all(connection: Connection, *, label_prefix: str = "") -> list[BlockRow]:
    """The active blocks of all owners whose labels begin with `label_prefix`, by owner and label."""
    return select(
        connection,
        "WHERE is_active = 1 AND substr(label, 1, length(?1)) = ?1 ORDER BY agent_id, label",
        (label_prefix,),
    )


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
    with connection:
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


def get_checkpoint_and_updates(connection: Connection, block_id: str) -> tuple[Checkpoint | None, list[Update]]:
    """What the document is made of: the newest checkpoint and the updates after it, in order.

    The checkpoint is None for a block that has only updates so far. Deleted blocks can be read too.

    Raises:
        NotFound: there is no such block.
    """
    checkpoint = _newest_checkpoint(connection, block_id)
    return checkpoint, get_updates_since(connection, block_id, 0 if checkpoint is None else checkpoint.up_to_seq)


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
    see `prune_checkpoints`.

    Raises:
        NotFound: there is no such block.
        Conflict: another consolidation went further already, or `up_to_seq` was never stored; load and merge again.
    """
    with connection:
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


def get_pending_update_stats(connection: Connection, block_id: str) -> UpdateStats:
    """How much waits to be consolidated; all zero or None if nothing does."""
    row = fetch_all(
        connection,
        "SELECT count(*), coalesce(sum(byte_size), 0), min(seq), max(seq), min(created_at)"
        " FROM memory_block_updates WHERE block_id = ?",
        (block_id,),
    )[0]
    return UpdateStats(count=row[0], total_bytes=row[1], first_seq=row[2], last_seq=row[3], oldest_at=row[4])


def list_checkpoints(connection: Connection, block_id: str) -> list[Checkpoint]:
    """The stored checkpoints, newest first."""
    rows = connection.execute(
        f"SELECT {_CHECKPOINT_COLUMNS} FROM memory_block_checkpoints WHERE block_id = ? ORDER BY id DESC", (block_id,)
    )
    return [_checkpoint(row) for row in rows]


def prune_checkpoints(connection: Connection, block_id: str, keep: int) -> int:
    """Remove all but the newest `keep` checkpoints (at least one is kept); return how many went."""
    connection.execute(
        "DELETE FROM memory_block_checkpoints WHERE block_id = ?1 AND id NOT IN"
        " (SELECT id FROM memory_block_checkpoints WHERE block_id = ?1 ORDER BY id DESC LIMIT ?2)",
        (block_id, max(keep, 1)),
    )
    return connection.changes()


def update_content(
    connection: Connection, block_id: str, preview: str | None, frontier: bytes | None, updated_at: str
) -> None:
    """Store the text of the newest version, which search finds at once, and its frontier.

    Raises:
        NotFound: there is no such block, or it was deleted.
    """
    connection.execute(
        "UPDATE memory_blocks SET content_preview = ?, frontier = coalesce(?, frontier), updated_at = ?"
        " WHERE id = ? AND is_active = 1",
        (preview, frontier, updated_at, block_id),
    )
    _require_change(connection, block_id)


def update_config(connection: Connection, block_id: str, changes: BlockChanges, updated_at: str) -> None:
    """Change settings; what `changes` leaves out stays.

    Raises:
        NotFound: there is no such block, or it was deleted.
        apsw.ConstraintError: the owner has another block of that label (a `Conflict` once translated).
    """
    connection.execute(
        "UPDATE memory_blocks SET label = coalesce(?, label), description = coalesce(?, description),"
        " block_type = coalesce(?, block_type), char_limit = coalesce(?, char_limit),"
        " permission = coalesce(?, permission), pinned = coalesce(?, pinned), metadata = coalesce(?, metadata),"
        " embedding_model = coalesce(?, embedding_model), updated_at = ? WHERE id = ? AND is_active = 1",
        (
            changes.label,
            changes.description,
            changes.block_type,
            changes.char_limit,
            changes.permission,
            changes.pinned,
            to_json_or_null(changes.metadata),
            changes.embedding_model,
            updated_at,
            block_id,
        ),
    )
    _require_change(connection, block_id)


def set_pinned(connection: Connection, block_id: str, pinned: bool, updated_at: str) -> None:
    """Keep a working block in the prompt, or no longer.

    Raises:
        NotFound: there is no such block, or it was deleted.
    """
    update_config(connection, block_id, BlockChanges(pinned=pinned), updated_at)


def set_type(connection: Connection, block_id: str, block_type: BlockType, updated_at: str) -> None:
    """Change where the block shows.

    Raises:
        NotFound: there is no such block, or it was deleted.
    """
    update_config(connection, block_id, BlockChanges(block_type=block_type), updated_at)


def deactivate(connection: Connection, block_id: str, updated_at: str) -> None:
    """Delete the block softly: it is no longer found, its label is free, its bytes stay.

    Raises:
        NotFound: there is no such block, or it was deleted already.
    """
    with connection:
        connection.execute(
            "UPDATE memory_blocks SET is_active = 0, updated_at = ? WHERE id = ? AND is_active = 1",
            (updated_at, block_id),
        )
        _require_change(connection, block_id)
        vectors.delete(connection, SearchKind.BLOCK, block_id)


def select(connection: Connection, where: str, values: Sequence[str | int | None]) -> list[BlockRow]:
    """Blocks by a condition on the columns of `memory_blocks`, given as SQL; for the modules of this package."""
    return [
        BlockRow(
            id=row[0],
            agent_id=row[1],
            label=row[2],
            description=row[3],
            block_type=BlockType(row[4]),
            created_at=row[5],
            updated_at=row[6],
            char_limit=row[7],
            permission=Permission(row[8]),
            pinned=bool(row[9]),
            content_preview=row[10],
            metadata=from_json(row[11]),
            embedding_model=row[12],
            is_active=bool(row[13]),
            frontier=row[14],
            last_seq=row[15],
        )
        for row in connection.execute(f"SELECT {_COLUMNS} FROM memory_blocks {where}", values)
    ]


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


def _require_change(connection: Connection, block_id: str) -> None:
    if connection.changes() == 0:
        raise NotFound(f"there is no memory block {block_id}")
