"""What model calls took: tokens and money, by day, agent, model or turn."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from pattern_core.budgets.usage import UsageQuestion
from pattern_core.constellation import Constellation
from pattern_core.errors import NotFound
from pattern_db.journal.usage import Grouping
from pattern_server.http.bodies import Cursor, PageLimit, Told, decode_cursor, encode_cursor
from pattern_server.http.routing import MayRead, Router, Server

router = Router(prefix="/constellations/{c}/usage", tags=["usage"])


class UsageLineTold(Told):
    """The sum over some calls. `key` is the day (UTC), the agent's id, `provider/model` or the turn's id, `name` an
    agent's name. `cost_microdollars` leaves out the `unpriced_calls`, whose price is not known; of the
    `estimated_calls` nobody reported the tokens. Cached and cache-write tokens are part of the input, reasoning of the
    output.
    """

    key: str
    name: str | None
    calls: int
    unpriced_calls: int
    estimated_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_microdollars: int


class UsageReportTold(Told):
    """The lines of one page, and the sum over all lines of all pages."""

    total: UsageLineTold
    items: list[UsageLineTold]
    next_cursor: str | None


class UsageAsked(BaseModel):
    """What to report. Times are RFC 3339 with an offset, or dates, which mean midnight UTC."""

    model_config = ConfigDict(extra="forbid")

    by: Grouping = Field(default=Grouping.DAY, description="what a line is about")
    agent: str | None = Field(default=None, description="only this agent's calls; its id or name")
    turn: str | None = Field(default=None, description="only this turn's calls and those of turns that it led to")
    since: str | None = Field(default=None, description="calls from then on")
    until: str | None = Field(default=None, description="calls before it")
    limit: PageLimit = 100
    cursor: Cursor = None


@router.get("", response_model=UsageReportTold)
async def report(c: str, asked: Annotated[UsageAsked, Query()], server: Server, caller: MayRead) -> object:
    """Tokens and money: days and turns newest first, agents and models by name."""
    place = decode_cursor(asked.cursor, 1)
    async with server.constellations.use(caller, c) as constellation:
        question = UsageQuestion(
            by=asked.by,
            agent_id=None if asked.agent is None else await _agent_id(constellation, asked.agent),
            turn_id=asked.turn,
            since=asked.since,
            until=asked.until,
            limit=asked.limit + 1,
            after=None if place is None else place[0],
        )
        found = await constellation.budgets.report(question)
    shown = found.lines[: asked.limit]
    following = encode_cursor(shown[-1].key) if len(found.lines) > asked.limit else None
    return {"total": found.total, "items": shown, "next_cursor": following}


async def _agent_id(constellation: Constellation, id_or_name: str) -> str:
    """The agent's id; an id is also one if the agent was deleted, because what it spent is still told."""
    try:
        return (await constellation.roster.get(id_or_name)).id
    except NotFound:
        if id_or_name.startswith("agt_"):
            return id_or_name
        raise
