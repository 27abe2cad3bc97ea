"""`pattern usage` and `pattern budget …`: what model calls took, and what they may take."""

from __future__ import annotations

from typing import Any

import click

from pattern_core.budgets.budget import dollars, microdollars, shown_amount
from pattern_db.journal.budgets import Unit
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, in_constellation
from pattern_server.cli.output import Output

USAGE_COLUMNS = ("calls", "input", "cached", "output", "reasoning", "cost")
BUDGET_COLUMNS = ("id", "for", "per", "amount", "spent", "held", "left", "resets=resets_at")


@click.command("usage")
@click.option("--by", type=click.Choice(["day", "agent", "model", "turn"]), default="day", help="What a line is about.")
@click.option("--agent", metavar="NAME", help="Only this agent's calls.")
@click.option("--turn", metavar="ID", help="Only this turn's calls and those of turns that it led to.")
@click.option("--since", metavar="TIME", help="From a date (UTC) or an RFC 3339 time on.")
@click.option("--until", metavar="TIME", help="Before a date (UTC) or an RFC 3339 time.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="How many lines.")
@in_constellation
async def usage(home: Home, output: Output, by: str, **given: Any) -> None:
    """Show what model calls took: tokens and money."""
    found = await home.get("usage", by=by, **given)
    if output.is_json:
        output.data(found)
        return
    rows = [_usage_row(line, by) for line in found["items"]]
    if len(rows) > 1 or found["next_cursor"]:
        rows.append({**_usage_row(found["total"], by), by: "all"})
    output.table((by, *USAGE_COLUMNS), rows, empty="No model was asked.")
    total = found["total"]
    if total["unpriced_calls"]:
        output.note(f"The price of {total['unpriced_calls']:,} calls is not known; their cost is not in the sums.")
    if total["estimated_calls"]:
        output.note(f"The tokens of {total['estimated_calls']:,} calls are estimated: no vendor reported them.")
    if found["next_cursor"]:
        output.note("There are more lines: --limit shows more of them, --since and --until fewer.")


def _usage_row(line: Json, by: str) -> Json:
    cost = dollars(line["cost_microdollars"])
    if line["unpriced_calls"]:
        cost = "unknown" if line["unpriced_calls"] == line["calls"] else f"{cost} + unknown"
    return {
        by: line["name"] or line["key"],
        "calls": f"{line['calls']:,}",
        **{kind: f"{line[f'{kind}_tokens']:,}" for kind in ("input", "cached", "output", "reasoning")},
        "cost": cost,
    }


@click.group()
def budget() -> None:
    """Budgets: what turns, agents and the constellation may spend."""


@budget.command("list")
@in_constellation
async def list_all(home: Home, output: Output) -> None:
    """List the budgets as they stand."""
    found = await home.pages("budgets")
    names = {} if output.is_json or not found else await home.agent_names()
    empty = "There is no budget: model calls may cost what they cost."
    output.table(BUDGET_COLUMNS, found, empty=empty, shown=lambda one: _budget_row(one, names))
    if any(one["unpriced_calls"] for one in found) and not output.is_json:
        output.note("Some calls' price is not known; what they cost is not in what is spent.")


def _budget_row(one: Json, agents: dict[str, str]) -> Json:
    whose = one["scope"] if one["scope"] == "constellation" else f"each {one['scope']}"
    if one["ref"]:
        whose = f"{one['scope']} {agents.get(one['ref'], one['ref'])}"
    amounts = {name: _amount(one["unit"], one[name]) for name in ("amount", "spent", "held", "left")}
    return {
        **one,
        **amounts,
        "id": "(configured)" if one["is_configured"] else one["id"],
        "for": whose,
        "per": None if one["period"] == "total" else one["period"],
    }


def _amount(unit: str, amount: int | None) -> str | None:
    return None if amount is None else shown_amount(Unit(unit), amount)


@budget.command("set")
@click.option("--dollars", "money", metavar="SUM", help="How much money, such as 5 or 0.25.")
@click.option("--tokens", type=click.IntRange(0), metavar="N", help="How many tokens, in and out.")
@click.option("--per", type=click.Choice(["day", "month", "total"]), default="total", help="For how long.")
@click.option("--agent", metavar="NAME", help="For one agent.")
@click.option("--each-agent", is_flag=True, help="For each agent that has none of its own.")
@click.option("--group", metavar="ID", help="For one group, by its id; there are no groups yet.")
@click.option("--turn", "is_turn", is_flag=True, help="For each turn with all turns that it leads to.")
@in_constellation
async def set_one(
    home: Home,
    output: Output,
    money: str | None,
    tokens: int | None,
    per: str,
    agent: str | None,
    each_agent: bool,
    group: str | None,
    is_turn: bool,
) -> None:
    """Set what may be spent: by the whole constellation, or by whom an option names. It may be set again."""
    if (money is None) == (tokens is None):
        raise click.UsageError("Say how much: either --dollars or --tokens.")
    if sum(map(bool, (agent, each_agent, group, is_turn))) > 1:
        raise click.UsageError("Say for whom once: --agent, --each-agent, --group or --turn.")
    scope = "agent" if agent or each_agent else "group" if group else "turn" if is_turn else "constellation"
    amount = tokens if money is None else microdollars(money)
    unit = "tokens" if money is None else "microdollars"
    body = {"scope": scope, "agent": agent, "group": group, "period": per, "unit": unit, "amount": amount}
    made = await home.call("PUT", "budgets", body=body)
    left = "" if made["left"] is None else f"; {_amount(unit, made['left'])} are left"
    output.result(made, f"Set {made['id']} to {_amount(unit, made['amount'])}{left}.")


@budget.command("remove")
@click.argument("id_", metavar="ID")
@in_constellation
async def remove(home: Home, output: Output, id_: str) -> None:
    """Take a budget away; `pattern budget list` shows the ids."""
    await home.call("DELETE", "budgets", id_)
    output.result({"removed": id_}, f"Removed {id_}.")
