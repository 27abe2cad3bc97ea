from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pattern_core.budgets import ledger
from pattern_core.budgets.budget import Budget, KnownBudgets
from pattern_core.budgets.spending import Question, Spending
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.testing.clock import StoppedClock
from pattern_db.columns import unix_ms
from pattern_db.database import Database
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_db.journal.usage import Grouping
from tests.pattern_core.budgets.rig import NOW, call, new_turn, opened, took, worst

DAILY = Budget(BudgetScope.AGENT, "agt_ada", Period.DAY, Unit.TOKENS, 100)
OVERALL = Budget(BudgetScope.CONSTELLATION, "", Period.MONTH, Unit.MICRODOLLARS, 400)
EACH = replace(DAILY, ref="")


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    with opened() as connection:
        async with Database.in_memory(connection) as database:
            yield database


@pytest.fixture
def spending(database: Database) -> Spending:
    return Spending(database=database, clock=StoppedClock(unix_ms(NOW)), known=KnownBudgets((OVERALL, EACH)))


async def test_budgets_as_they_stand(database: Database, spending: Spending) -> None:
    one, other = call(await database.write(new_turn)), call(await database.write(new_turn))
    stored = await spending.put(DAILY)
    assert (stored.id, stored.spent, stored.left) == ("agent.day.tokens.agt_ada", 0, 100)
    await database.write(ledger.reserve, one, lambda: worst(60), now=NOW)
    await database.write(ledger.settle, took(one, 50))
    await database.write(ledger.settle, took(other, 5, price=None))
    await database.write(ledger.reserve, replace(other, step=2), lambda: worst(20), now=NOW)
    mine, overall, each = await spending.budgets()
    assert (mine.spent, mine.held, mine.left, mine.is_configured) == (55, 20, 25, False)
    assert mine.resets_at == "2026-11-22T00:00:00.000Z"
    assert (overall.spent, overall.held, overall.left, overall.unpriced_calls) == (100, 40, 260, 1)
    assert (overall.is_configured, overall.resets_at) == (True, "2026-12-01T00:00:00.000Z")
    assert (each.ref, each.spent, each.held, each.left) == (None, None, None, None)


async def test_a_budget_that_is_passed_has_nothing_left(database: Database, spending: Spending) -> None:
    await database.write(ledger.settle, took(call(await database.write(new_turn)), 500))
    assert (await spending.put(DAILY)).left == 0


async def test_budgets_are_replaced_and_removed(spending: Spending) -> None:
    await spending.put(DAILY)
    await spending.put(replace(DAILY, amount=7))
    assert [view.amount for view in await spending.budgets()] == [7, 400, 100]
    await spending.remove("agent.day.tokens.agt_ada")
    assert [view.is_configured for view in await spending.budgets()] == [True, True]
    with pytest.raises(NotFound, match="pattern budget list"):
        await spending.remove("agent.day.tokens.agt_ada")
    with pytest.raises(NotFound, match="changed in pattern"):
        await spending.remove("constellation.month.microdollars")
    with pytest.raises(NotFound):
        await spending.remove("nowhere")
    with pytest.raises(InvalidInput):
        await spending.put(replace(DAILY, amount=-1))


async def test_reports(database: Database, spending: Spending) -> None:
    parent = await database.write(new_turn)
    child = await database.write(new_turn, "agt_bob", parent=parent)
    await database.write(ledger.settle, took(call(parent), 50))
    await database.write(ledger.settle, took(call(child), 10, at="2026-11-22T01:00:00.000Z"))
    whole = await spending.report(Question())
    assert [(line.key, line.input_tokens) for line in whole.lines] == [("2026-11-22", 10), ("2026-11-21", 50)]
    assert (whole.total.calls, whole.total.cost_microdollars) == (2, 120)
    page = await spending.report(Question(by=Grouping.TURN, limit=1, after="turn_1"))
    assert [line.key for line in page.lines] == ["turn_0"]
    assert page.total.calls == 2
    assert (await spending.report(Question(turn_id="turn_0"))).total.calls == 2
    assert (await spending.report(Question(turn_id="turn_1"))).total.calls == 1
    assert (await spending.report(Question(agent_id="agt_bob"))).total.input_tokens == 10
    assert (await spending.report(Question(since="2026-11-22"))).total.calls == 1
    assert (await spending.report(Question(until="2026-11-22T02:00:00+01:00"))).total.calls == 1


@pytest.mark.parametrize("given", ["yesterday", "2026-11-21T10:00:00", "2026-13-01"])
async def test_times_that_cannot_be_read(spending: Spending, given: str) -> None:
    with pytest.raises(InvalidInput, match=r"since is .* write a date such as"):
        await spending.report(Question(since=given))


async def test_a_turn_that_is_not_there(spending: Spending) -> None:
    with pytest.raises(NotFound, match="no turn 'nowhere'"):
        await spending.report(Question(turn_id="nowhere"))
