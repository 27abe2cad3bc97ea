from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import RowConflict, translated
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
from pattern_db.journal.usage import Grouping, UsageFilter, UsageLine, UsageRow, UsageSum
from pattern_db.tables import agents, imports
from pattern_db.tables.imports import ArchiveImport
from tests.pattern_db.conftest import LATER, NOW, MakeTurn, PlanOf

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


def test_which_budgets_a_call_has_to_keep(db: Connection) -> None:
    each = replace(DAILY, ref="", amount=7)
    budgets.put(db, replace(DAILY, amount=1), now=LATER)
    for row in (DAILY, each, OVERALL, OF_TURNS, OF_GROUP):
        budgets.put(db, row, now=NOW)
    assert set(budgets.about_call(db, "agt_ada", None)) == {DAILY, each, OVERALL}
    assert set(budgets.about_call(db, "agt_bob", "grp_1")) == {each, OVERALL, OF_GROUP}
    assert budgets.about_turns(db) == [OF_TURNS]
    assert budgets.every(db) == [each, DAILY, OVERALL, OF_GROUP, OF_TURNS]
    assert [budgets.remove(db, DAILY) for _time in range(2)] == [True, False]


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
    usage.add(db, row(root))
    assert usage.of_model_calls(db, root) == [row(root)]
    of_group = row(child, agent="bob")._replace(cost_microdollars=None, group_id="grp_1", at="2026-11-22T00:00:00.000Z")
    usage.add(db, of_group)
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
    assert [budgets.next_no(db, root, step, 1, "step") for step in (2, 3)] == [1, 0]
    with pytest.raises(RowConflict), translated():
        budgets.hold(db, mine)
    assert budgets.held(db, BudgetScope.CONSTELLATION, "") == Spent(600, 60)
    assert budgets.held(db, BudgetScope.AGENT, "agt_bob") == Spent(200, 0)
    assert budgets.held(db, BudgetScope.GROUP, "grp_1") == Spent(200, 0)
    assert (budgets.held_by_tree(db, root), budgets.held_by_tree(db, child)) == (Spent(600, 60), Spent(200, 0))
    assert budgets.reservations(db, root) == [mine, holding(root, step=2)]
    budgets.let_go(db, mine.key)
    assert budgets.reservations(db, root) == [holding(root, step=2)]
    budgets.let_go_of_turn(db, root)
    assert budgets.reservations(db, root) == []
    assert budgets.held(db, BudgetScope.CONSTELLATION, "") == Spent(200, 0)


def test_nothing_is_scanned_for_a_call(db: Connection, plan_of: PlanOf) -> None:
    for question in (
        lambda: budgets.spent(db, BudgetScope.CONSTELLATION, "", since=NOW),
        lambda: budgets.spent(db, BudgetScope.AGENT, "agt_ada", since=NOW),
        lambda: budgets.held(db, BudgetScope.AGENT, "agt_ada"),
        lambda: budgets.children(db, 1),
    ):
        assert not any("SCAN" in line for line in plan_of(question))


NEXT = "2026-11-22T08:00:00.000Z"
ALL = UsageFilter()


def row(turn: int, step: int = 1, attempt: int = 1, *, agent: str = "ada") -> UsageRow:
    return UsageRow(
        turn=turn,
        step=step,
        attempt=attempt,
        agent_id=f"agt_{agent}",
        provider="scripted",
        model="script-1",
        input_tokens=100,
        output_tokens=10,
        cached_tokens=40,
        cost_microdollars=7,
        cache_write_tokens=5,
        reasoning_tokens=3,
        at=LATER,
    )


def keys(lines: list[UsageLine]) -> list[tuple[str, int, int]]:
    """Each line's key, number of calls and cost."""
    return [(line.key, line.calls, line.cost_microdollars) for line in lines]


def test_one_unknown_price_or_estimate_makes_the_sum_one(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    usage.add(db, row(turn))
    usage.add(db, row(turn, 2)._replace(cost_microdollars=None, is_estimate=True))
    for _time in range(2):
        usage.add(db, row(turn, 3)._replace(purpose="summary"))
    assert [usage.tokens_for(db, *one) for one in (("summary", NOW), ("summary", "9"), ("x", NOW))] == [220, 0, 0]
    found = usage.of_turn(db, turn)
    assert (found.input_tokens, found.cost_microdollars, found.is_estimate) == (400, None, True)
    assert fetch_all(db, "SELECT step, no, is_estimate FROM usage") == [(1, 0, 0), (2, 0, 1), (3, 0, 0), (3, 1, 0)]
    assert usage.of_turn(db, make_turn("turn_2")) == UsageSum(0, 0, 0, None, False)


def test_what_is_refused(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    usage.add(db, row(turn))
    for other in (turn, turn + 1):
        with pytest.raises(RowConflict), translated():
            usage.add(db, row(other))
    with pytest.raises(apsw.ConstraintError):
        usage.add(db, row(turn, 2)._replace(output_tokens=-1))


def test_the_turns_that_a_turn_led_to_count_with_it(db: Connection, make_turn: MakeTurn) -> None:
    root = make_turn("turn_1")
    child = make_turn("turn_2", agent="bob", parent_turn=root)
    grandchild = make_turn("turn_3", parent_turn=child)
    other = make_turn("turn_4")
    for turn in (root, child, grandchild, other):
        usage.add(db, row(turn, agent="bob" if turn == child else "ada"))
    trees = (root, child, grandchild, other)
    assert [usage.total(db, UsageFilter(turn=turn)).calls for turn in trees] == [3, 2, 1, 1]
    assert usage.of_turn(db, root).input_tokens == 100
    found = usage.lines(db, UsageFilter(turn=root), Grouping.AGENT, limit=10)
    assert keys(found) == [("agt_ada", 2, 14), ("agt_bob", 1, 7)]
    assert usage.total(db, UsageFilter(turn=root, agent_id="agt_ada")).input_tokens == 200


def test_sums_by_day_are_those_of_the_calls(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    for step in range(1, 5):
        known = 7 if step % 2 else None
        usage.add(db, row(turn, step)._replace(cost_microdollars=known, is_estimate=step == 3, group_id="grp_1"))
    by_call = UsageFilter(since="2000-01-01T00:00:00.001Z")  # no whole day, so that the calls are summed
    assert usage.total(db, ALL) == usage.total(db, by_call) == UsageLine("", None, 4, 2, 1, 400, 40, 160, 20, 12, 14)
    for by in (Grouping.DAY, Grouping.AGENT, Grouping.MODEL):
        assert usage.lines(db, ALL, by, limit=9) == usage.lines(db, by_call, by, limit=9)


@pytest.mark.parametrize("by", Grouping)
def test_pages_go_on_after_the_last_key(db: Connection, make_turn: MakeTurn, by: Grouping) -> None:
    for number, agent in enumerate(("ada", "bob", "ada"), 1):
        turn = make_turn(f"turn_{number}", agent=agent)
        usage.add(db, row(turn, agent=agent)._replace(at=f"2026-11-2{number}T01:00:00.000Z", model=f"script-{number}"))
    whole = usage.lines(db, ALL, by, limit=9)
    found = usage.lines(db, ALL, by, limit=1)
    while page := usage.lines(db, ALL, by, limit=1, after=found[-1].key):
        found += page
    assert found == whole
    assert len(whole) == {Grouping.AGENT: 2, Grouping.CAUSE: 1}.get(by, 3)


@pytest.mark.parametrize(
    ("since", "until", "calls"),
    [
        (None, None, 2),
        ("2026-11-22T00:00:00.000Z", None, 1),
        (None, "2026-11-22T00:00:00.000Z", 1),
        (NEXT, None, 1),
        ("2026-11-22T08:00:00.001Z", None, 0),
        (LATER, NEXT, 1),
        ("2026-11-21T00:00:00.000Z", "2026-11-23T00:00:00.000Z", 2),
    ],
)
def test_between_two_times(
    db: Connection, make_turn: MakeTurn, since: str | None, until: str | None, calls: int
) -> None:
    turn = make_turn()
    usage.add(db, row(turn))
    usage.add(db, row(turn, 2)._replace(at=NEXT))
    which = UsageFilter(since=since, until=until)
    assert usage.total(db, which).calls == calls
    for by in Grouping:
        assert sum(line.calls for line in usage.lines(db, which, by, limit=9)) == calls


def test_sums_read_what_they_need(db: Connection, make_turn: MakeTurn, plan_of: PlanOf) -> None:
    usage.add(db, row(make_turn()))
    day = UsageFilter(since="2026-11-21T00:00:00.000Z")
    hours = UsageFilter(since=LATER)
    assert plan_of(lambda: usage.total(db, day)) == ["SEARCH usage_day USING PRIMARY KEY (day>?)"]
    assert plan_of(lambda: usage.total(db, hours))[0] == "SEARCH usage USING INTEGER PRIMARY KEY (rowid>?)"
    assert "SCAN usage" not in plan_of(lambda: usage.of_turn(db, 1))
    assert not {"SCAN usage", "SCAN t"} & set(plan_of(lambda: usage.total(db, UsageFilter(turn=1))))
    newest = plan_of(lambda: usage.lines(db, ALL, Grouping.TURN, limit=1))
    assert not any("TEMP B-TREE" in line for line in newest)


def test_what_a_deleted_agent_spent_is_spent(db: Connection, make_turn: MakeTurn) -> None:
    usage.add(db, row(make_turn()))
    usage.add(db, row(make_turn("turn_2", agent="bob"), agent="bob"))
    agents.delete(db, "agt_ada")
    assert usage.total(db, ALL).calls == 2
    by_agent = usage.lines(db, ALL, Grouping.AGENT, limit=9)
    assert [(line.key, line.name) for line in by_agent] == [("agt_ada", None), ("agt_bob", "bob")]
    assert keys(usage.lines(db, ALL, Grouping.TURN, limit=9)) == [("turn_2", 1, 7)]


def test_sums_that_came_with_an_archive_without_their_calls_are_kept(db: Connection) -> None:
    def used(day: str) -> None:
        at = f"{day}T10:00:00.000Z"
        usage.add(db, UsageRow(None, 0, 0, "agt_ada", "p", "m", at, 9, 1, cost_microdollars=7, purpose="summary"))

    days = "SELECT day, calls, input_tokens, cost_microdollars FROM usage_day ORDER BY 1"
    used("2026-01-02")
    db.execute("UPDATE usage_day SET calls = 7")
    columns = "agent_id, group_id, provider, model, 3, 0, 0, input_tokens, 0, 0, 0, 0, 0"
    db.execute(f"INSERT INTO usage_day SELECT '2025-12-01', {columns} FROM usage_day")
    imports.add(db, ArchiveImport("imp_1", "2026-01-02T11:00:00.000Z", "a.car", 4, 0, 0, {"root": ""}))
    used("2026-01-03")
    before = fetch_all(db, days)
    assert before == [("2025-12-01", 3, 9, 0), ("2026-01-02", 7, 9, 7), ("2026-01-03", 1, 9, 7)]
    assert usage.wrong_days(db) == 0
    db.execute("UPDATE usage_day SET input_tokens = 2 WHERE day > '2026-01-01'")
    assert usage.wrong_days(db) == 2
    usage.rebuild_days(db)
    assert (usage.wrong_days(db), fetch_all(db, days)) == (0, before)
