"""Blocks lent to other agents, and which block an agent means by a label."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, Permission
from pattern_db.errors import NotFound
from pattern_db.tables import memory_blocks
from pattern_db.tables.memory_blocks import BlockRow


class Via(StrEnum):
    """Why an agent sees a block: it owns it, it was lent it, or it is everybody's."""

    OWN = "own"
    ATTACHED = "attached"
    CONSTELLATION = "constellation"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBlock:
    """A block as one agent sees it. `permission` is that of the attachment for a lent block, else the block's own."""

    block: BlockRow
    via: Via
    permission: Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One block lent to one agent."""

    block_id: str
    agent_id: str
    permission: Permission
    attached_at: str


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
    """The loans of a block, of an agent, or all, by time."""
    rows = connection.execute(
        "SELECT block_id, agent_id, permission, attached_at FROM shared_block_agents"
        " WHERE (?1 IS NULL OR block_id = ?1) AND (?2 IS NULL OR agent_id = ?2)"
        " ORDER BY attached_at, block_id, agent_id",
        (block_id, agent_id),
    )
    return [
        Attachment(block_id=row[0], agent_id=row[1], permission=Permission(row[2]), attached_at=row[3]) for row in rows
    ]


def resolve_label(connection: Connection, agent_id: str, label: str) -> VisibleBlock:
    """The block that the agent means by `label`: its own, else the one lent to it first, else the constellation's.

    Raises:
        NotFound: it sees none of that label.
    """
    for block in list_visible(connection, agent_id, label=label):
        return block
    raise NotFound(f"there is no memory block {label!r}")


def list_visible(connection: Connection, agent_id: str, *, label: str | None = None) -> list[VisibleBlock]:
    """All active blocks that the agent sees (of one label): its own, those lent to it, the constellation's, each by
    label. Of several with one label the first is what `resolve_label` finds.
    """
    own = memory_blocks.select(
        connection,
        "WHERE agent_id = ?1 AND is_active = 1 AND (?2 IS NULL OR label = ?2) ORDER BY label",
        (agent_id, label),
    )
    loans = {loan.block_id: loan for loan in list_attachments(connection, agent_id=agent_id)}
    lent = memory_blocks.select(
        connection,
        "WHERE id IN (SELECT block_id FROM shared_block_agents WHERE agent_id = ?1) AND agent_id <> ?1"
        " AND is_active = 1 AND (?2 IS NULL OR label = ?2)",
        (agent_id, label),
    )
    lent.sort(key=lambda block: (block.label, loans[block.id].attached_at, block.id))
    everybody = memory_blocks.select(
        connection,
        "WHERE agent_id = ?1 AND is_active = 1 AND (?2 IS NULL OR label = ?2) ORDER BY label",
        (CONSTELLATION_OWNER, label),
    )
    return [
        *(VisibleBlock(block=block, via=Via.OWN, permission=block.permission) for block in own),
        *(VisibleBlock(block=block, via=Via.ATTACHED, permission=loans[block.id].permission) for block in lent),
        *(
            VisibleBlock(block=block, via=Via.CONSTELLATION, permission=block.permission)
            for block in everybody
            if block.id not in loans
        ),
    ]
