from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import Conflict, translated
from pattern_db.journal import budgets, usage
from pattern_db.journal.budgets import (
    BudgetRow,
    BudgetScope,
    Period,
    ReservationRow,
    Spent,
    TurnBudgetRow,
    Unit,
)
from pattern_db.journal.usage import UsageRow
from tests.pattern_db.journal.conftest import LATER, NOW, MakeTurn, PlanOf

DAILY = BudgetRow(BudgetScope.AGENT, "agt_ada", Period.DAY, Unit.TOKENS, 1000)
OVERALL = BudgetRow(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.MICRODOLLARS, 5)
OF_TURNS = BudgetRow(BudgetScope.TURN, "", Period.TOTAL, Unit.TOKENS, 10)
OF_GROUP = BudgetRow(BudgetScope.GROUP, "grp_1", Period.MONTH, Unit.TOKENS, 10)


def holding(turn: int, *, step: int = 1, agent: str = "ada", money: int | None = 30) -> ReservationRow:
    return ReservationRow(
        turn=turn,
        step=step,
        attempt=1,
        purpose="step",
        no=0,
        agent_id=f"agt_{agent}",
        group_id=None,
        provider="p",
        model="m",
        tokens=200,
        microdollars=money,
        prompt_tokens=100,
        prompt_microdollars=None,
    )


def used(turn: int, **columns: object) -> UsageRow:
    values: dict[str, object] = {"input_tokens": 100, "output_tokens": 10, "cost_microdollars": 7, "at": LATER}
    return UsageRow(turn=turn, step=1, attempt=1, provider="p", model="m", **{**values, **columns})  # type: ignore[arg-type]  # columns as the test names them


def test_budgets_are_stored_replaced_and_removed(db: Connection) -> None:
    assert not budgets.has_any(db)
    for row in (DAILY, OVERALL, OF_TURNS, OF_GROUP):
        budgets.put(db, row, now=NOW)
    budgets.put(db, replace(DAILY, amount=2000), now=LATER)
    assert budgets.has_any(db)
    assert budgets.every(db) == [replace(DAILY, amount=2000), OVERALL, OF_GROUP, OF_TURNS]
    assert budgets.about_turns(db) == [OF_TURNS]
    assert budgets.remove(db, BudgetScope.AGENT, "agt_ada", Period.DAY, Unit.TOKENS)
    assert not budgets.remove(db, BudgetScope.AGENT, "agt_ada", Period.DAY, Unit.TOKENS)


def test_which_budgets_a_call_has_to_keep(db: Connection) -> None:
    each = replace(DAILY, ref="", amount=7)
    for row in (DAILY, each, OVERALL, OF_TURNS, OF_GROUP):
        budgets.put(db, row, now=NOW)
    assert set(budgets.about_call(db, "agt_ada", None)) == {DAILY, each, OVERALL}
    assert set(budgets.about_call(db, "agt_bob", "grp_1")) == {each, OVERALL, OF_GROUP}


@pytest.mark.parametrize(
    "row",
    [
        replace(OF_TURNS, ref="turn_1"),
        replace(OF_TURNS, period=Period.DAY),
        replace(OVERALL, ref="agt_ada"),
        replace(OF_GROUP, ref=""),
        replace(DAILY, amount=-1),
    ],
)
def test_what_makes_no_sense_is_refused(db: Connection, row: BudgetRow) -> None:
    with pytest.raises(apsw.ConstraintError):
        budgets.put(db, row, now=NOW)


def test_a_turn_has_the_budgets_of_those_that_led_to_it(db: Connection, make_turn: MakeTurn) -> None:
    root = make_turn("turn_1")
    child = make_turn("turn_2", parent_turn=root)
    leaf = make_turn("turn_3", parent_turn=child)
    budgets.open_turn(db, root, tokens=10, microdollars=None)
    budgets.open_turn(db, root, tokens=99, microdollars=99)
    budgets.open_turn(db, leaf, tokens=None, microdollars=5)
    assert budgets.has_any(db)
    assert budgets.of_ancestors(db, leaf) == [
        TurnBudgetRow(leaf, "turn_3", None, 5),
        TurnBudgetRow(root, "turn_1", 10, None),
    ]
    assert budgets.of_ancestors(db, child) == [TurnBudgetRow(root, "turn_1", 10, None)]
    assert [budgets.children(db, turn) for turn in (root, child, leaf)] == [1, 1, 0]


def test_what_is_spent(db: Connection, make_turn: MakeTurn) -> None:
    root = make_turn("turn_1")
    child = make_turn("turn_2", agent="bob", parent_turn=root)
    usage.add(db, used(root))
    usage.add(db, used(child, cost_microdollars=None, group_id="grp_1", at="2026-11-22T00:00:00.000Z"))
    assert budgets.spent(db, BudgetScope.CONSTELLATION, "", since="") == Spent(220, 7, 1)
    assert budgets.spent(db, BudgetScope.CONSTELLATION, "", since="2026-11-22T00:00:00.000Z") == Spent(110, 0, 1)
    assert budgets.spent(db, BudgetScope.AGENT, "agt_ada", since="") == Spent(110, 7)
    assert budgets.spent(db, BudgetScope.GROUP, "grp_1", since="") == Spent(110, 0, 1)
    assert budgets.spent_by_tree(db, root) == Spent(220, 7, 1)
    assert budgets.spent_by_tree(db, child) == Spent(110, 0, 1)


def test_what_is_held(db: Connection, make_turn: MakeTurn) -> None:
    root = make_turn("turn_1")
    child = make_turn("turn_2", agent="bob", parent_turn=root)
    mine, other = holding(root), replace(holding(child, agent="bob", money=None), group_id="grp_1")
    for row in (mine, other, holding(root, step=2)):
        budgets.hold(db, row)
    with pytest.raises(Conflict), translated():
        budgets.hold(db, mine)
    assert budgets.held(db, BudgetScope.CONSTELLATION, "") == Spent(600, 60)
    assert budgets.held(db, BudgetScope.AGENT, "agt_bob") == Spent(200, 0)
    assert budgets.held(db, BudgetScope.GROUP, "grp_1") == Spent(200, 0)
    assert (budgets.held_by_tree(db, root), budgets.held_by_tree(db, child)) == (Spent(600, 60), Spent(200, 0))
    assert budgets.reservations(db, root) == [mine, holding(root, step=2)]
    assert budgets.let_go(db, mine.key)
    assert not budgets.let_go(db, mine.key)
    assert (budgets.let_go_of_turn(db, root), budgets.let_go_of_turn(db, root)) == (1, 0)


def test_calls_of_one_purpose_are_numbered(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    for number in range(2):
        assert budgets.next_no(db, turn, 1, 1, "summary") == number
        budgets.hold(db, replace(holding(turn), purpose="summary", no=number))
    assert budgets.next_no(db, turn, 1, 2, "summary") == 0


def test_nothing_is_scanned_for_a_call(db: Connection, plan_of: PlanOf) -> None:
    questions = (
        lambda: budgets.spent(db, BudgetScope.CONSTELLATION, "", since=NOW),
        lambda: budgets.spent(db, BudgetScope.AGENT, "agt_ada", since=NOW),
        lambda: budgets.held(db, BudgetScope.AGENT, "agt_ada"),
        lambda: budgets.children(db, 1),
    )
    for question in questions:
        assert not any("SCAN" in line for line in plan_of(question))
