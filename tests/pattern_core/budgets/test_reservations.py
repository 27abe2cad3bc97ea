from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pattern_core.budgets import reservations
from pattern_core.budgets.budget import Budget, TurnBudget
from pattern_core.budgets.reservations import ModelCall
from pattern_core.errors import LimitReached
from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import RowConflict, translated
from pattern_db.journal import budgets, usage
from pattern_db.journal.budgets import BudgetScope, Period, ReservationRow, Spent, Unit
from pattern_db.journal.usage import UsageFilter
from tests.pattern_core.budgets.rig import AGENTS, NOW, call, new_turn, opened, took, worst

TOMORROW = "2026-11-22T00:00:00.000Z"
DAILY = Budget(BudgetScope.AGENT, "agt_ada", Period.DAY, Unit.TOKENS, 100)
OVERALL = Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.MICRODOLLARS, 400)


@pytest.fixture
def db() -> Iterator[Connection]:
    with opened() as connection:
        yield connection


def reserve(
    db: Connection, one: ModelCall, tokens: int, *configured: Budget, now: str = NOW, price: int | None = 2
) -> ReservationRow | None:
    return reservations.reserve(db, one, lambda: worst(tokens, price=price), now=now, configured=configured)


def held(db: Connection) -> Spent:
    return budgets.held(db, BudgetScope.CONSTELLATION, "")


def test_without_a_budget_nothing_is_held(db: Connection) -> None:
    key = new_turn(db)
    one = call(key)
    assert reserve(db, one, 10**9) is None
    assert held(db) == Spent(0, 0)
    reservations.settle(db, took(one, 10**9))
    assert usage.of_turn(db, key).input_tokens == 10**9


def test_a_call_is_reserved_and_settled(db: Connection) -> None:
    budgets.put(db, DAILY, now=NOW)
    one = call(new_turn(db))
    assert reserve(db, one, 60) is not None
    assert held(db) == Spent(60, 120)
    other = call(new_turn(db))
    held_too = "0 tokens are spent, 60 tokens are reserved for running calls, and this call could cost up to 41 tokens"
    with pytest.raises(LimitReached, match=held_too) as refused:
        reserve(db, other, 41)
    assert refused.value.details == {
        "budget": "agent.day.tokens.agt_ada",
        "amount": 100,
        "resets_at": TOMORROW,
        "spent": 0,
        "held": 60,
        "wanted": 41,
    }
    reservations.settle(db, took(one, 50))
    assert held(db) == Spent(0, 0)
    assert reserve(db, other, 50) is not None
    with pytest.raises(RowConflict), translated():
        reservations.settle(db, took(one, 50))


def test_a_summary_leaves_alone_what_is_held_for_its_step(db: Connection) -> None:
    budgets.put(db, DAILY, now=NOW)
    key = new_turn(db)
    step, summary = call(key), call(key, purpose="summary")
    assert reserve(db, step, 60) is not None
    row = reserve(db, summary, 30)
    reservations.settle(db, took(summary, 20), row)
    assert held(db).tokens == 60
    reservations.settle(db, took(summary, 5))  # nothing was held for this one
    assert held(db).tokens == 60
    reservations.settle(db, took(step, 50))
    assert held(db).tokens == 0


def test_another_day_and_another_agent_have_room(db: Connection) -> None:
    budgets.put(db, DAILY, now=NOW)
    one = call(new_turn(db))
    reserve(db, one, 100)
    reservations.settle(db, took(one, 100))
    later = call(new_turn(db))
    with pytest.raises(LimitReached):
        reserve(db, later, 1)
    assert reserve(db, call(new_turn(db), "agt_bob"), 1) is None
    assert reserve(db, later, 100, now=TOMORROW) is not None


def test_a_call_over_midnight_counts_for_both_days(db: Connection) -> None:
    budgets.put(db, DAILY, now=NOW)
    one, other = call(new_turn(db)), call(new_turn(db))
    reserve(db, one, 100)
    with pytest.raises(LimitReached):
        reserve(db, other, 1, now=TOMORROW)
    reservations.settle(db, took(one, 100, at=TOMORROW))
    with pytest.raises(LimitReached):
        reserve(db, other, 1, now=TOMORROW)


def test_money_is_counted_where_the_price_is_known(db: Connection) -> None:
    budgets.put(db, OVERALL, now=NOW)
    one = call(new_turn(db))
    with pytest.raises(LimitReached, match=r"price of m \(p\) is unknown.*\$0.0004"):
        reserve(db, one, 1, price=None)
    with pytest.raises(LimitReached, match=r"\$0.0004, is too low.*it does not reset"):
        reserve(db, one, 201)
    assert reserve(db, one, 200) is not None


def test_children_spend_from_their_parents(db: Connection) -> None:
    parent = new_turn(db)
    reservations.open_turn(db, parent, TurnBudget(tokens=100))
    child = new_turn(db, "agt_bob", parent=parent)
    reservations.open_turn(db, child, TurnBudget(tokens=1_000))
    reserve(db, call(parent), 40)
    with pytest.raises(LimitReached, match=r"budget of the turn that started this one, 100 tokens.*`limits`"):
        reserve(db, call(child, "agt_bob"), 61)
    assert reserve(db, call(child, "agt_bob"), 60) is not None
    with pytest.raises(LimitReached, match="budget of this turn, 100 tokens"):
        reserve(db, call(parent, step=2), 1)
    reservations.settle(db, took(call(child, "agt_bob"), 20))
    assert reserve(db, call(parent, step=2), 40) is not None


def test_a_turn_keeps_what_was_fixed_when_it_started(db: Connection) -> None:
    each = Budget(BudgetScope.TURN, "", Period.TOTAL, Unit.TOKENS, 10)
    money = replace(each, unit=Unit.MICRODOLLARS, amount=7)
    first, second, third = new_turn(db), new_turn(db), new_turn(db)
    reservations.open_turn(db, first, TurnBudget(), [each, money])
    budgets.put(db, replace(each, amount=20), now=NOW)
    reservations.open_turn(db, first, TurnBudget(), [each])
    reservations.open_turn(db, second, TurnBudget(), [each])
    reservations.open_turn(db, third, TurnBudget(tokens=30))
    rows = fetch_all(db, "SELECT turn, tokens, microdollars FROM turn_budget")
    assert rows == [(first, 10, 7), (second, 20, None), (third, 30, None)]


def test_what_dead_calls_held_is_charged_at_an_estimate(db: Connection) -> None:
    budgets.put(db, DAILY, now=NOW)
    turn = new_turn(db)
    step, summary = call(turn), call(turn, purpose="summary")
    reserve(db, step, 20)
    first, second = reserve(db, summary, 20), reserve(db, summary, 30)
    assert first is not None
    assert second is not None
    reservations.settle(db, took(summary, 15), first)
    assert reservations.recover(db, turn, at=NOW) == 1
    assert held(db) == Spent(20, 40)  # the step's own, for the attempt that supersedes it
    reservations.settle(db, took(step, 4, is_estimate=True))
    assert reservations.recover(db, turn, at=NOW) == 0
    rows = fetch_all(db, "SELECT purpose, no, input_tokens, cost_microdollars, is_estimate FROM usage ORDER BY key")
    assert rows == [("summary", 0, 15, 30, 0), ("summary", 1, 6, 12, 1), ("step", 0, 4, 8, 1)]
    total = usage.total(db, UsageFilter())
    assert total.cached_tokens + total.cache_write_tokens + total.reasoning_tokens == 0


LIMITS = (
    replace(DAILY, amount=300),
    Budget(BudgetScope.AGENT, "", Period.MONTH, Unit.MICRODOLLARS, 900),
    Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 500),
)
TURN_TOKENS = 150


class ParallelAgents(RuleBasedStateMachine):
    """Turns of two agents, some led to by others, whose calls begin, end and die in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = opened()
        self.db = self._opened.__enter__()
        self.turns: list[tuple[int, str]] = []
        self.roots: dict[int, int] = {}
        self.open: list[tuple[ModelCall, ReservationRow, int]] = []
        self.steps: dict[int, int] = {}

    def teardown(self) -> None:
        for one, row, tokens in self.open:
            reservations.settle(self.db, took(one, tokens), row)
        for turn, _agent in self.turns:
            budgets.let_go_of_turn(self.db, turn)
        assert held(self.db) == Spent(0, 0)
        self.within()
        self._opened.__exit__(None, None, None)

    @initialize()
    def limits(self) -> None:
        for budget in LIMITS[:2]:
            budgets.put(self.db, budget, now=NOW)
        self.start(0, None)

    @rule(agent=st.integers(0, 1), parent=st.none() | st.integers(0, 5))
    def start(self, agent: int, parent: int | None) -> None:
        above = None if parent is None or not self.turns else self.turns[parent % len(self.turns)][0]
        turn = new_turn(self.db, AGENTS[agent], parent=above)
        reservations.open_turn(self.db, turn, TurnBudget(tokens=TURN_TOKENS))
        self.turns.append((turn, AGENTS[agent]))

    @rule(which=st.integers(0, 20), tokens=st.integers(0, 120), share=st.floats(0, 1), other=st.booleans())
    def ask(self, which: int, tokens: int, share: float, other: bool) -> None:
        turn, agent = self.turns[which % len(self.turns)]
        self.steps[turn] = self.steps.get(turn, 0) + 1
        one = call(turn, agent, step=self.steps[turn], purpose="summary" if other else "step")
        try:
            row = reserve(self.db, one, tokens, LIMITS[2])
        except LimitReached:
            return
        assert row is not None
        self.open.append((one, row, int(tokens * share)))

    @precondition(lambda self: bool(self.open))
    @rule(which=st.integers(0, 20))
    def answer(self, which: int) -> None:
        one, row, tokens = self.open.pop(which % len(self.open))
        reservations.settle(self.db, took(one, tokens), row)

    @rule()
    def crash(self) -> None:
        """The process dies and another takes every turn up."""
        for turn, _agent in self.turns:
            reservations.recover(self.db, turn, at=NOW)
        for one, row, _tokens in self.open:
            if one.purpose == "step":
                reservations.settle(self.db, took(one, row.prompt_tokens, is_estimate=True))
        self.open = []
        assert held(self.db) == Spent(0, 0)

    @invariant()
    def within(self) -> None:
        """Nothing is passed, counting what is spent alone and what is held too."""
        for agent_id in AGENTS:
            for budget, ref in ((LIMITS[0], "agt_ada"), (LIMITS[1], agent_id)):
                assert self.taken(budget, ref) <= budget.amount
        assert self.taken(LIMITS[2], "") <= LIMITS[2].amount
        for turn, _agent in self.turns:
            spent, under_way = budgets.spent_by_tree(self.db, turn), budgets.held_by_tree(self.db, turn)
            assert spent.tokens + under_way.tokens <= TURN_TOKENS

    def taken(self, budget: Budget, ref: str) -> int:
        spent = budgets.spent(self.db, budget.scope, ref, since="")
        under_way = budgets.held(self.db, budget.scope, ref)
        return int(getattr(spent, budget.unit.value) + getattr(under_way, budget.unit.value))


ParallelAgents.TestCase.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_no_budget_is_passed_whatever_happens = ParallelAgents.TestCase
