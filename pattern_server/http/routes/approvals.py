"""Approvals and grants: what agents may do only if a person approves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Response
from pydantic import Field

from pattern_core.approvals import Approval, ApprovalAnswer, Scope
from pattern_db.enums import ApprovalStatus
from pattern_db.journal.approvals import GrantRow
from pattern_server.http.bodies import Paged, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}", tags=["approvals"])

REASON_CHARS_MAX = 2_000

# `request` is what the agent wants to do, `audience` who should answer; `decision` is `{note, …}` or null.
APPROVAL = answer_of(Approval, "id kind status audience request decision decided_by created_at expires_at decided_at")
GRANT = answer_of(
    GrantRow, "id agent_id subject same_arguments approval_id granted_by expires_at created_at", same_arguments=bool
)


class DecisionRequest(RequestModel):
    """The answer to a question.

    An approval can hold for later calls: `time` for any within `seconds`, `same` for the same arguments, `always` for
    any; the last two until they are revoked, or for `seconds`. `arguments` replace those of a tool call, except with
    the scope `same`. A denial holds for this question only; the agent sees its `reason`. A call of a client's tool is
    approved with its `result`.
    """

    decision: Literal["approve", "deny"]
    scope: Scope = "once"
    seconds: float | None = None
    arguments: dict[str, Any] | None = None
    reason: Annotated[str | None, Field(max_length=REASON_CHARS_MAX)] = None
    result: str | None = None


@router.get("/approvals", response_model=page_of(APPROVAL))
async def list_all(
    home: ToRead,
    paging: Paged,
    status: Annotated[
        Literal["pending", "approved", "edited", "denied", "expired", "cancelled", "all"],
        Query(description="Only approvals with this status."),
    ] = "pending",
) -> object:
    """List approvals, newest first."""
    wanted = None if status == "all" else ApprovalStatus(status)
    found = await home.constellation.approvals.list(paging.one_more, status=wanted, before=paging.after)
    return paging.cut(found, lambda approval: approval.id)


@router.get("/approvals/{id}", response_model=APPROVAL)
async def get(id: str, home: ToRead) -> Approval:  # noqa: A002 - the path's own word
    """Show an approval with its status and request."""
    return await home.constellation.approvals.get(id)


@router.post("/approvals/{id}", response_model=APPROVAL)
async def decide(id: str, body: DecisionRequest, home: ToWrite) -> Approval:  # noqa: A002 - the path's own word
    """Answer an approval.

    An approval can be answered once. On `approve`, the requested action is done exactly once, in the same transaction
    as the answer.
    """
    given = body.model_dump(exclude={"decision"})
    answer = ApprovalAnswer(approve=body.decision == "approve", by=home.caller.author, **given)
    return await home.constellation.approvals.decide(id, answer)


@router.get("/grants", response_model=page_of(GRANT))
async def list_grants(home: ToRead, paging: Paged) -> object:
    """List grants, which are standing approvals, newest first."""
    found = await home.constellation.approvals.grants.list(paging.one_more, before=paging.after)
    page = paging.cut(found, lambda grant: grant.id)
    return {**page, "items": [fields_with(one, same_arguments=one.args_hash is not None) for one in page["items"]]}


@router.delete("/grants/{id}", status_code=204)
async def revoke_grant(id: str, home: ToWrite) -> Response:  # noqa: A002 - the path's own word
    """Revoke a grant; the agent must ask again."""
    await home.constellation.approvals.grants.revoke(id, by=home.caller.author)
    return Response(status_code=204)
