"""Messages that were accepted and found no agent to answer them: listed, sent again, discarded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query

from pattern_core.outbox import Undelivered
from pattern_db.enums import DeliveryStatus
from pattern_server.http.bodies import PagedTexts, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/inbox", tags=["inbox"])

KINDS = ("agent", "group")
WAITING = answer_of(
    Undelivered,
    "id agent_id group_id sender content status attempts next_at last_error created_at",
    "UndeliveredMessage",
    agent_id=str | None,
    group_id=str | None,
    sender=str,
    content=str,
    next_at=str | None,
)


class RedeliveryRequest(RequestModel):
    """Who gets the message: without an agent, the one that it was for."""

    agent: str | None = None


def _shown(row: Undelivered) -> Mapping[str, Any]:
    kind, _, target = row.target.partition(":")
    payload = json.loads(row.payload)
    return {
        **fields_with(row, next_at=row.next_at if row.status is DeliveryStatus.PENDING else None),
        "agent_id": target if kind == "agent" else None,
        "group_id": target if kind == "group" else None,
        "sender": payload["sender"],
        "content": str(payload.get("content", "")),
    }


@router.get("", response_model=page_of(WAITING))
async def list_all(
    home: ToRead,
    paging: PagedTexts,
    status: Annotated[DeliveryStatus | None, Query(description="Default: `pending` and `dead`.")] = None,
) -> object:
    """List messages that could not be delivered.

    Return messages with a turn that could not start, and those of agents and schedules with a turn that failed, newest
    first. They are tried again for a day; those that are `dead` wait for a person.
    """
    statuses = (DeliveryStatus.PENDING, DeliveryStatus.DEAD) if status is None else (status,)
    found = await home.constellation.outbox.newest("[ag]*", paging.one_more, statuses=statuses, before=paging.after)
    return paging.cut([_shown(row) for row in found], lambda row: str(row["id"]))


@router.post("/{m}/retry", status_code=204)
async def retry(m: str, body: RedeliveryRequest, home: ToWrite) -> None:
    """Send a message again, to its agent or group or to another agent; a turn answers it."""
    row = await home.constellation.outbox.get(m, KINDS)
    if body.agent is not None:
        row = replace(row, target=f"agent:{(await home.constellation.roster.get(body.agent)).id}")
    await home.constellation.outbox.retry(row)


@router.delete("/{m}", status_code=204)
async def discard(m: str, home: ToWrite) -> None:
    """Discard a message; it is not delivered any more."""
    await home.constellation.outbox.discard(await home.constellation.outbox.get(m, KINDS))
