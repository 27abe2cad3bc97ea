"""Usage of model calls (tokens and cost) by day, agent, model, turn or cause; and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from pattern_core.budgets.budget import AMOUNT_MAX, Budget
from pattern_core.budgets.usage import BudgetView, UsageQuestion
from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, NotFound
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_db.journal.usage import Grouping, UsageLine
from pattern_server.http.bodies import BY_VALUE, Cursor, Page, Paged, PageLimit, Paging, RequestModel
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}", tags=["usage"])


class UsageReport(BaseModel):
    """One page of usage, and the sum over all pages.

    Cached and cache-write tokens are part of the input, reasoning tokens of the output. `cost_microdollars` does not
    include `unpriced_calls`.
    """

    total: UsageLine
    items: Sequence[UsageLine]
    next_cursor: str | None


class UsageRequest(BaseModel):
    """What to report. Times are RFC 3339 with an offset, or dates, which mean midnight UTC."""

    by: Grouping = Field(default=Grouping.DAY, description="What the usage is grouped by.")
    agent: str | None = Field(default=None, description="Only calls of this agent (id or name).")
    turn: str | None = Field(default=None, description="Only calls of this turn and of turns that it started.")
    since: str | None = Field(
        default=None, description="Only calls from this time on: RFC 3339 with an offset, or a date (midnight UTC)."
    )
    until: str | None = Field(
        default=None, description="Only calls before this time: RFC 3339 with an offset, or a date (midnight UTC)."
    )
    limit: PageLimit = 100
    cursor: Cursor = None


class BudgetRequest(RequestModel):
    """The budget to set.

    `agent` is for the scope `agent`; without it the budget applies to each agent. `group` is for the scope `group`. A
    budget of turns has the period `total`.
    """

    scope: Annotated[BudgetScope, BY_VALUE]
    agent: str | None = None
    group: str | None = None
    period: Annotated[Period, BY_VALUE] = Period.TOTAL
    unit: Annotated[Unit, BY_VALUE]
    amount: Annotated[int, Field(ge=0, le=AMOUNT_MAX)]


@router.get("/usage", response_model=UsageReport)
async def report(asked: Annotated[UsageRequest, Query()], home: ToRead) -> object:
    """Report tokens and cost; days and turns newest first, agents and models by name."""
    paging = Paging(asked.limit, asked.cursor)
    after = paging.after
    question = UsageQuestion(
        by=asked.by,
        agent_id=None if asked.agent is None else await _agent_id(home.constellation, asked.agent),
        turn_id=asked.turn,
        since=asked.since,
        until=asked.until,
        limit=paging.one_more,
        after=after,
    )
    total, lines = await home.constellation.budgets.report(question)
    return {"total": total, **paging.cut(lines, lambda line: line.key)}


async def _agent_id(constellation: Constellation, id_or_name: str) -> str:
    """Return the agent's id. The id of a deleted agent is accepted, because its usage is still reported."""
    try:
        return (await constellation.roster.get(id_or_name)).id
    except NotFound:
        if id_or_name.startswith("agent_"):
            return id_or_name
        raise


@router.get("/budgets", response_model=Page[BudgetView])
async def list_budgets(home: ToRead, paging: Paged) -> object:
    """List budgets with spent and remaining amounts; also those of the server's configuration."""
    found = await home.constellation.budgets.every()
    return paging.of_all(found, lambda budget: (budget.id, str(budget.is_configured)))


@router.put("/budgets")
async def put_budget(body: BudgetRequest, home: ToWrite) -> BudgetView:
    """Set a budget for calls from now on; it replaces one with the same scope, period and unit."""
    if body.agent is not None and body.scope is not BudgetScope.AGENT:
        raise InvalidInput("`agent` is only allowed with the scope `agent`; leave it out, or change the scope")
    if body.group is not None and body.scope is not BudgetScope.GROUP:
        raise InvalidInput("`group` is only allowed with the scope `group`; leave it out, or change the scope")
    ref = "" if body.agent is None else (await home.constellation.roster.get(body.agent)).id
    if body.group is not None:
        ref = (await home.constellation.groups.get(body.group)).id
    return await home.constellation.budgets.put(Budget(body.scope, ref, body.period, body.unit, body.amount))


@router.delete("/budgets/{budget}", status_code=204)
async def delete_budget(budget: str, home: ToWrite) -> None:
    """Delete a budget; those of the server's configuration cannot be deleted here."""
    await home.constellation.budgets.remove(budget)
