from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pattern_core.budgets import reservations
from pattern_core.budgets.budget import Budget, KnownBudgets
from pattern_core.budgets.usage import Budgets, UsageQuestion
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.testing import StoppedClock
from pattern_db.columns import unix_ms
from pattern_db.database import Database
from pattern_db.errors import RowNotFound
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
def budgets(database: Database) -> Budgets:
    return Budgets(database=database, clock=StoppedClock(unix_ms(NOW)), known=KnownBudgets((OVERALL, EACH)))


async def test_budgets_as_they_stand(database: Database, budgets: Budgets) -> None:
    one, other = call(await database.write(new_turn)), call(await database.write(new_turn))
    stored = await budgets.put(DAILY)
    assert (stored.id, stored.spent, stored.left) == ("agent.day.tokens.agt_ada", 0, 100)
    await database.write(reservations.reserve, one, lambda: worst(60), now=NOW)
    await database.write(reservations.settle, took(one, 50))
    await database.write(reservations.settle, took(other, 5, price=None))
    await database.write(reservations.reserve, other._replace(step=2), lambda: worst(20), now=NOW)
    mine, overall, each = await budgets.every()
    assert (mine.spent, mine.held, mine.left, mine.is_configured) == (55, 20, 25, False)
    assert mine.resets_at == "2026-11-22T00:00:00.000Z"
    assert (overall.spent, overall.held, overall.left, overall.unpriced_calls) == (100, 40, 260, 1)
    assert (overall.is_configured, overall.resets_at) == (True, "2026-12-01T00:00:00.000Z")
    assert (each.ref, each.spent, each.held, each.left) == (None, None, None, None)


async def test_a_budget_that_is_passed_has_nothing_left(database: Database, budgets: Budgets) -> None:
    await database.write(reservations.settle, took(call(await database.write(new_turn)), 500))
    assert (await budgets.put(DAILY)).left == 0


async def test_budgets_are_replaced_and_removed(budgets: Budgets) -> None:
    await budgets.put(DAILY)
    await budgets.put(replace(DAILY, amount=7))
    assert [view.amount for view in await budgets.every()] == [7, 400, 100]
    await budgets.remove("agent.day.tokens.agt_ada")
    assert [view.is_configured for view in await budgets.every()] == [True, True]
    with pytest.raises(NotFound, match="pattern budget list"):
        await budgets.remove("agent.day.tokens.agt_ada")
    with pytest.raises(NotFound, match="changed in pattern"):
        await budgets.remove("constellation.month.microdollars")
    with pytest.raises(NotFound):
        await budgets.remove("nowhere")
    with pytest.raises(InvalidInput):
        await budgets.put(replace(DAILY, amount=-1))


async def test_reports(database: Database, budgets: Budgets) -> None:
    parent = await database.write(new_turn)
    child = await database.write(new_turn, "agt_bob", parent=parent)
    await database.write(reservations.settle, took(call(parent), 50))
    await database.write(reservations.settle, took(call(child, "agt_bob"), 10, at="2026-11-22T01:00:00.000Z"))
    total, lines = await budgets.report(UsageQuestion())
    assert [(line.key, line.input_tokens) for line in lines] == [("2026-11-22", 10), ("2026-11-21", 50)]
    assert (total.calls, total.cost_microdollars) == (2, 120)
    total, lines = await budgets.report(UsageQuestion(by=Grouping.TURN, limit=1, after="turn_1"))
    assert ([line.key for line in lines], total.calls) == (["turn_0"], 2)
    for question, calls in (
        (UsageQuestion(turn_id="turn_0"), 2),
        (UsageQuestion(turn_id="turn_1"), 1),
        (UsageQuestion(agent_id="agt_bob"), 1),
        (UsageQuestion(since="2026-11-22"), 1),
        (UsageQuestion(until="2026-11-22T02:00:00+01:00"), 1),
    ):
        assert (await budgets.report(question))[0].calls == calls
    with pytest.raises(RowNotFound, match="no turn nowhere"):
        await budgets.report(UsageQuestion(turn_id="nowhere"))


@pytest.mark.parametrize("given", ["yesterday", "2026-11-21T10:00:00", "2026-13-01"])
async def test_times_that_cannot_be_read(budgets: Budgets, given: str) -> None:
    with pytest.raises(InvalidInput, match=r"invalid since .* write a date such as"):
        await budgets.report(UsageQuestion(since=given))
