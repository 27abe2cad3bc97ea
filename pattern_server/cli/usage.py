"""`pattern usage` and `pattern budget …`: tokens and cost of model calls, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pattern_core.budgets.budget import dollars, microdollars, shown_amount
from pattern_db.journal.budgets import Unit
from pattern_db.journal.usage import Grouping
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, in_constellation
from pattern_server.cli.names import AGENT, GROUP, TURN, people
from pattern_server.cli.output import Output, bar, is_terminal

USAGE_COLUMNS = ("calls", "input", "cached?", "output", "reasoning?", "cost", "plot?")
BUDGET_COLUMNS = ("id", "amount", "spent?", "left?", "for?", "per?", "resets=resets_at?", "held?")


@click.command("usage", epilog="Example: pattern usage --by agent --since 2026-11-01")
@click.option("--by", type=click.Choice([one.value for one in Grouping]), default="day", help="Group by this.")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="Only this agent's calls.")
@click.option("--turn", metavar="ID", type=TURN, help="Only this turn's calls and those of turns that it started.")
@click.option("--since", metavar="TIME", help="From this date (UTC) or RFC 3339 time.")
@click.option("--until", metavar="TIME", help="Before this date (UTC) or RFC 3339 time.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="How many lines.")
@in_constellation
async def usage(home: Home, output: Output, by: str, **given: Any) -> None:
    """Show token usage and cost."""
    found = await home.get("usage", by=by, **given)
    if output.is_json:
        output.data(found)
        return
    rows = [_usage_row(line, by) for line in found["items"]]
    if len(rows) > 1 or found["next_cursor"]:
        rows.append({**_usage_row(found["total"], by), by: "all"})
    _plot(rows, found["items"])
    columns = (by, *USAGE_COLUMNS) if is_terminal() else (by, *USAGE_COLUMNS[:-1])
    output.table(columns, rows, empty="No model calls yet.")
    total = found["total"]
    if total["unpriced_calls"]:
        output.note(f"Calls without a known price: {total['unpriced_calls']:,}; their cost is not included.")
    if total["estimated_calls"]:
        output.note(f"Calls with an estimated token count: {total['estimated_calls']:,}.")
    if found["next_cursor"]:
        output.note("There are more lines: see --limit, --since and --until.")


def _usage_row(line: Json, by: str) -> Json:
    cost = dollars(line["cost_microdollars"])
    if line["unpriced_calls"]:
        cost = "unknown" if line["unpriced_calls"] == line["calls"] else f"≥ {cost}"
    return {
        by: line["name"] or line["key"],
        "calls": f"{line['calls']:,}",
        **{kind: f"{line[f'{kind}_tokens']:,}" for kind in ("input", "cached", "output", "reasoning")},
        "cost": cost,
    }


def _plot(rows: list[Json], items: list[Json]) -> None:
    """Give each row a bar for its part of the cost, or of the tokens where no price is known."""
    costs = [line["cost_microdollars"] or 0 for line in items]
    sizes = costs if any(costs) else [line["input_tokens"] + line["output_tokens"] for line in items]
    for row, size in zip(rows, sizes, strict=False):
        row["plot"] = bar(size / (max(sizes) or 1))


budget = PlainGroup("budget", help="Token and cost budgets of turns, agents and the constellation.")


@budget.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the budgets, and what is spent and left."""
    found = await home.pages("budgets")
    await home.name_people(output)
    empty = "No budgets are set; spending is unlimited. Set one: pattern budget set --dollars 5 --per day"
    output.table(BUDGET_COLUMNS, found, empty=empty, shown=lambda one: _budget_row(one, output.names))
    if any(one["unpriced_calls"] for one in found) and not output.is_json:
        output.note("Calls without a known price are not included in what is spent.")


def _budget_row(one: Json, names: Mapping[str, str]) -> Json:
    scope = one["scope"] if one["scope"] == "constellation" else f"each {one['scope']}"
    if one["ref"]:
        scope = f"{one['scope']} {one['ref']}"
    amounts = {name: _amount(one["unit"], one[name]) for name in ("amount", "spent", "held", "left")}
    return {
        **one,
        **amounts,
        "id": "(configured)" if one["is_configured"] else _renamed(one["id"], names),
        "for": scope,
        "per": None if one["period"] == "total" else one["period"],
    }


def _renamed(budget_id: str, names: Mapping[str, str]) -> str:
    """Return the id of a budget with another name for the agent that it ends with, if there is one."""
    *parts, last = budget_id.split(".", 3)
    return ".".join([*parts, names.get(last, last)])


def _amount(unit: str, amount: int | None) -> str | None:
    return None if amount is None else shown_amount(Unit(unit), amount)


@budget.add("set", "--dollars 5 --per day -a ada")
@click.option("--dollars", "money", metavar="SUM", help="The amount in dollars, such as 5 or 0.25.")
@click.option("--tokens", type=click.IntRange(0), metavar="N", help="The number of tokens, input and output.")
@click.option(
    "--per",
    "period",
    type=click.Choice(["day", "month", "total"]),
    default="total",
    help="The period after which it starts again.",
)
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="For one agent.")
@click.option("--each-agent", is_flag=True, help="For each agent without a budget of its own.")
@click.option("--group", metavar="NAME", type=GROUP, help="For one group.")
@click.option("--turn", is_flag=True, help="For each turn, with the turns that it starts.")
async def set_one(
    home: Home, output: Output, money: str | None, tokens: int | None, period: str, **scopes: Any
) -> None:
    """Set or change a budget of the whole constellation, or of what an option names."""
    if (money is None) == (tokens is None):
        raise click.UsageError("No amount was given. Use --dollars or --tokens, not both.")
    named = [scope.removeprefix("each_") for scope, value in scopes.items() if value]
    if len(named) > 1:
        raise click.UsageError("Use only one of --agent, --each-agent, --group and --turn.")
    amount = tokens if money is None else microdollars(money)
    unit = "tokens" if money is None else "microdollars"
    body = {"scope": named[0] if named else "constellation", "agent": scopes["agent"], "group": scopes["group"]}
    body |= {"period": period, "unit": unit, "amount": amount}
    made = await home.call("PUT", "budgets", body=body)
    left = "" if made["left"] is None else f"; {_amount(unit, made['left'])} left"
    output.result(made, f"Set {made['id']} to {_amount(unit, made['amount'])}{left}.")


@budget.add("remove", "constellation.day.microdollars")
@click.argument("id_", metavar="ID")
async def remove(home: Home, output: Output, id_: str) -> None:
    """Remove the budget ID, as `pattern budget list` shows it."""
    ids = {name: key for key, name in (await people(home.api, home.name)).items()}
    await home.call("DELETE", "budgets", _renamed(id_, ids))
    output.result({"removed": id_}, f"Removed {id_}.")
