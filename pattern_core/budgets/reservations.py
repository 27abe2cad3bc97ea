"""Reserving before a model call and settling after it: functions of a connection, for the transactions of a turn.

| moment | call |
|---|---|
| T1 the turn starts | `open_turn` stores its limits |
| T2 a model is about to be called | `reserve` reserves the worst case, or refuses |
| T3 it answered | `settle` stores its usage and releases the rest |
| an attempt died | `settle` with an estimate; `recover` for calls outside of steps |
| T8 the turn ended | `budgets.let_go_of_turn` releases what is left |

Every call is checked along the whole chain: its turn, the turns that started it, its agent, its group, the
constellation. Spent and reserved amounts are added up in one transaction, so no budget is exceeded, however many agents
work at once, unless a call uses more than its worst case. Without budgets (`KnownBudgets`) none of this is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, TypeAlias

from pattern_core.budgets.budget import (
    Budget,
    TurnBudget,
    kept_by,
    name_of,
    of_each_turn,
    period_of,
    shown_amount,
    words,
)
from pattern_core.errors import LimitReached
from pattern_core.models.model import Usage
from pattern_db.connection import Connection
from pattern_db.journal import budgets, usage
from pattern_db.journal.budgets import BudgetScope, Period, ReservationRow, Spent, Unit
from pattern_db.journal.usage import STEP, UsageRow

Cost: TypeAlias = Callable[[Usage], int | None]
"""The cost of tokens in micro-dollars, rounded up; None if the price is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The worst case of a call: the prompt and all allowed output; and the usage of its prompt alone.

    Money is in micro-dollars, None if the price is unknown.
    """

    tokens: int
    microdollars: int | None
    prompt_tokens: int
    prompt_microdollars: int | None


def worst_case(prompt_tokens: int, models: Sequence[tuple[Cost, int]]) -> WorstCase:
    """Return the worst case of a call with this prompt to any of several models, each with its cost function and its
    longest answer.

    The prompt counts as not cached, or as written to the vendor's cache if that costs more. A model without a known
    price is ignored for money.
    """
    costs: list[int | None] = []
    prompts: list[int | None] = []
    for cost, output_tokens in models:
        usage = Usage(input_tokens=prompt_tokens, output_tokens=output_tokens)
        costs += [cost(usage), cost(replace(usage, cache_write_tokens=prompt_tokens))]
        prompts.append(cost(Usage(input_tokens=prompt_tokens, output_tokens=0)))
    return WorstCase(
        tokens=prompt_tokens + max(output_tokens for _cost, output_tokens in models),
        microdollars=max((one for one in costs if one is not None), default=None),
        prompt_tokens=prompt_tokens,
        prompt_microdollars=max((one for one in prompts if one is not None), default=None),
    )


class ModelCall(NamedTuple):
    """A model call about to be made: its turn (key, or None) and step, agent, group, model and purpose."""

    turn: int | None
    step: int
    attempt: int
    agent_id: str
    provider: str
    model: str
    purpose: str = STEP
    group_id: str | None = None


def open_turn(connection: Connection, turn: int, own: TurnBudget, configured: Sequence[Budget] = ()) -> None:
    """Store what a turn and the turns that it starts may spend: its agent's own limits, else the budgets."""
    stored = budgets.about_turns(connection)
    tokens = of_each_turn(stored, configured, Unit.TOKENS) if own.tokens is None else own.tokens
    money = of_each_turn(stored, configured, Unit.MICRODOLLARS) if own.microdollars is None else own.microdollars
    if tokens is not None or money is not None:
        budgets.open_turn(connection, turn, tokens=tokens, microdollars=money)


def reserve(
    connection: Connection,
    call: ModelCall,
    worst: Callable[[], WorstCase],
    *,
    now: str,
    configured: Sequence[Budget] = (),
) -> ReservationRow | None:
    """Reserve the worst case of a call. Without an applicable budget return None: nothing is reserved, `worst` is not
    called.

    A call outside of turns, at a person's request, is only checked: reservations end with their turn, and such calls of
    an agent are made one after another.

    Raises:
        LimitReached: a budget might be exceeded; nothing is reserved. `details` names it, with its amounts.
    """
    stored = budgets.about_call(connection, call.agent_id, call.group_id)
    kept = kept_by(stored, configured, call.agent_id, call.group_id)
    chain = [] if call.turn is None else budgets.of_ancestors(connection, call.turn)
    if not kept and not chain:
        return None
    most = worst()
    for turn in chain:
        taken = budgets.spent_by_tree(connection, turn.turn), budgets.held_by_tree(connection, turn.turn)
        whose = "this turn" if turn.turn == call.turn else "the turn that started this one"
        for unit, amount in ((Unit.TOKENS, turn.tokens), (Unit.MICRODOLLARS, turn.microdollars)):
            if amount is not None:
                budget = Budget(BudgetScope.TURN, turn.id, Period.TOTAL, unit, amount)
                _check(budget, whose, None, taken, call, most)
    for budget in kept:
        since, ends = period_of(budget.period, now)
        spent = budgets.spent(connection, budget.scope, budget.ref, since=since)
        held = budgets.held(connection, budget.scope, budget.ref)
        _check(budget, _THIS.get(budget.scope), ends, (spent, held), call, most)
    if call.turn is None:
        return None
    is_step = call.purpose == STEP
    no = 0 if is_step else budgets.next_no(connection, call.turn, call.step, call.attempt, call.purpose)
    row = ReservationRow(no=no, **call._asdict(), **asdict(most))
    budgets.hold(connection, row)
    return row


def usage_row(call: ModelCall | ReservationRow, usage: Usage, cost: int | None, at: str) -> UsageRow:
    """Return the usage of a call; `cost` is in micro-dollars, None if the price is unknown."""
    return UsageRow(
        turn=call.turn,
        step=call.step,
        attempt=call.attempt,
        purpose=call.purpose,
        provider=call.provider,
        model=call.model,
        agent_id=call.agent_id,
        group_id=call.group_id,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        is_estimate=usage.is_estimate,
        cost_microdollars=cost,
        at=at,
    )


def settle(connection: Connection, row: UsageRow, held: ReservationRow | None = None) -> None:
    """Store the usage of a call, and release its reservation.

    A step's own call is found by its turn, step and attempt; for another one `held` is the result of `reserve`.

    Raises:
        pattern_db.errors.RowConflict: the usage of this attempt of the step is already stored.
    """
    if held is not None:
        budgets.let_go(connection, held.key)
    elif row.turn is not None and row.purpose == STEP:
        budgets.let_go(connection, (row.turn, row.step, row.attempt, STEP, 0))
    usage.add(connection, row)


def recover(connection: Connection, turn: int, *, at: str) -> int:
    """Charge what a dead process's calls for a turn may have used, except a step's own; return their number.

    Their cost is unknown, so their prompts are charged as an estimate. A step's own call is settled when the step is
    superseded or ended.
    """
    lost = [row for row in budgets.reservations(connection, turn) if row.purpose != STEP]
    for row in lost:
        spent = Usage(input_tokens=row.prompt_tokens, output_tokens=0, is_estimate=True)
        settle(connection, usage_row(row, spent, row.prompt_microdollars, at), row)
    return len(lost)


def _check(
    budget: Budget, whose: str | None, ends: str | None, taken: tuple[Spent, Spent], call: ModelCall, worst: WorstCase
) -> None:
    """Refuse a call that might exceed a budget with this much `taken`: spent, and reserved for running calls. `ends` is
    the end of its period.
    """
    unit = budget.unit
    details = {"budget": name_of(budget), "amount": budget.amount, "resets_at": ends}
    text = words(budget, whose)
    wanted, spent, held = (getattr(one, unit.value) for one in (worst, *taken))
    if wanted is None:
        raise LimitReached(
            f"the price of {call.model} ({call.provider}) is unknown, so {text} cannot be checked; set its price "
            f"in pattern.toml (0 for your own model), or use a budget in tokens",
            **details,
        )
    if spent + held + wanted <= budget.amount:
        return
    under_way = f", {shown_amount(unit, held)} are reserved for running calls" if held else ""
    again = f"it resets at {ends}" if ends else "it does not reset"
    raise LimitReached(
        f"{text}, is too low for this call: {shown_amount(unit, spent)} are spent{under_way}, and this call "
        f"could cost up to "
        f"{shown_amount(unit, wanted)}; {again}. {_ADVICE.get(budget.scope, 'To allow more: pattern budget set')}",
        **details,
        spent=spent,
        held=held,
        wanted=wanted,
    )


_THIS = {BudgetScope.AGENT: "this agent", BudgetScope.GROUP: "this group"}
_ADVICE = {BudgetScope.TURN: "To allow more: `limits` in the agent's config, or pattern budget set --turn"}
