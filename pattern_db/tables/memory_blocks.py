"""Memory blocks: their settings and their text, whom they are lent to, and which ones an agent sees.

Their documents: see `block_checkpoints` and `block_versions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, BlockType, Encoding, Permission, SearchKind
from pattern_db.errors import NotFound
from pattern_db.tables import embeddings


class Via(StrEnum):
    """Why an agent sees a block: it owns it, it was lent it, or it is everybody's."""

    OWN = "own"
    ATTACHED = "attached"
    CONSTELLATION = "constellation"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """One block without its bytes.

    `agent_id` is an agent, a group or `_constellation_`. `char_limit` is in Unicode code points. `metadata` is a JSON
    object whose "schema" describes the document. `frontier` is its newest version (opaque), `last_seq` its newest
    update. `content_preview` is the text that search and lists show.

    As an agent sees it (`list_visible`) `permission` is that of a loan, `lender` the agent's name that lent it, if any.
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
    via: Via = Via.OWN
    lender: str | None = None

    @property
    def content(self) -> str:
        """The plain rendering of the content, whatever its schema."""
        return self.content_preview or ""

    @property
    def version(self) -> int:
        """The number that rises with every edit."""
        return self.last_seq


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
class Attribution:
    """Who made a change, and the message, turn or call (a JSON object) that caused it."""

    author: str
    cause: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One block lent to one agent."""

    block_id: str
    agent_id: str
    permission: Permission
    attached_at: str


_COLUMNS = (
    "id, agent_id, label, description, block_type, created_at, updated_at, char_limit, permission, pinned,"
    " content_preview, metadata, embedding_model, is_active, frontier, last_seq"
)


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
            None if row.metadata is None else to_json(row.metadata),
            row.embedding_model,
            int(row.is_active),
            row.frontier,
            row.last_seq,
            encoding,
            snapshot,
        ),
    )


def get(connection: Connection, block_id: str, *, include_inactive: bool = False) -> BlockRow:
    """Return the block with this id.

    Raises:
        NotFound: there is none, or it was deleted.
    """
    found = _select(connection, "WHERE id = ? AND is_active >= ?", (block_id, int(not include_inactive)))
    if not found:
        raise NotFound(f"there is no memory block {block_id}")
    return found[0]


def list_for_agent(connection: Connection, agent_id: str, *, block_type: BlockType | None = None) -> list[BlockRow]:
    """Return the owner's active blocks (of one type), by label. Those lent to an agent: see `list_visible`."""
    return _select(
        connection,
        "WHERE agent_id = ?1 AND is_active = 1 AND (?2 IS NULL OR block_type = ?2) ORDER BY label",
        (agent_id, block_type),
    )


def list_all(connection: Connection, *, label_prefix: str = "") -> list[BlockRow]:
    """Return the active blocks of all owners whose labels begin with `label_prefix`, by owner and label."""
    return _select(
        connection,
        "WHERE is_active = 1 AND substr(label, 1, length(?1)) = ?1 ORDER BY agent_id, label",
        (label_prefix,),
    )


def update_content(
    connection: Connection, block_id: str, preview: str | None, frontier: bytes | None, updated_at: str
) -> None:
    """Store another text of the newest version, which search finds at once, and its frontier.

    Raises:
        NotFound: there is no such block, or it was deleted.
    """
    connection.execute(
        "UPDATE memory_blocks SET content_preview = ?, frontier = coalesce(?, frontier), updated_at = ?"
        " WHERE id = ? AND is_active = 1",
        (preview, frontier, updated_at, block_id),
    )
    if connection.changes() == 0:
        raise NotFound(f"there is no memory block {block_id}")


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
            None if changes.metadata is None else to_json(changes.metadata),
            changes.embedding_model,
            updated_at,
            block_id,
        ),
    )
    if connection.changes() == 0:
        raise NotFound(f"there is no memory block {block_id}")


def deactivate(connection: Connection, block_id: str, updated_at: str) -> None:
    """Delete the block softly: it is no longer found, its label is free, its bytes stay.

    Raises:
        NotFound: there is no such block, or it was deleted already.
    """
    connection.execute(
        "UPDATE memory_blocks SET is_active = 0, updated_at = ? WHERE id = ? AND is_active = 1",
        (updated_at, block_id),
    )
    if connection.changes() == 0:
        raise NotFound(f"there is no memory block {block_id}")
    embeddings.delete(connection, SearchKind.BLOCK, block_id)


def attach(connection: Connection, row: Attachment) -> None:
    """Lend a block to an agent, or change the permission of a loan.

    Raises:
        apsw.ConstraintError: the block or the agent does not exist (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO shared_block_agents (block_id, agent_id, permission, attached_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (block_id, agent_id) DO UPDATE SET permission = excluded.permission",
        (row.block_id, row.agent_id, row.permission, row.attached_at),
    )


def detach(connection: Connection, block_id: str, agent_id: str) -> None:
    """End a loan.

    Raises:
        NotFound: the block was not lent to this agent.
    """
    connection.execute("DELETE FROM shared_block_agents WHERE block_id = ? AND agent_id = ?", (block_id, agent_id))
    if connection.changes() == 0:
        raise NotFound(f"block {block_id} is not shared with {agent_id}")


def list_attachments(
    connection: Connection, *, block_id: str | None = None, agent_id: str | None = None
) -> list[Attachment]:
    """Return the loans of a block, of an agent, or all, by time."""
    rows = connection.execute(
        "SELECT block_id, agent_id, permission, attached_at FROM shared_block_agents"
        " WHERE (?1 IS NULL OR block_id = ?1) AND (?2 IS NULL OR agent_id = ?2)"
        " ORDER BY attached_at, block_id, agent_id",
        (block_id, agent_id),
    )
    return [
        Attachment(block_id=row[0], agent_id=row[1], permission=Permission(row[2]), attached_at=row[3]) for row in rows
    ]


def list_visible(connection: Connection, agent_id: str, *, label: str | None = None) -> list[BlockRow]:
    """Return all active blocks that the agent sees (of one label): its own, those lent to it, the constellation's, each
    by label. Of several with one label the agent means the first.
    """
    rows = connection.execute(
        f"SELECT {_COLUMNS}, lent_with, (SELECT name FROM agents WHERE agents.id = agent_id)"
        " FROM memory_blocks LEFT JOIN"
        " (SELECT block_id, permission AS lent_with, attached_at FROM shared_block_agents WHERE agent_id = ?1)"
        " ON block_id = id WHERE is_active = 1 AND (?2 IS NULL OR label = ?2) AND id IN"
        " (SELECT id FROM memory_blocks WHERE agent_id IN (?1, ?3) AND is_active = 1"
        " UNION ALL SELECT block_id FROM shared_block_agents WHERE agent_id = ?1)"
        " ORDER BY CASE WHEN agent_id = ?1 THEN 0 WHEN lent_with IS NOT NULL THEN 1 ELSE 2 END, label, attached_at, id",
        (agent_id, label, CONSTELLATION_OWNER),
    )
    seen = []
    for row in rows:
        block, (lent_with, lender) = _block(row), row[-2:]
        if block.agent_id == agent_id:
            seen.append(block)
        elif lent_with is not None:
            seen.append(replace(block, via=Via.ATTACHED, permission=Permission(lent_with), lender=lender))
        else:
            seen.append(replace(block, via=Via.CONSTELLATION))
    return seen


def _select(connection: Connection, where: str, values: Sequence[str | int | None]) -> list[BlockRow]:
    return [_block(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM memory_blocks {where}", values)]


def _block(row: Sequence[Json]) -> BlockRow:
    return BlockRow(
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
