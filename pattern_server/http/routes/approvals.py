"""Questions to people: what agents may only do with somebody's consent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from pattern_core.approvals import Approval, ApprovalAnswer, Scope
from pattern_db.enums import ApprovalStatus
from pattern_server.http.bodies import Asked, Cursor, Page, PageLimit, Told, decode_cursor, encode_cursor
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/approvals", tags=["approvals"])

REASON_CHARS_MAX = 2_000


class ApprovalTold(Told):
    """A question. `request` says what is asked for, `audience` who should answer; `decision` is `{note, …}` or
    null."""

    id: str
    kind: str
    status: str
    audience: str | None
    request: dict[str, Any]
    decision: dict[str, Any] | None
    decided_by: str | None
    created_at: str
    expires_at: str | None
    decided_at: str | None


class DecisionAsked(Asked):
    """An answer. A yes may hold for longer than the question: `time` for any such call within `seconds`, `same` for the
    same arguments, `always` for any; the last two until they are revoked, or for `seconds`. `arguments` replace those
    of a tool call, though not for the scope `same`. A no is for the question alone; the agent is told its `reason`.
    """

    decision: Literal["approve", "deny"]
    scope: Scope = "once"
    seconds: float | None = None
    arguments: dict[str, Any] | None = None
    reason: Annotated[str | None, Field(max_length=REASON_CHARS_MAX)] = None


@router.get("", response_model=Page[ApprovalTold])
async def list_all(
    c: str,
    server: Server,
    caller: MayRead,
    status: Annotated[
        Literal["pending", "approved", "edited", "denied", "expired", "cancelled", "all"],
        Query(description="which ones"),
    ] = "pending",
    limit: PageLimit = 100,
    cursor: Cursor = None,
) -> object:
    """The questions to people, newest first."""
    place = decode_cursor(cursor, 1)
    wanted = None if status == "all" else ApprovalStatus(status)
    async with server.constellations.use(caller, c) as constellation:
        found = await constellation.approvals.list(limit + 1, status=wanted, before=None if place is None else place[0])
    shown = found[:limit]
    return {"items": shown, "next_cursor": encode_cursor(shown[-1].id) if len(found) > limit else None}


@router.get("/{id}", response_model=ApprovalTold)
async def show(c: str, id: str, server: Server, caller: MayRead) -> Approval:  # noqa: A002 - the path's own word
    """One question."""
    async with server.constellations.use(caller, c) as constellation:
        return await constellation.approvals.get(id)


@router.post("/{id}", response_model=ApprovalTold)
async def decide(c: str, id: str, body: DecisionAsked, server: Server, caller: MayWrite) -> Approval:  # noqa: A002 - the path's own word
    """Answer a question, once. On `approve` what was asked for is done with the answer, exactly once."""
    async with server.constellations.use(caller, c) as constellation:
        answer = ApprovalAnswer(
            approve=body.decision == "approve",
            by=caller.author,
            scope=body.scope,
            seconds=body.seconds,
            arguments=body.arguments,
            reason=body.reason,
        )
        return (await constellation.approvals.decide(id, answer)).approval
