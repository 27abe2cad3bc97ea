"""What a budget is: its name, its period, and which ones a call has to keep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pattern_core.budgets.amounts import AMOUNT_MAX, dollars
from pattern_core.errors import InvalidInput
from pattern_db.columns import iso, unix_ms
from pattern_db.journal.budgets import BudgetRow, BudgetScope, Period, Unit
from pattern_db.journal.usage import DAY_CHARS

Budget = BudgetRow

_MIDNIGHT = "T00:00:00.000Z"
_MONTH_CHARS = len("2026-11")
_MONTHS = 12
_DAY_MS = 24 * 3600 * 1000
_PER = {Period.DAY: " a day", Period.MONTH: " a month", Period.TOTAL: ""}
_WHOSE = {
    BudgetScope.TURN: "each turn",
    BudgetScope.AGENT: "each agent",
    BudgetScope.GROUP: "the group",
    BudgetScope.CONSTELLATION: "the constellation",
}


@dataclass(slots=True)
class KnownBudgets:
    """What is known of a constellation's budgets without a look into its file. `configured` are the operator's.

    Unless they `exist`, a model call has nothing to keep to: no budget is configured or stored, and no turn has bounds
    of its own. Whoever stores one says so here before; nobody takes it back.
    """

    configured: Sequence[Budget] = ()
    exist: bool = True


def check(budget: Budget) -> None:
    """Whether it makes sense.

    Raises:
        InvalidInput: the amount is out of bounds, or scope, reference and period do not go together.
    """
    if not 0 <= budget.amount <= AMOUNT_MAX:
        raise InvalidInput(f"a budget's amount is a whole number of tokens or micro-dollars from 0 to {AMOUNT_MAX}")
    if budget.scope is BudgetScope.TURN and (budget.ref or budget.period is not Period.TOTAL):
        raise InvalidInput(
            "a budget of turns is for each turn as a whole: leave the agent out and take the period total;"
            " one agent's turns are bounded by `limits` in its config"
        )
    if budget.scope is BudgetScope.CONSTELLATION and budget.ref:
        raise InvalidInput("a constellation's budget is for all of it; leave the agent and the group out")
    if budget.scope is BudgetScope.GROUP and not budget.ref:
        raise InvalidInput("say which group the budget is for")


def name_of(budget: Budget) -> str:
    """The name by which it is shown and removed: `constellation.day.tokens`, `agent.month.microdollars.agt_…`."""
    parts = (budget.scope.value, budget.period.value, budget.unit.value, budget.ref)
    return ".".join(part for part in parts if part)


def of_name(name: str) -> Budget | None:
    """The budget of a name, its amount 0; None if no budget can have that name."""
    scope, _, rest = name.partition(".")
    period, _, rest = rest.partition(".")
    unit, _, ref = rest.partition(".")
    try:
        return Budget(BudgetScope(scope), ref, Period(period), Unit(unit), 0)
    except ValueError:
        return None


def shown_amount(unit: Unit, amount: int) -> str:
    """An amount for people: `100,000 tokens`, `$2.50`."""
    return dollars(amount) if unit is Unit.MICRODOLLARS else f"{amount:,} token{'' if amount == 1 else 's'}"


def words(budget: Budget, whose: str | None = None) -> str:
    """A budget in words: `the budget of each agent, 100,000 tokens a day`; `whose` is what to say instead."""
    named = f"{budget.scope.value} {budget.ref}" if budget.ref else _WHOSE[budget.scope]
    return f"the budget of {whose or named}, {shown_amount(budget.unit, budget.amount)}{_PER[budget.period]}"


def began_at(period: Period, now: str) -> str:
    """When the period of `now` (a time as stored, UTC) began, as stored; empty for one without a beginning."""
    if period is Period.TOTAL:
        return ""
    day = now[:DAY_CHARS] if period is Period.DAY else f"{now[:_MONTH_CHARS]}-01"
    return day + _MIDNIGHT


def resets_at(period: Period, now: str) -> str | None:
    """When the period of `now` ends and the next one begins, as stored; None for one without an end."""
    if period is Period.TOTAL:
        return None
    if period is Period.DAY:
        return iso(unix_ms(began_at(period, now)) + _DAY_MS)
    year, month = int(now[:4]), int(now[5:_MONTH_CHARS])
    year, month = (year + 1, 1) if month == _MONTHS else (year, month + 1)
    return f"{year:04d}-{month:02d}-01{_MIDNIGHT}"


def kept_by(
    stored: Iterable[Budget], configured: Iterable[Budget], agent_id: str, group_id: str | None
) -> list[Budget]:
    """The budgets that a call of an agent, perhaps on behalf of a group, has to keep; each names whom it is for.

    Of an agent's budgets of one period and unit the nearest holds: its own, else the stored one of each agent, else
    the configured one of each agent. The configured ones of the constellation are the operator's: they hold whatever
    is stored, and what is stored holds beside them. Those of turns are fixed when a turn starts.
    """
    agents: dict[tuple[Period, Unit], Budget] = {}
    others: list[Budget] = []
    near = sorted(stored, key=lambda budget: budget.ref, reverse=True)  # a reference before none
    for budget in (*near, *configured):
        match budget.scope:
            case BudgetScope.AGENT if budget.ref in (agent_id, ""):
                agents.setdefault((budget.period, budget.unit), replace(budget, ref=agent_id))
            case BudgetScope.CONSTELLATION:
                others.append(budget)
            case BudgetScope.GROUP if budget.ref == group_id:
                others.append(budget)
    return [*agents.values(), *others]


def of_each_turn(stored: Sequence[Budget], configured: Sequence[Budget], unit: Unit) -> int | None:
    """What a turn may spend of a unit where its agent's config says nothing: as stored, else as configured."""
    turns = (budget for budget in (*stored, *configured) if budget.scope is BudgetScope.TURN and budget.unit is unit)
    return next((budget.amount for budget in turns), None)
