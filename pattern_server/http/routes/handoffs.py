"""Notes that are handed to agents."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from pattern_core.handoffs import HandoffNote
from pattern_server.http.bodies import PagedTexts, RequestModel, answer_of, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/handoffs", tags=["handoffs"])

NOTE = answer_of(HandoffNote, "id author from_agent to_agent content created_at read_at", "HandoffNote")


class HandoffRequest(RequestModel):
    """The note to leave, for an agent or for the first one that reads it."""

    content: str
    to: str | None = None


@router.get("", response_model=page_of(NOTE))
async def list_all(
    home: ToRead,
    paging: PagedTexts,
    to: Annotated[str | None, Query(description="Only notes for this agent (id or name).")] = None,
    unread: Annotated[bool, Query(description="Only notes that no agent was shown yet.")] = False,
) -> object:
    """List hand-off notes, newest first; one without `to_agent` is for the first agent that reads it."""
    found = await home.constellation.handoffs.page(paging.one_more, before=paging.after, to=to, unread=unread)
    return paging.cut(found, lambda note: note.id)


@router.post("", status_code=201, response_model=NOTE)
async def create(body: HandoffRequest, home: ToWrite) -> object:
    """Leave a note that an agent is shown with the next message that it answers; it starts no turn."""
    return await home.constellation.handoffs.add(body.content, author=home.caller.author, to=body.to)


@router.delete("/{id}", status_code=204)
async def delete(id: str, home: ToWrite) -> None:  # noqa: A002 - the word of the path
    """Delete a hand-off note; a conversation that shows it stays as it is."""
    await home.constellation.handoffs.delete(id)
