"""What agents did, what was notable, and both by day and by week."""

from __future__ import annotations

from typing import Annotated

from pattern_core.overview import AgentSummary, NotableEvent, Period
from pattern_db.enums import NotableKind
from pattern_server.http.bodies import BY_VALUE, PagedTexts, RequestModel, answer_of, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/overview", tags=["overview"])

AGENT = answer_of(AgentSummary, "agent_id name summary model messages_covered last_active generated_at", "AgentSummary")
PERIOD = answer_of(Period, "id period_start period_end summary key_decisions open_threads created_at", "PeriodSummary")
NOTABLE = answer_of(NotableEvent, "id timestamp event_type description agents_involved importance", "NotableEvent")


class NotableRequest(RequestModel):
    """The event to record."""

    description: str
    event_type: Annotated[NotableKind, BY_VALUE] = NotableKind.DECISION


@router.get("/agents", response_model=page_of(AGENT))
async def list_agents(home: ToRead, paging: PagedTexts) -> object:
    """List the newest summary of each agent, newest first; an agent that has had little to do has none."""
    found = await home.constellation.overview.summaries(paging.one_more, paging.after)
    return paging.cut(found, lambda one: one.agent_id)


@router.get("/periods", response_model=page_of(PERIOD))
async def list_periods(home: ToRead, paging: PagedTexts) -> object:
    """List summaries of days and weeks, newest first; in UTC, from Monday, and only where something happened."""
    found = await home.constellation.overview.periods(paging.one_more, paging.after)
    return paging.cut(found, lambda one: one.id)


@router.get("/notable", response_model=page_of(NOTABLE))
async def list_notable(home: ToRead, paging: PagedTexts) -> object:
    """List notable events that agents and people recorded, newest first."""
    found = await home.constellation.overview.notable(paging.one_more, paging.after)
    return paging.cut(found, lambda one: one.id)


@router.post("/notable", status_code=201, response_model=NOTABLE)
async def record(body: NotableRequest, home: ToWrite) -> NotableEvent:
    """Record a notable event; agents are shown it with their next messages, and it starts no turn."""
    author = home.caller.author
    return await home.constellation.overview.record(body.event_type, body.description, author=author)


@router.delete("/notable/{id}", status_code=204)
async def delete_notable(id: str, home: ToWrite) -> None:  # noqa: A002 - the word of the path
    """Delete a notable event; conversations and summaries that have it stay as they are."""
    await home.constellation.overview.delete(id)
