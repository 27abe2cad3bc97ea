"""The operator's budgets, from the configuration's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.budgets.budget import Budget, check, name_of
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_server.budgets import configured_budgets
from pattern_server.config import BudgetsConfig, ConfigError, load


def test_nothing_is_configured_by_default(alone: Path) -> None:
    assert configured_budgets(load(data_dir=alone).budgets) == ()


def test_every_amount_becomes_a_budget(alone: Path) -> None:
    (alone / "pattern.toml").write_text(
        "[budgets]\nturn = {tokens = 200_000}\nagent.day = {dollars = 0.1}\n"
        "constellation.month = {tokens = 5, dollars = 12.345678}\nconstellation.total = {dollars = 100}\n"
    )
    found = configured_budgets(load(data_dir=alone).budgets)
    assert found == (
        Budget(BudgetScope.TURN, "", Period.TOTAL, Unit.TOKENS, 200_000),
        Budget(BudgetScope.AGENT, "", Period.DAY, Unit.MICRODOLLARS, 100_000),
        Budget(BudgetScope.CONSTELLATION, "", Period.MONTH, Unit.TOKENS, 5),
        Budget(BudgetScope.CONSTELLATION, "", Period.MONTH, Unit.MICRODOLLARS, 12_345_678),
        Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.MICRODOLLARS, 100_000_000),
    )
    for budget in found:
        check(budget)


def test_a_variable_sets_one(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_BUDGETS__CONSTELLATION__DAY__DOLLARS", "2.5")
    [found] = configured_budgets(load(data_dir=alone).budgets)
    assert (name_of(found), found.amount) == ("constellation.day.microdollars", 2_500_000)


@pytest.mark.parametrize(
    "line", ["turn = {tokens = -1}", "turn = {dollars = 0.0000001}", "agent.week = {tokens = 1}", "turn = {euros = 1}"]
)
def test_what_is_no_amount_is_refused(alone: Path, line: str) -> None:
    (alone / "pattern.toml").write_text(f"[budgets]\n{line}\n")
    with pytest.raises(ConfigError, match="budgets"):
        load(data_dir=alone)


def test_a_section_is_no_amount(alone: Path) -> None:
    (alone / "pattern.toml").write_text("[budgets]\nagent = 5\n")
    with pytest.raises(ConfigError, match=r"budgets\.agent: is a section, with settings of its own"):
        load(data_dir=alone)


def test_an_amount_of_nothing_is_one() -> None:
    config = BudgetsConfig.model_validate({"agent": {"total": {"tokens": 0}}})
    assert [budget.amount for budget in configured_budgets(config)] == [0]
