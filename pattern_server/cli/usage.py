"""`pattern usage` and `pattern budget …`: what model calls took, and what they may take."""

from __future__ import annotations

import click

from pattern_core.budgets.amounts import dollars, microdollars
from pattern_core.budgets.budget import shown_amount
from pattern_db.journal.budgets import Unit
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

USAGE_COLUMNS = ("calls", "input", "cached", "output", "reasoning", "cost")
BUDGET_COLUMNS = ("id", "for", "per", "amount", "spent", "held", "left", "anew")


@click.command("usage")
@constellation_option
@click.option("--by", type=click.Choice(["day", "agent", "model", "turn"]), default="day", help="What a line is about.")
@click.option("--agent", metavar="NAME", help="Only this agent's calls.")
@click.option("--turn", metavar="ID", help="Only this turn's calls and those of turns that it led to.")
@click.option("--since", metavar="TIME", help="From a date (UTC) or an RFC 3339 time on.")
@click.option("--until", metavar="TIME", help="Before a date (UTC) or an RFC 3339 time.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="How many lines.")
@connected
async def usage(
    api: Api,
    output: Output,
    constellation: str,
    by: str,
    agent: str | None,
    turn: str | None,
    since: str | None,
    until: str | None,
    limit: int,
) -> ExitCode:
    """Show what model calls took: tokens and money."""
    given = {"by": by, "agent": agent, "turn": turn, "since": since, "until": until, "limit": limit}
    params = {name: value for name, value in given.items() if value is not None}
    found = await api.get(path("constellations", constellation, "usage"), **params)
    if output.is_json:
        output.data(found)
        return None
    rows = [_usage_row(line, by) for line in found["items"]]
    if len(rows) > 1 or found["next_cursor"]:
        rows.append({**_usage_row(found["total"], by), by: "all"})
    output.table((by, *USAGE_COLUMNS), rows, empty="No model was asked.")
    for note in _remarks(found["total"], has_more=bool(found["next_cursor"])):
        output.note(note)
    return None


def _usage_row(line: Json, by: str) -> Json:
    cost = dollars(line["cost_microdollars"])
    if line["unpriced_calls"]:
        cost = "unknown" if line["unpriced_calls"] == line["calls"] else f"{cost} + unknown"
    return {
        by: line["name"] or line["key"],
        "calls": f"{line['calls']:,}",
        "input": f"{line['input_tokens']:,}",
        "cached": f"{line['cached_tokens']:,}",
        "output": f"{line['output_tokens']:,}",
        "reasoning": f"{line['reasoning_tokens']:,}",
        "cost": cost,
    }


def _remarks(total: Json, *, has_more: bool) -> list[str]:
    found = []
    if total["unpriced_calls"]:
        found.append(f"The price of {total['unpriced_calls']:,} calls is not known; their cost is not in the sums.")
    if total["estimated_calls"]:
        found.append(f"The tokens of {total['estimated_calls']:,} calls are estimated: nobody reported them.")
    if has_more:
        found.append("There are more lines: --limit shows more of them, --since and --until fewer.")
    return found


@click.group()
def budget() -> None:
    """Budgets: what turns, agents and the constellation may spend."""


@budget.command("list")
@constellation_option
@connected
async def list_all(api: Api, output: Output, constellation: str) -> ExitCode:
    """List the budgets as they stand."""
    found = await api.pages(path("constellations", constellation, "budgets"))
    agents = {} if output.is_json or not found else await _names(api, constellation)
    rows = found if output.is_json else [_budget_row(one, agents) for one in found]
    output.table(BUDGET_COLUMNS, rows, empty="There is no budget: model calls may cost what they cost.")
    if any(one["unpriced_calls"] for one in found) and not output.is_json:
        output.note("Some calls' price is not known; what they cost is not in what is spent.")
    return None


async def _names(api: Api, constellation: str) -> dict[str, str]:
    found = await api.pages(path("constellations", constellation, "agents"))
    return {agent["id"]: agent["name"] for agent in found}


def _budget_row(one: Json, agents: dict[str, str]) -> Json:
    whose = one["scope"] if one["scope"] == "constellation" else f"each {one['scope']}"
    if one["ref"]:
        whose = f"{one['scope']} {agents.get(one['ref'], one['ref'])}"
    amounts = {name: _amount(one["unit"], one[name]) for name in ("amount", "spent", "held", "left")}
    return {
        **amounts,
        "id": "(configured)" if one["is_configured"] else one["id"],
        "for": whose,
        "per": None if one["period"] == "total" else one["period"],
        "anew": str(one["resets_at"] or "")[:16].replace("T", " ") or None,
    }


def _amount(unit: str, amount: int | None) -> str | None:
    return None if amount is None else shown_amount(Unit(unit), amount)


@budget.command("set")
@constellation_option
@click.option("--dollars", "money", metavar="SUM", help="How much money, such as 5 or 0.25.")
@click.option("--tokens", type=click.IntRange(0), metavar="N", help="How many tokens, in and out.")
@click.option("--per", type=click.Choice(["day", "month", "total"]), default="total", help="For how long.")
@click.option("--agent", metavar="NAME", help="For one agent.")
@click.option("--each-agent", is_flag=True, help="For each agent that has none of its own.")
@click.option("--group", metavar="ID", help="For one group, by its id; there are no groups yet.")
@click.option("--turn", "is_turn", is_flag=True, help="For each turn with all turns that it leads to.")
@connected
async def set_one(
    api: Api,
    output: Output,
    constellation: str,
    money: str | None,
    tokens: int | None,
    per: str,
    agent: str | None,
    each_agent: bool,
    group: str | None,
    is_turn: bool,
) -> ExitCode:
    """Set what may be spent: by the whole constellation, or by whom an option names. It may be set again."""
    if (money is None) == (tokens is None):
        raise click.UsageError("Say how much: either --dollars or --tokens.")
    if sum(map(bool, (agent, each_agent, group, is_turn))) > 1:
        raise click.UsageError("Say for whom once: --agent, --each-agent, --group or --turn.")
    scope = "agent" if agent or each_agent else "group" if group else "turn" if is_turn else "constellation"
    amount = tokens if money is None else microdollars(money)
    unit = "tokens" if money is None else "microdollars"
    body = {"scope": scope, "agent": agent, "group": group, "period": per, "unit": unit, "amount": amount}
    made = await api.call("PUT", path("constellations", constellation, "budgets"), body=body)
    output.data(made)
    left = "" if made["left"] is None else f"; {_amount(unit, made['left'])} are left"
    output.say(f"Set {made['id']} to {_amount(unit, made['amount'])}{left}.")
    return None


@budget.command("remove")
@click.argument("id_", metavar="ID")
@constellation_option
@connected
async def remove(api: Api, output: Output, id_: str, constellation: str) -> ExitCode:
    """Take a budget away; `pattern budget list` shows the ids."""
    await api.call("DELETE", path("constellations", constellation, "budgets", id_))
    output.data({"removed": id_})
    output.say(f"Removed {id_}.")
    return None
