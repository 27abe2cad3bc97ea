"""Lending blocks to other agents."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pattern_db.enums import Permission
from pattern_server.http.blocks import At
from pattern_server.http.bodies import Asked, Told
from pattern_server.http.owners import owner_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents/{a}/memory/{label}/share", tags=["memory"])


class ShareAsked(Asked):
    """An agent, by name or id, and what it may do: read_only, append or read_write."""

    agent: str
    permission: Annotated[Permission, Field(strict=False)] = Permission.READ_ONLY


class LoanTold(Told):
    """An agent that sees the block, and what it may do with it."""

    agent_id: str
    agent: str
    permission: str
    attached_at: str


class LoansTold(Told):
    """All of them, by time."""

    items: list[LoanTold]


@router.get("", response_model=LoansTold)
async def loans(at: At, server: Server, caller: MayRead) -> object:
    """To whom the block is lent."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        return {"items": await constellation.sharing.loans(owner, at.label)}


@router.post("", response_model=LoanTold)
async def share(at: At, body: ShareAsked, server: Server, caller: MayWrite) -> object:
    """Lend the block to an agent, or change what it may do."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        return await constellation.sharing.share(owner, at.label, body.agent, body.permission, author=caller.author)


@router.delete("/{borrower}", status_code=204)
async def unshare(at: At, borrower: str, server: Server, caller: MayWrite) -> None:
    """End a loan. What was written in the block stays."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        await constellation.sharing.unshare(owner, at.label, borrower, author=caller.author)
