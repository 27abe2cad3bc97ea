"""The budgets and the usage of one constellation, as users request them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pattern_core.budgets.budget import MIDNIGHT, Budget, KnownBudgets, check, name_of, of_name, period_of
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.ids import Clock, now_text
from pattern_db.columns import canonical
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.journal import budgets, turns, usage
from pattern_db.journal.budgets import BudgetScope
from pattern_db.journal.usage import DAY_CHARS, Grouping, UsageFilter, UsageLine


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """A budget with its current state. `spent`, `held` (reserved for running calls) and `left` are in its unit, `left`
    at least 0.

    They are None if it applies to each of several agents or turns. `unpriced_calls` of its period have no known cost.
    `is_configured`: it comes from the server's configuration.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuestion:
    """What to report: a line per `by`, of an agent (id) or a turn (id) with the turns that it started, between two
    times.

    Times are RFC 3339 with an offset, or dates, which mean midnight UTC. `after` is the key of the last received line.
    """

    by: Grouping = Grouping.DAY
    agent_id: str | None = None
    turn_id: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int = 100
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The budgets and the usage of one constellation."""

    database: Database
    clock: Clock
    known: KnownBudgets

    async def every(self) -> list[BudgetView]:
        """Return all budgets with their current state, stored ones first."""
        return await self.database.read(_standing, self.known.configured, now_text(self.clock))

    async def put(self, budget: Budget) -> BudgetView:
        """Store a budget; it replaces one with the same key and applies to calls from now on.

        Raises:
            InvalidInput: it is invalid.
        """
        check(budget)
        now = now_text(self.clock)
        self.known.exist = True
        await self.database.write(budgets.put, budget, now=now)
        return await self.database.read(_view, budget, now, is_configured=False)

    async def remove(self, name: str) -> None:
        """Delete the stored budget of this name.

        Raises:
            NotFound: there is none.
        """
        named = of_name(name)
        if named is None or not await self.database.write(budgets.remove, named):
            is_configured = any(name == name_of(one) for one in self.known.configured)
            known = " (configured budgets are changed in pattern.toml)" if is_configured else ""
            raise NotFound(f"there is no stored budget {name!r}{known}; list them with `pattern budget list`")

    async def report(self, question: UsageQuestion) -> tuple[UsageLine, Sequence[UsageLine]]:
        """Return the usage of model calls: the sum over all selected ones, and the requested lines.

        Raises:
            InvalidInput: a time is invalid.
            pattern_db.errors.RowNotFound: there is no such turn.
        """
        since, until = _time(question.since, "since"), _time(question.until, "until")
        return await self.database.read_aside(_report, question, since, until)


def _time(given: str | None, name: str) -> str | None:
    if given is None:
        return None
    with suppress(ValueError):
        return canonical(f"{given}{MIDNIGHT}" if len(given) == DAY_CHARS else given)
    raise InvalidInput(
        f"invalid {name} {given!r}; write a date such as 2026-11-21, or a time such as 2026-11-21T22:00:00Z"
    )


def _standing(connection: Connection, configured: Sequence[Budget], now: str) -> list[BudgetView]:
    stored = [_view(connection, budget, now, is_configured=False) for budget in budgets.every(connection)]
    return [*stored, *(_view(connection, budget, now, is_configured=True) for budget in configured)]


def _view(connection: Connection, budget: Budget, now: str, *, is_configured: bool) -> BudgetView:
    spent = held = left = None
    unpriced_calls = 0
    since, resets_at = period_of(budget.period, now)
    if budget.ref or budget.scope is BudgetScope.CONSTELLATION:
        sums = budgets.spent(connection, budget.scope, budget.ref, since=since)
        spent, unpriced_calls = getattr(sums, budget.unit.value), sums.unpriced_calls
        held = getattr(budgets.held(connection, budget.scope, budget.ref), budget.unit.value)
        left = max(0, budget.amount - spent - held)
    return BudgetView(
        id=name_of(budget),
        scope=budget.scope.value,
        ref=budget.ref or None,
        period=budget.period.value,
        unit=budget.unit.value,
        amount=budget.amount,
        spent=spent,
        held=held,
        left=left,
        unpriced_calls=unpriced_calls,
        resets_at=resets_at,
        is_configured=is_configured,
    )


def _report(
    connection: Connection, question: UsageQuestion, since: str | None, until: str | None
) -> tuple[UsageLine, Sequence[UsageLine]]:
    turn = None if question.turn_id is None else turns.by_id(connection, question.turn_id).key
    which = UsageFilter(agent_id=question.agent_id, turn=turn, since=since, until=until)
    lines = usage.lines(connection, which, question.by, limit=question.limit, after=question.after)
    return usage.total(connection, which), lines
