"""What is kept of the part of a conversation that left the prompt."""

from __future__ import annotations

from typing import Any

from pattern_core.compaction.compaction import list_summaries
from pattern_server.http.bodies import Cursor, Page, PageLimit, Told, decode_cursor, encode_cursor
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents/{a}", tags=["messages"])


class SummaryTold(Told):
    """What is kept of `message_count` messages between two positions, said from `started_at` to `ended_at`.

    A stub only says what left; `model` is who wrote a summary. One of a depth above 0 stands for those before it, too.
    """

    id: str
    summary: str
    is_stub: bool
    start_position: str
    end_position: str
    started_at: str
    ended_at: str
    message_count: int
    previous_summary_id: str | None
    depth: int
    strategy: str
    model: str | None
    tokens: int
    created_at: str


class CompactedTold(Told):
    """What a compaction came to. `trouble` says why there is a stub where a summary was wanted."""

    messages: int
    tokens_before: int
    tokens_after: int
    summary_ids: list[str]
    trouble: str | None


@router.get("/summaries", response_model=Page[SummaryTold])
async def list_all(
    c: str, a: str, server: Server, caller: MayRead, limit: PageLimit = 50, cursor: Cursor = None
) -> dict[str, Any]:
    """The summaries of what was archived, newest first. The messages themselves stay in the history and in search."""
    place = decode_cursor(cursor, 1)
    async with server.constellations.use(caller, c) as constellation:
        agent = await constellation.roster.get(a)
        before = None if place is None else place[0]
        rows = await list_summaries(constellation.database, agent.id, limit=limit + 1, before=before)
    shown = rows[:limit]
    return {"items": shown, "next_cursor": encode_cursor(shown[-1].id) if len(rows) > limit else None}


@router.post("/compact", response_model=CompactedTold)
async def compact(c: str, a: str, server: Server, caller: MayWrite) -> object:
    """Archive the older part of the conversation now, by the agent's own settings. Nothing is deleted."""
    async with server.constellations.use(caller, c) as constellation:
        agent = await constellation.roster.get(a)
        return await constellation.compact(agent)
