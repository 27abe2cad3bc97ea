"""Summaries are paid for out of the turn's budgets, and are counted apart from its steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.budgets.budget import Budget
from pattern_core.compaction.purse import SummaryPurse
from pattern_core.compaction.summariser import SummaryCall
from pattern_core.errors import LimitReached
from pattern_core.models.model import Usage
from pattern_core.testing.model import Paced, says
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from tests.support import Running, rows, running

OF_DAY = Budget(BudgetScope.CONSTELLATION, "", Period.DAY, Unit.TOKENS, 20_000)
USAGE = "SELECT purpose, input_tokens, output_tokens, cost_microdollars, is_estimate FROM usage WHERE purpose <> 'step'"
HELD = "SELECT tokens FROM reservation WHERE purpose = 'summary'"


@asynccontextmanager
async def purse() -> AsyncIterator[tuple[Running, SummaryPurse, SummaryCall]]:
    """The purse of a turn under way, whose model does not answer yet, under a budget of 20,000 tokens a day."""
    gate = trio.Event()
    async with running([Paced(answer=says("ok"), gate=gate)], budgets=[OF_DAY]) as one:
        agent = await one.agent()
        await one.submit("go")
        await trio.testing.wait_all_tasks_blocked()
        services = one.constellation._services
        call = SummaryCall(
            agent_id=agent.id,
            turn=1,
            provider="scripted",
            model="script-1",
            input_tokens=900,
            output_tokens=100,
            number=1,
        )
        pays = SummaryPurse(models=services.models, journal=services.journal, agent_id=agent.id, turn=1, step=2)
        yield one, pays, call


async def test_the_most_is_held_and_what_it_took_is_stored() -> None:
    async with purse() as (one, pays, call):
        await pays.reserve(call)
        assert await one.database.read(rows, HELD) == [(1_000,)]
        await pays.settle(call, Usage(input_tokens=700, output_tokens=50))
        assert await one.database.read(rows, HELD) == []
        assert await one.database.read(rows, USAGE) == [("summary", 700, 50, None, 0)]
        assert pays.held is None


async def test_a_call_that_failed_is_charged_its_prompt() -> None:
    async with purse() as (one, pays, call):
        await pays.reserve(call)
        await pays.settle(call, None)
        assert await one.database.read(rows, USAGE) == [("summary", 900, 0, None, 1)]


async def test_several_calls_of_a_step_are_counted_each() -> None:
    async with purse() as (one, pays, call):
        for _number in range(2):
            await pays.reserve(call)
            await pays.settle(call, Usage(input_tokens=700, output_tokens=50))
        assert len(await one.database.read(rows, USAGE)) == 2


async def test_a_budget_refuses_before_the_call() -> None:
    async with purse() as (one, pays, call):
        with pytest.raises(LimitReached, match="budget"):
            await pays.reserve(replace(call, input_tokens=20_000))
        assert await one.database.read(rows, HELD) == []
        assert pays.held is None


async def test_what_a_person_wishes_for_is_paid_by_the_agents_budgets_and_counted() -> None:
    async with running(otherwise=says("tea " * 300), budgets=[OF_DAY]) as one:
        agent = await one.agent()
        for _number in range(6):
            await one.say("more")
        made = await one.constellation.compact(agent)
        assert made.messages > 0
        assert len(made.summary_ids) == 1
        [row] = await one.database.read(rows, "SELECT turn, agent_id, purpose FROM usage WHERE purpose <> 'step'")
        assert row == (None, agent.id, "summary")
        sums = "SELECT sum(input_tokens + output_tokens), sum(calls) FROM usage_day"
        [(of_days, calls)] = await one.database.read(rows, sums)
        [of_calls] = await one.database.read(rows, "SELECT sum(input_tokens + output_tokens), count(*) FROM usage")
        assert (of_days, calls) == of_calls
        assert await one.database.read(rows, HELD) == []


async def test_a_budget_that_is_spent_pays_for_no_wish() -> None:
    async with running(otherwise=says("tea " * 300)) as one:
        agent = await one.agent()
        for _number in range(6):
            await one.say("more")
        spent = Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 1)
        await one.constellation.spending.put(spent)
        made = await one.constellation.compact(agent)
        assert "leaves no room for this call" in str(made.trouble)
        assert await one.database.read(rows, USAGE) == []
        assert made.messages > 0  # with a stub in the summary's place
