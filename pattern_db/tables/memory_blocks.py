"""Memory blocks: their settings and text, their shares, and the blocks that an agent sees.

Their documents: see `block_checkpoints` and `block_versions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from pattern_db.columns import Json
from pattern_db.connection import Connection, Table, require_change
from pattern_db.enums import CONSTELLATION_OWNER, BlockType, Encoding, Permission, SearchKind
from pattern_db.tables import embeddings


class Via(StrEnum):
    """Why an agent sees a block: it owns it, it was lent it, a group of it owns it, or it is the constellation's."""

    OWN = "own"
    ATTACHED = "attached"
    GROUP = "group"
    CONSTELLATION = "constellation"


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block without its bytes.

    `agent_id` is an agent, a group or `_constellation_`. `char_limit` is in Unicode code points. `metadata` is a JSON
    object; its "schema" describes the document. `frontier` is its newest version (opaque), `last_seq` its newest
    update. `content_preview` is the text that search and lists show.

    As an agent sees it (`list_visible`) `permission` is that of its share, `lender` the name of the sharing agent, if
    any, and `lent_to` are the ids of all agents that it is shared with (None: none).
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
    is_active: bool = True
    frontier: bytes | None = None
    last_seq: int = 0
    via: Via = Via.OWN
    lender: str | None = None
    lent_to: Sequence[str] | None = None

    @property
    def content(self) -> str:
        """The content as plain text, whatever its schema."""
        return self.content_preview or ""

    @property
    def version(self) -> int:
        """The number that rises with every edit."""
        return self.last_seq


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChanges:
    """Settings to change; None leaves one unchanged."""

    label: str | None = None
    description: str | None = None
    block_type: BlockType | None = None
    char_limit: int | None = None
    permission: Permission | None = None
    pinned: bool | None = None
    metadata: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The author of a change, and the message, turn or call (a JSON object) that caused it."""

    author: str
    cause: Json = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """One block shared with one agent."""

    block_id: str
    agent_id: str
    permission: Permission
    attached_at: str


_JSON, _TYPES = ("metadata",), {"block_type": BlockType, "permission": Permission, "pinned": bool, "is_active": bool}
_BLOCKS = Table(
    "memory_blocks",
    BlockRow,
    columns={"via": "'own'", "lender": "NULL", "lent_to": "NULL"},
    json=_JSON,
    types={**_TYPES, "via": Via},
)
# As the agent ?1 sees them.
_SEEN = Table(
    "memory_blocks",
    BlockRow,
    source="memory_blocks LEFT JOIN"
    " (SELECT block_id, permission AS lent_with, attached_at FROM shared_block_agents WHERE agent_id = ?1)"
    " ON block_id = id AND agent_id <> ?1",
    columns={
        "permission": "coalesce(lent_with, permission)",
        "via": "CASE WHEN agent_id = ?1 THEN 'own'"
        f" WHEN lent_with IS NOT NULL THEN 'attached' WHEN agent_id = '{CONSTELLATION_OWNER}' THEN 'constellation'"
        " ELSE 'group' END AS via",
        "lender": "CASE WHEN lent_with IS NOT NULL THEN (SELECT name FROM agents WHERE agents.id = agent_id) END",
        "lent_to": "(SELECT group_concat(loan.agent_id) FROM shared_block_agents AS loan WHERE loan.block_id = id)",
    },
    json=_JSON,
    types={**_TYPES, "via": Via, "lent_to": lambda ids: ids.split(",")},
)
_SETTINGS = Table("memory_blocks", BlockChanges, json=_JSON)
_LOANS = Table("shared_block_agents", Attachment, types={"permission": Permission})


def create(connection: Connection, row: BlockRow, snapshot: bytes = b"", *, encoding: Encoding = Encoding.RAW) -> None:
    """Add a block that starts with `snapshot`; empty bytes if its first write will be an update.

    `row.last_seq` must be 0.

    Raises:
        apsw.ConstraintError: the owner has an active block of that label (translated to `RowConflict`).
    """
    *values, _via, _lender, _lent_to = _BLOCKS.values(row)
    connection.execute(
        "INSERT INTO memory_blocks (id, agent_id, label, description, block_type, created_at, updated_at, char_limit,"
        " permission, pinned, content_preview, metadata, is_active, frontier, last_seq,"
        f" snapshot_encoding, loro_snapshot) VALUES ({', '.join('?' * (len(values) + 2))})",
        (*values, encoding, snapshot),
    )


def get(connection: Connection, block_id: str, *, include_inactive: bool = False) -> BlockRow:
    """Return the block with this id.

    Raises:
        RowNotFound: there is none, or it was deleted.
    """
    rest = "WHERE id = ? AND is_active >= ?"
    return _BLOCKS.one(connection, rest, (block_id, not include_inactive), f"memory block {block_id}")


def list_all(connection: Connection, *, include_inactive: bool = False) -> list[BlockRow]:
    """Return the blocks of all owners, by owner and label; only active ones unless inactive ones are wanted."""
    active = "" if include_inactive else "WHERE is_active = 1 "
    return _BLOCKS.select(connection, f"{active}ORDER BY agent_id, label")


def update_content(
    connection: Connection, block_id: str, preview: str | None, frontier: bytes | None, updated_at: str
) -> None:
    """Store another text of the newest version, which search finds immediately, and its frontier.

    Raises:
        RowNotFound: there is no such block, or it was deleted.
    """
    changes = "content_preview = ?, frontier = coalesce(?, frontier)"
    _update(connection, block_id, changes, (preview, frontier), updated_at)


def update_config(connection: Connection, block_id: str, changes: BlockChanges, updated_at: str) -> None:
    """Update settings; those that `changes` leaves out stay.

    Raises:
        RowNotFound: there is no such block, or it was deleted.
        apsw.ConstraintError: the owner has another block of that label (translated to `RowConflict`).
    """
    kept = ", ".join(f"{one.name} = coalesce(?, {one.name})" for one in fields(changes))
    _update(connection, block_id, kept, _SETTINGS.values(changes), updated_at)


def deactivate(connection: Connection, block_id: str, updated_at: str) -> None:
    """Delete the block softly: it is no longer found, its label is free, its bytes stay.

    Raises:
        RowNotFound: there is no such block, or it is already deleted.
    """
    _update(connection, block_id, "is_active = 0", (), updated_at)
    embeddings.delete(connection, SearchKind.BLOCK, block_id)


def _update(connection: Connection, block_id: str, changes: str, values: Sequence[Json], updated_at: str) -> None:
    connection.execute(
        f"UPDATE memory_blocks SET {changes}, updated_at = ? WHERE id = ? AND is_active = 1",
        (*values, updated_at, block_id),
    )
    require_change(connection, f"memory block {block_id}")


def attach(connection: Connection, row: Attachment) -> None:
    """Share a block with an agent, or change the permission of a share.

    Raises:
        apsw.ConstraintError: the block or the agent does not exist (translated to `RowConflict`).
    """
    rest = "ON CONFLICT (block_id, agent_id) DO UPDATE SET permission = excluded.permission"
    _LOANS.insert(connection, [row], rest)


def detach(connection: Connection, block_id: str, agent_id: str) -> None:
    """Delete a share.

    Raises:
        RowNotFound: the block is not shared with this agent.
    """
    connection.execute("DELETE FROM shared_block_agents WHERE block_id = ? AND agent_id = ?", (block_id, agent_id))
    require_change(connection, f"block {block_id} shared with {agent_id}")


def list_attachments(connection: Connection, block_id: str) -> list[Attachment]:
    """Return the shares of a block, by time."""
    return _LOANS.select(connection, "WHERE block_id = ? ORDER BY attached_at, agent_id", (block_id,))


def list_visible(connection: Connection, agent_id: str, *, label: str | None = None) -> list[BlockRow]:
    """Return all active blocks that the agent sees (of one label): its own, those lent to it, those of its groups, the
    constellation's, each by label. Of several with one label the agent means the first.
    """
    return _SEEN.select(
        connection,
        "WHERE is_active = 1 AND (?2 IS NULL OR label = ?2) AND id IN"
        " (SELECT id FROM memory_blocks WHERE agent_id IN (?1, ?3) AND is_active = 1"
        " UNION ALL SELECT block_id FROM shared_block_agents WHERE agent_id = ?1"
        " UNION ALL SELECT block.id FROM group_members AS member JOIN memory_blocks AS block"
        " ON block.agent_id = member.group_id AND block.is_active = 1 WHERE member.agent_id = ?1)"
        " ORDER BY CASE via WHEN 'own' THEN 0 WHEN 'attached' THEN 1 WHEN 'group' THEN 2 ELSE 3 END, label,"
        " attached_at, id",
        (agent_id, label, CONSTELLATION_OWNER),
    )
