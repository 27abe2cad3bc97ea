"""The audit log: read it, and check that no entry was changed or removed."""

from __future__ import annotations

from pydantic import BaseModel

from pattern_server.audit import AuditEntry
from pattern_server.http.bodies import Paged, answer_of, page_of
from pattern_server.http.routing import MayAdminister, Router, Server

router = Router(prefix="/audit", tags=["audit"])

AUDIT_ENTRY = answer_of(AuditEntry, "seq created_at action object status user_id token_id address", "AuditEntry")


class AuditCheck(BaseModel):
    """Whether the chain of hashes is whole: the number of sound entries, and the hash of the last one."""

    entries: int
    head: str
    is_intact: bool


@router.get("", response_model=page_of(AUDIT_ENTRY))
async def list_all(server: Server, caller: MayAdminister, paging: Paged) -> object:
    """List the audit log, newest first; only for administrators."""
    found = await server.accounts.audit.page(before=paging.before, limit=paging.one_more)
    return paging.cut(found, lambda row: str(row.seq))


@router.get("/verify")
async def verify(server: Server, caller: MayAdminister) -> AuditCheck:
    """Check the audit log.

    Follow the chain of hashes from the first entry. Entries that were removed at its end do not break it: keep `head`,
    and `entries`, elsewhere to compare them. Only for administrators.
    """
    found = await server.accounts.audit.verify()
    return AuditCheck(entries=found.entries, head=found.head.hex(), is_intact=found.broken_at is None)
