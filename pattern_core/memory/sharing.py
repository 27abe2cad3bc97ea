"""Sharing blocks: another agent sees a block under its label, with the permission of the share.

Labels resolve own → shared → the constellation's, for reading and for editing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied, instead_of
from pattern_core.ids import now_text
from pattern_core.memory.block import Attribution, BlockRow, is_agent
from pattern_core.memory.opened import OpenBlocks, resolve
from pattern_core.unit_of_work import UnitOfWork, given_or_alone
from pattern_db.connection import Connection
from pattern_db.enums import Permission
from pattern_db.errors import RowNotFound
from pattern_db.tables import agents, memory_blocks
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.memory_blocks import Attachment, Via

LENDABLE = (Permission.READ_ONLY, Permission.APPEND, Permission.READ_WRITE)
_RANKS = {permission: rank for rank, permission in enumerate(Permission)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A block shared with an agent, and the agent's permission."""

    agent_id: str
    agent: str
    permission: Permission
    attached_at: str


class Sharing:
    """The shares of one constellation. A share changes what an agent sees, so `blocks` reads it again."""

    def __init__(self, blocks: OpenBlocks) -> None:
        self._blocks = blocks
        self._database = blocks.database

    async def share(
        self,
        agent_id: str,
        label: str,
        target: str,
        permission: Permission,
        *,
        by: Attribution,
        work: UnitOfWork | None = None,
    ) -> Loan:
        """Share the block that `label` names for `agent_id` with the agent `target` (id or name), or change that share.

        Raises:
            NotFound: there is no such block or agent.
            InvalidInput: the target owns the block, or the permission cannot be shared.
            PermissionDenied: an agent shares a block that is not its own, or with more rights than its own.
        """
        if permission not in LENDABLE:
            raise InvalidInput(f"a block can be shared as {', '.join(LENDABLE)}, not {permission.value}")
        async with given_or_alone(work, self._blocks.commit) as unit:
            block, agent = await self._database.read(_both, agent_id, label, target)
            _check(block, agent, permission, by)
            row = Attachment(block.id, agent.id, permission, now_text(self._blocks.clock))
            unit.store(memory_blocks.attach, row)
            unit.event("memory.shared", {**_loan_event(block, agent, by), "permission": permission.value})
            unit.when_settled(self._blocks.stored)
        return _loan(row, agent)

    async def unshare(
        self, agent_id: str, label: str, target: str, *, by: Attribution, work: UnitOfWork | None = None
    ) -> None:
        """Delete a share; the block and its content stay.

        Raises:
            NotFound: there is no such block or agent, or it is not shared with that agent.
            PermissionDenied: an agent deletes a share of a block that it does not own, with another agent.
        """
        async with given_or_alone(work, self._blocks.commit) as unit:
            block, agent = await self._database.read(_both, agent_id, label, target)
            if is_agent(by.author) and block.via is not Via.OWN and agent.id != agent_id:
                raise PermissionDenied(f"the block {label} is not yours; you can only end its sharing with yourself")
            loans = await self._database.read(memory_blocks.list_attachments, block.id)
            if agent.id not in {loan.agent_id for loan in loans}:
                raise NotFound(f"the block {label} is not shared with {agent.name}")
            unit.store(memory_blocks.detach, block.id, agent.id)
            unit.event("memory.shared", {**_loan_event(block, agent, by), "permission": None})
            unit.when_settled(self._blocks.stored)

    async def loans(self, agent_id: str, label: str) -> Sequence[Loan]:
        """Return the shares of the block, by time.

        Raises:
            NotFound: there is no such block.
        """
        return await self._database.read(_loans, agent_id, label)


def _both(connection: Connection, agent_id: str, label: str, target: str) -> tuple[BlockRow, AgentRow]:
    block = resolve(connection, agent_id, label)
    with instead_of(RowNotFound, NotFound(f"there is no agent {target!r} in this constellation")):
        return block, agents.find(connection, target)


def _check(block: BlockRow, agent: AgentRow, permission: Permission, by: Attribution) -> None:
    if block.agent_id == agent.id:
        raise InvalidInput(f"{agent.name} already owns the block {block.label}; name another agent")
    if not is_agent(by.author):
        return
    if block.via is not Via.OWN:
        raise PermissionDenied(f"the block {block.label} is not yours; only its owner can share it")
    if _RANKS[permission] > _RANKS[block.permission]:
        raise PermissionDenied(
            f"you cannot share more rights than you have: the block {block.label} is {block.permission.value}"
        )


def _loan_event(block: BlockRow, agent: AgentRow, by: Attribution) -> dict[str, object]:
    return {"block_id": block.id, "label": block.label, "agent_id": block.agent_id, "with": agent.id, "by": by.author}


def _loans(connection: Connection, agent_id: str, label: str) -> list[Loan]:
    block = resolve(connection, agent_id, label)
    loans = memory_blocks.list_attachments(connection, block.id)
    return [_loan(one, agents.get(connection, one.agent_id)) for one in loans]


def _loan(row: Attachment, agent: AgentRow) -> Loan:
    return Loan(agent_id=agent.id, agent=agent.name, permission=row.permission, attached_at=row.attached_at)
