"""`pattern turn …`: what came of a turn, and stopping one."""

from __future__ import annotations

import click

from pattern_core.budgets.amounts import dollars
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.history import said
from pattern_server.cli.output import Output


@click.group()
def turn() -> None:
    """Turns: from a message to the agent's rest. `pattern usage --by turn` and `pattern chat --json` tell their ids."""


@turn.command("show")
@click.argument("turn_id", metavar="TURN")
@constellation_option
@connected
async def show(api: Api, output: Output, turn_id: str, constellation: str) -> ExitCode:
    """Show a turn: how it stands, what it took, and what was said in it."""
    found = await api.get(path("constellations", constellation, "turns", turn_id))
    if output.is_json:
        output.data(found)
        return None
    error = found["error"]
    output.record(
        {
            "id": found["turn_id"],
            "status": found["status"],
            "error": None if error is None else error.get("message"),
            "waits for": found["approvals"] or None,
            "sender": found["sender"],
            "began": found["started_at"] or found["created_at"],
            "ended": found["ended_at"],
            "steps": found["steps"],
            "took": _took(found["usage"]),
        }
    )
    for message in found["messages"]:
        output.say(said(message))
    return None


def _took(usage: Json) -> str:
    cost = usage["cost_microdollars"]
    money = "a price that is not known" if cost is None else dollars(cost)
    estimated = " (estimated)" if usage["is_estimate"] else ""
    return f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out{estimated}; {money}"


@turn.command("cancel")
@click.argument("turn_id", metavar="TURN")
@constellation_option
@connected
async def cancel(api: Api, output: Output, turn_id: str, constellation: str) -> ExitCode:
    """Stop a turn. What it said and did stays; questions that it asked people are withdrawn."""
    told = await api.call("POST", path("constellations", constellation, "turns", turn_id, "cancel"))
    output.data(told)
    if told["cancelled"]:
        output.say(f"Stopped {turn_id}.")
    else:
        output.say(f"Nothing to stop: {turn_id} had ended already ({told['status']}).")
    return None
