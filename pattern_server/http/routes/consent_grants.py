"""Standing consent: what agents may do without asking again."""

from __future__ import annotations

from fastapi import Response

from pattern_server.http.bodies import Cursor, Page, PageLimit, Told, decode_cursor, encode_cursor
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/grants", tags=["approvals"])


class GrantTold(Told):
    """A consent that holds. `subject` is `tool:NAME` or `block:LABEL`; `expires_at` null means until it is revoked."""

    id: str
    agent_id: str
    subject: str
    same_arguments: bool
    approval_id: str | None
    granted_by: str
    expires_at: str | None
    created_at: str


@router.get("", response_model=Page[GrantTold])
async def list_all(c: str, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None) -> object:
    """What people agreed to beforehand, newest first."""
    place = decode_cursor(cursor, 1)
    async with server.constellations.use(caller, c) as constellation:
        grants = constellation.approvals.grants
        found = await grants.list(limit + 1, before=None if place is None else place[0])
    shown = found[:limit]
    items = [
        GrantTold(
            id=one.id,
            agent_id=one.agent_id,
            subject=one.subject,
            same_arguments=one.args_hash is not None,
            approval_id=one.approval_id,
            granted_by=one.granted_by,
            expires_at=one.expires_at,
            created_at=one.created_at,
        )
        for one in shown
    ]
    return {"items": items, "next_cursor": encode_cursor(shown[-1].id) if len(found) > limit else None}


@router.delete("/{id}", status_code=204)
async def revoke(c: str, id: str, server: Server, caller: MayWrite) -> Response:  # noqa: A002 - the path's own word
    """Revoke a consent: the agent asks again."""
    async with server.constellations.use(caller, c) as constellation:
        await constellation.approvals.grants.revoke(id, by=caller.author)
    return Response(status_code=204)
