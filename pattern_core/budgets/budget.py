"""Budgets: amounts in tokens or whole micro-dollars, names, periods, the budgets that apply to a call; and the limits
of one turn. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, TypeAlias

from pydantic import Field

from pattern_core.errors import InvalidInput, LimitReached
from pattern_core.limits import TurnLimits
from pattern_db.journal.budgets import BudgetRow, BudgetScope, Period, Unit
from pattern_db.journal.usage import DAY_CHARS

Budget = BudgetRow

MIDNIGHT = "T00:00:00.000Z"
MICRO = 1_000_000  # micro-dollars in a dollar
AMOUNT_MAX = 2**53  # exact in every JSON parser: nine thousand million dollars
# Digits, also in groups of three with commas. A decimal comma is refused: 1,5 must not become fifteen dollars.
_SUM = re.compile(r"\$?\s*(?=\.?\d)(\d+|\d{1,3}(?:,\d{3})+)?(\.\d*)?", re.ASCII)
_PER = {Period.DAY: " a day", Period.MONTH: " a month", Period.TOTAL: ""}
_WHOSE = {
    BudgetScope.TURN: "each turn",
    BudgetScope.AGENT: "each agent",
    BudgetScope.GROUP: "the group",
    BudgetScope.CONSTELLATION: "the constellation",
}


@dataclass(slots=True)
class KnownBudgets:
    """What is known about a constellation's budgets without reading its file. `configured` are the operator's.

    Unless they `exist`, model calls have no limits: no budget is configured or stored, and no turn has its own limits.
    Set it before one is stored; it is never reset.
    """

    configured: Sequence[Budget] = ()
    exist: bool = True


def check(budget: Budget) -> None:
    """Check a budget.

    Raises:
        InvalidInput: the amount is out of bounds, or scope, reference and period contradict each other.
    """
    if not 0 <= budget.amount <= AMOUNT_MAX:
        raise InvalidInput(
            f"a budget's amount must be a whole number of tokens or micro-dollars from 0 to {AMOUNT_MAX}"
        )
    if budget.scope is BudgetScope.TURN and (budget.ref or budget.period is not Period.TOTAL):
        raise InvalidInput(
            "a budget of turns applies to each turn; leave the agent out and use the period total. To limit the "
            "turns of one agent, set `limits` in its config"
        )
    if budget.scope is BudgetScope.CONSTELLATION and budget.ref:
        raise InvalidInput("a constellation's budget applies to all its agents; leave the agent and the group out")
    if budget.scope is BudgetScope.GROUP and not budget.ref:
        raise InvalidInput("a budget with the scope group needs a group; name it")


def name_of(budget: Budget) -> str:
    """Return the budget's name for lists and commands: `constellation.day.tokens` or `agent.day.tokens.agt_1`."""
    parts = (budget.scope.value, budget.period.value, budget.unit.value, budget.ref)
    return ".".join(part for part in parts if part)


def of_name(name: str) -> Budget | None:
    """Return the budget of a name, its amount 0; None if no budget can have that name."""
    try:
        scope, period, unit, *ref = name.split(".", 3)
        return Budget(BudgetScope(scope), "".join(ref), Period(period), Unit(unit), 0)
    except ValueError:
        return None


def dollars(microdollars: int) -> str:
    """Return money as an exact text: `$1.50`, `$0.000042`; with at least two decimals."""
    whole, rest = divmod(abs(microdollars), MICRO)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if microdollars < 0 else ''}${whole:,}.{decimals}"


def microdollars(text: str) -> int:
    """Return the micro-dollars of a sum in dollars, such as `5`, `$0.25` or `1,000.5`.

    Raises:
        InvalidInput: it is not an amount of money, is negative or too large, or has parts smaller than a micro-dollar.
    """
    if found := _SUM.fullmatch(text.strip()):
        value = Decimal("".join(found.groups("")).replace(",", "")) * MICRO
        if value <= AMOUNT_MAX and value == value.to_integral_value():
            return int(value)
    raise InvalidInput(f"invalid amount {text!r}; write dollars with at most six decimals, such as 5 or 0.25")


def shown_amount(unit: Unit, amount: int) -> str:
    """Return an amount as text: `100,000 tokens`, `$2.50`."""
    return dollars(amount) if unit is Unit.MICRODOLLARS else f"{amount:,} token{'' if amount == 1 else 's'}"


def words(budget: Budget, whose: str | None = None) -> str:
    """Return `the budget of each agent, 100,000 tokens a day`; `whose` replaces the scope."""
    named = f"{budget.scope.value} {budget.ref}" if budget.ref else _WHOSE[budget.scope]
    return f"the budget of {whose or named}, {shown_amount(budget.unit, budget.amount)}{_PER[budget.period]}"


def period_of(period: Period, now: str) -> tuple[str, str | None]:
    """Return the start of the period of `now` (a time as stored, UTC) and of the next one, as stored; empty and None
    for a period without end.
    """
    if period is Period.TOTAL:
        return "", None
    first = date.fromisoformat(now[:DAY_CHARS])
    following = first + timedelta(days=1)
    if period is Period.MONTH:
        first = first.replace(day=1)
        following = (first + timedelta(days=31)).replace(day=1)
    return f"{first}{MIDNIGHT}", f"{following}{MIDNIGHT}"


def kept_by(
    stored: Iterable[Budget], configured: Iterable[Budget], agent_id: str, group_id: str | None
) -> list[Budget]:
    """Return the budgets that apply to a call of an agent, possibly for a group, each with its reference.

    Of an agent's budgets of one period and unit the nearest applies: its own, else the stored one of each agent, else
    the configured one of each agent. The configured ones of the constellation are the operator's: they always apply,
    and stored ones in addition. Those of turns are fixed when a turn starts.
    """
    agents: dict[tuple[Period, Unit], Budget] = {}
    others: list[Budget] = []
    near = sorted(stored, key=lambda budget: budget.ref, reverse=True)  # with a reference first
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
    """Return what a turn may spend of a unit without a value in its agent's config: as stored, else as configured."""
    turns = (budget for budget in (*stored, *configured) if budget.scope is BudgetScope.TURN and budget.unit is unit)
    return next((budget.amount for budget in turns), None)


Amount: TypeAlias = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBudget:
    """Limits of a turn; None: no limit (in an agent's own: the server's).

    `tokens` (in and out) and `microdollars` include the turns that it starts; `reservations` checks them.
    """

    steps: Annotated[int, Field(ge=1, le=10_000)] | None = None  # model calls; default: `limits.turn.steps_max`
    # tool calls; default: `limits.turn.tool_calls_max`
    tool_calls: Annotated[int, Field(ge=0, le=100_000)] | None = None
    # seconds, without waiting for people; default: `limits.turn.turn_timeout_s`
    wall_s: Annotated[float, Field(ge=1, le=7 * 24 * 3600)] | None = None
    tokens: Amount | None = None  # tokens of the turn and of all turns that it causes
    microdollars: Amount | None = None  # cost of the turn and of all turns that it causes
    children: Annotated[int, Field(ge=0, le=10_000)] | None = None  # turns that it may cause
    output_chars: Annotated[int, Field(ge=1, le=100_000_000)] | None = None  # characters that the models may write

    def over(self, limits: TurnLimits) -> TurnBudget:
        """Return these limits, with the server's `limits` for missing ones."""
        return replace(
            self,
            steps=limits.steps_max if self.steps is None else self.steps,
            tool_calls=limits.tool_calls_max if self.tool_calls is None else self.tool_calls,
            wall_s=limits.turn_timeout_s if self.wall_s is None else self.wall_s,
        )

    def check(self, *, steps: int = 0, tool_calls: int = 0, children: int = 0, output_chars: int = 0) -> None:
        """Check the limits of a turn with this usage; tokens and money are checked when a call is reserved.

        `steps` and `tool_calls` include the next ones, `children` are the turns that it started, `output_chars` the
        characters that its model wrote.

        Raises:
            LimitReached: a limit is exceeded; the message and `details["limit"]` name it.
        """
        used_of = {"steps": steps, "tool_calls": tool_calls, "children": children, "output_chars": output_chars}
        for name, used in used_of.items():
            bound = getattr(self, name)
            if bound is not None and used > bound:
                raise LimitReached(_PASSED[name].format(bound=f"{bound:,g}"), limit=name, amount=bound)


_PASSED: Mapping[str, str] = {
    "steps": "the turn reached its limit of {bound} steps; send a message to continue it, or raise limits.steps",
    "tool_calls": (
        "the turn reached its limit of {bound} tool calls; send a message to continue it, or raise limits.tool_calls"
    ),
    "children": "the turn reached its limit of {bound} messages to other agents; ask for less per message, or raise "
    "limits.children",
    "output_chars": "the turn reached its limit of {bound} characters of output; ask for less per message, or raise "
    "limits.output_chars",
}
