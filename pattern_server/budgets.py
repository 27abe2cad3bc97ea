"""The operator's budgets, as `[budgets]` in the configuration says them."""

from __future__ import annotations

from pattern_core.budgets.amounts import MICRO
from pattern_core.budgets.budget import Budget
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_server.config import AmountConfig, BudgetsConfig, PeriodsConfig


def configured_budgets(config: BudgetsConfig) -> tuple[Budget, ...]:
    """The configured budgets; none where nothing is configured."""
    periods = ((BudgetScope.AGENT, config.agent), (BudgetScope.CONSTELLATION, config.constellation))
    found = _amounts(BudgetScope.TURN, Period.TOTAL, config.turn)
    for scope, section in periods:
        for period in Period:
            found += _amounts(scope, period, _of(section, period))
    return tuple(found)


def _of(section: PeriodsConfig, period: Period) -> AmountConfig:
    return {Period.DAY: section.day, Period.MONTH: section.month, Period.TOTAL: section.total}[period]


def _amounts(scope: BudgetScope, period: Period, amount: AmountConfig) -> list[Budget]:
    money = None if amount.dollars is None else int(amount.dollars * MICRO)
    units = ((Unit.TOKENS, amount.tokens), (Unit.MICRODOLLARS, money))
    return [Budget(scope, "", period, unit, value) for unit, value in units if value is not None]
