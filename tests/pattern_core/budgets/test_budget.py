from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pattern_core.budgets.budget import (
    Budget,
    TurnBudget,
    check,
    dollars,
    kept_by,
    microdollars,
    name_of,
    of_each_turn,
    of_name,
    period_of,
    shown_amount,
    words,
)
from pattern_core.budgets.reservations import WorstCase, worst_case
from pattern_core.errors import InvalidInput, LimitReached
from pattern_core.models.model import Usage
from pattern_db.journal.budgets import BudgetScope, Period, Unit

DAILY = Budget(BudgetScope.AGENT, "agt_ada", Period.DAY, Unit.TOKENS, 100_000)
EACH = replace(DAILY, ref="", amount=7)
OVERALL = Budget(BudgetScope.CONSTELLATION, "", Period.MONTH, Unit.MICRODOLLARS, 2_500_000)
OF_TURNS = Budget(BudgetScope.TURN, "", Period.TOTAL, Unit.TOKENS, 10)
OF_GROUP = Budget(BudgetScope.GROUP, "grp_1", Period.TOTAL, Unit.TOKENS, 10)


@pytest.mark.parametrize("budget", [DAILY, EACH, OVERALL, OF_TURNS, OF_GROUP])
def test_a_budget_has_a_name(budget: Budget) -> None:
    check(budget)
    assert of_name(name_of(budget)) == replace(budget, amount=0)


def test_names_that_are_none() -> None:
    assert name_of(DAILY) == "agent.day.tokens.agt_ada"
    assert [of_name(name) for name in ("", "nowhere", "agent.week.tokens", "agent.day.euros")] == [None] * 4


@pytest.mark.parametrize(
    ("budget", "what"),
    [
        (replace(DAILY, amount=-1), "amount"),
        (replace(DAILY, amount=2**60), "amount"),
        (replace(OF_TURNS, ref="agt_ada"), "each turn"),
        (replace(OF_TURNS, period=Period.DAY), "each turn"),
        (replace(OVERALL, ref="agt_ada"), "all its agents"),
        (replace(OF_GROUP, ref=""), "needs a group"),
    ],
)
def test_what_makes_no_sense_is_refused(budget: Budget, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        check(budget)


def test_a_budget_in_words() -> None:
    assert words(DAILY, "this agent") == "the budget of this agent, 100,000 tokens a day"
    assert words(EACH) == "the budget of each agent, 7 tokens a day"
    assert words(OVERALL) == "the budget of the constellation, $2.50 a month"
    assert words(OF_GROUP) == "the budget of group grp_1, 10 tokens"


def test_an_amount_in_words() -> None:
    assert [shown_amount(Unit.TOKENS, amount) for amount in (0, 1, 1_234)] == ["0 tokens", "1 token", "1,234 tokens"]
    assert shown_amount(Unit.MICRODOLLARS, 2_500_000) == "$2.50"


@pytest.mark.parametrize(
    ("period", "now", "began", "ends"),
    [
        (Period.DAY, "2026-02-28T23:59:59.999Z", "2026-02-28T00:00:00.000Z", "2026-03-01T00:00:00.000Z"),
        (Period.DAY, "2026-12-31T00:00:00.000Z", "2026-12-31T00:00:00.000Z", "2027-01-01T00:00:00.000Z"),
        (Period.MONTH, "2026-11-21T22:24:40.123Z", "2026-11-01T00:00:00.000Z", "2026-12-01T00:00:00.000Z"),
        (Period.MONTH, "2027-01-31T22:24:40.123Z", "2027-01-01T00:00:00.000Z", "2027-02-01T00:00:00.000Z"),
        (Period.MONTH, "2026-12-01T00:00:00.000Z", "2026-12-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z"),
        (Period.TOTAL, "2026-12-01T00:00:00.000Z", "", None),
    ],
)
def test_periods_begin_and_end_in_utc(period: Period, now: str, began: str, ends: str | None) -> None:
    assert period_of(period, now) == (began, ends)


def test_the_nearest_budget_of_an_agent_holds() -> None:
    configured = replace(EACH, amount=3)
    assert kept_by([EACH, DAILY], [configured], "agt_ada", None) == [DAILY]
    assert kept_by([EACH, DAILY], [configured], "agt_bob", None) == [replace(EACH, ref="agt_bob")]
    assert kept_by([DAILY], [configured], "agt_bob", None) == [replace(configured, ref="agt_bob")]
    monthly = replace(configured, period=Period.MONTH)
    assert kept_by([DAILY], [monthly], "agt_ada", None) == [DAILY, replace(monthly, ref="agt_ada")]
    # The operator's budget of the constellation cannot be lifted.
    lower = replace(OVERALL, amount=1)
    assert kept_by([OVERALL], [lower], "agt_ada", None) == [OVERALL, lower]


def test_a_groups_budget_is_kept_on_its_behalf_alone() -> None:
    assert kept_by([OF_GROUP], [], "agt_ada", "grp_1") == [OF_GROUP]
    assert kept_by([OF_GROUP], [], "agt_ada", "grp_2") == []
    assert kept_by([OF_GROUP, OF_TURNS], [], "agt_ada", None) == []


def test_what_each_turn_may_spend() -> None:
    configured = replace(OF_TURNS, amount=3)
    assert of_each_turn([OF_TURNS, DAILY], [configured], Unit.TOKENS) == 10
    assert of_each_turn([DAILY], [configured], Unit.TOKENS) == 3
    assert of_each_turn([OF_TURNS], [configured], Unit.MICRODOLLARS) is None


@pytest.mark.parametrize(
    ("use", "named", "words"),
    [
        ({"steps": 4}, "steps", "limit of 3 steps"),
        ({"tool_calls": 3}, "tool_calls", "limit of 2 tool calls"),
        ({"children": 1}, "children", "limit of 0 messages to other agents"),
        ({"output_chars": 1_001}, "output_chars", "limit of 1,000 characters"),
    ],
)
def test_a_turn_that_passes_a_bound_is_refused_by_name(use: dict[str, Any], named: str, words: str) -> None:
    bounds = TurnBudget(steps=3, tool_calls=2, children=0, output_chars=1_000)
    bounds.check(steps=3, tool_calls=2, children=0, output_chars=1_000)
    TurnBudget().check(steps=10**6)
    with pytest.raises(LimitReached, match=words) as refused:
        bounds.check(**use)
    assert refused.value.details["limit"] == named


def cost(usage: Usage) -> int:
    """Ten micro-dollars a token in, thirteen if it is written to a cache, fifty out."""
    plain = usage.input_tokens - usage.cache_write_tokens
    return 10 * plain + 13 * usage.cache_write_tokens + 50 * usage.output_tokens


def unknown(_usage: Usage) -> None:
    return None


def test_the_worst_case_is_the_dearest_prompt_and_all_output_of_any_model() -> None:
    whole = WorstCase(tokens=120, microdollars=100 * 13 + 20 * 50, prompt_tokens=100, prompt_microdollars=1000)
    assert worst_case(100, [(cost, 20)]) == whole
    cheap_cache = worst_case(100, [(lambda usage: cost(usage) - 13 * usage.cache_write_tokens, 0)])
    assert cheap_cache.microdollars == 1000
    assert worst_case(100, [(unknown, 30), (cost, 20), (cost, 7)]) == replace(whole, tokens=130)
    assert worst_case(100, [(unknown, 20)]) == replace(whole, microdollars=None, prompt_microdollars=None)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000001"),
        (42, "$0.000042"),
        (250_000, "$0.25"),
        (1_500_000, "$1.50"),
        (1_234_567_890_120, "$1,234,567.89012"),
        (-2_000_000, "-$2.00"),
    ],
)
def test_money_is_shown_exactly(amount: int, text: str) -> None:
    assert dollars(amount) == text
    if amount >= 0:
        assert microdollars(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("5", 5_000_000),
        (" $0.25 ", 250_000),
        ("1,000.5", 1_000_500_000),
        (".5", 500_000),
        ("12,345,678", 12_345_678_000_000),
    ],
)
def test_money_is_read(text: str, amount: int) -> None:
    assert microdollars(text) == amount


@pytest.mark.parametrize("text", [
        "", "five", "-1", "0.0000001", "NaN", "Infinity", "1e30", "$", ".", "9" * 40,
        "1,5", "1,50", "0,25", "1,0000", "1,,000", ",5", "1000,000", "1.000,5", "$$5", "1_000", "\u0665",
    ],
)  # fmt: skip
def test_what_is_no_money_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="invalid amount"):
        microdollars(text)
