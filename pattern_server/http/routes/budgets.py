"""Budgets: what agents, groups, turns and the constellation may spend."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from pattern_core.budgets.amounts import AMOUNT_MAX
from pattern_core.budgets.budget import Budget
from pattern_core.errors import InvalidInput
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_server.http.bodies import Asked, Cursor, Page, PageLimit, Told, page_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/budgets", tags=["budgets"])

# Groups themselves are yet to come; what cannot be the id of one is a mistake that nobody would ever notice.
_GROUP_ID = re.compile(r"group_[0-9a-hjkmnp-tv-z]{26}", re.ASCII)


class BudgetTold(Told):
    """A budget as it stands; amounts are tokens or millionths of a dollar, as `unit` says.

    `ref` is an agent's or group's id, null for each one. `spent`, `held` (by calls under way) and `left` are null
    where it holds for each of several. Money that `unpriced_calls` cost is not in `spent`. What `is_configured` stands
    in the server's configuration and cannot be changed here.
    """

    id: str
    scope: str
    ref: str | None
    period: str
    unit: str
    amount: int
    spent: int | None
    held: int | None
    left: int | None
    unpriced_calls: int
    resets_at: str | None
    is_configured: bool


class BudgetAsked(Asked):
    """A budget to set. `agent` (id or name) goes with the scope agent, and without one it is for each agent; `group`
    (its id) goes with the scope group. A budget of turns has the period total.
    """

    scope: Annotated[BudgetScope, Field(strict=False)]
    agent: str | None = None
    group: str | None = None
    period: Annotated[Period, Field(strict=False)] = Period.TOTAL
    unit: Annotated[Unit, Field(strict=False)]
    amount: Annotated[int, Field(ge=0, le=AMOUNT_MAX)]


@router.get("", response_model=Page[BudgetTold])
async def list_all(c: str, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None) -> object:
    """The budgets as they stand, those of the server's configuration among them."""
    async with server.constellations.use(caller, c) as constellation:
        found = await constellation.budgets.every()
    return page_of(found, lambda budget: (budget.id, str(budget.is_configured)), limit, cursor)


@router.put("", response_model=BudgetTold)
async def put(c: str, body: BudgetAsked, server: Server, caller: MayWrite) -> object:
    """Set a budget, in the place of one about the same; calls that begin from now on keep it."""
    if body.agent is not None and body.scope is not BudgetScope.AGENT:
        raise InvalidInput("`agent` goes with the scope agent")
    if body.group is not None and body.scope is not BudgetScope.GROUP:
        raise InvalidInput("`group` goes with the scope group")
    if body.group and not _GROUP_ID.fullmatch(body.group):
        raise InvalidInput(f"{body.group!r} is no group's id (group_…), and there are no groups yet: name an agent")
    async with server.constellations.use(caller, c) as constellation:
        ref = body.group or ""
        if body.agent is not None:
            ref = (await constellation.roster.get(body.agent)).id
        budget = Budget(body.scope, ref, body.period, body.unit, body.amount)
        return await constellation.budgets.put(budget)


@router.delete("/{budget}", status_code=204)
async def remove(c: str, budget: str, server: Server, caller: MayWrite) -> None:
    """Take a budget away, by its id."""
    async with server.constellations.use(caller, c) as constellation:
        await constellation.budgets.remove(budget)
