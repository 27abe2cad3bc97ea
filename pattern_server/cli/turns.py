"""`pattern turn …` and `pattern why`: what ran and runs, stopping it, and what its model was shown."""

from __future__ import annotations

from collections.abc import Mapping

import click

from pattern_core.budgets.budget import MICRO, dollars
from pattern_core.errors import NotFound
from pattern_db.enums import TurnStatus
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, in_constellation
from pattern_server.cli.history import said
from pattern_server.cli.output import Output, cut, in_line, when

COLUMNS = ("part", "tokens", "place", "why", "text")
LIST_COLUMNS = ("id=turn_id", "status", "agent", "accepted", "cost")
AGENT_CHARS_MAX = 10
COST_SHOWN_MIN = 100  # micro-dollars
LEFT_OUT_COLUMNS = ("part", "tokens", "why")
TEXT_CHARS_MAX = 60  # shown of each part in the table; --json has more


@click.group()
def turn() -> None:
    """Turns: from a message to the agent's rest."""


@turn.command("list")
@click.option("-a", "--agent", metavar="NAME", help="Only turns of this agent.")
@click.option(
    "--status", type=click.Choice([status.value for status in TurnStatus]), help="Only turns with this status."
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest turns.")
@in_constellation
async def list_all(home: Home, output: Output, agent: str | None, status: str | None, limit: int) -> None:
    """List what runs, waits and ran, newest first."""
    found = await home.pages("turns", most=limit, agent=agent, status=status)
    names = {} if output.is_json or not found else await home.agent_names()
    output.table(LIST_COLUMNS, found, empty="There is no such turn.", shown=lambda one: _line(one, names))


def _line(turn: Json, names: Mapping[str, str]) -> Json:
    """Return a turn as a line of the list, which fits into 80 columns."""
    cost = turn["usage"]["cost_microdollars"]
    return {
        **turn,
        "agent": cut(names.get(turn["agent_id"], ""), AGENT_CHARS_MAX),
        "accepted": when(turn["created_at"])[len("2026-") :],
        "cost": "" if cost is None else "<$0.0001" if 0 < cost < COST_SHOWN_MIN else f"${cost / MICRO:.4f}",
    }


@turn.command("show")
@click.argument("turn_id", metavar="TURN")
@in_constellation
async def show(home: Home, output: Output, turn_id: str) -> None:
    """Show a turn: how it stands, what it took, and what was said in it."""
    found = await home.get("turns", turn_id)
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
        },
        data=found,
    )
    for message in found["messages"]:
        output.say(said(message))


def _took(usage: Json) -> str:
    cost = usage["cost_microdollars"]
    money = "a price that is not known" if cost is None else dollars(cost)
    estimated = " (estimated)" if usage["is_estimate"] else ""
    return f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out{estimated}; {money}"


@turn.command("cancel")
@click.argument("turn_id", metavar="TURN")
@in_constellation
async def cancel(home: Home, output: Output, turn_id: str) -> None:
    """Stop a turn. What it said and did stays; questions that it asked people are withdrawn."""
    answer = await home.call("POST", "turns", turn_id, "cancel")
    ended = f"Nothing to stop: {turn_id} had ended already ({answer['status']})."
    output.result(answer, f"Stopped {turn_id}." if answer["cancelled"] else ended)


@click.command()
@click.argument("turn_id", metavar="[TURN]", required=False)
@click.option("-a", "--agent", metavar="NAME", help="Without TURN: the newest turn of this agent.")
@in_constellation
async def why(home: Home, output: Output, turn_id: str | None, agent: str | None) -> None:
    """Show what the model was shown in each step of TURN (its id; without one, of the newest turn), and why.

    Parts come in the order of the prompt; what was left out for lack of room follows with the reason. Numbers of
    tokens are estimates where the vendor counted none. `pattern usage --by turn` and the events show the ids of turns.
    """
    if turn_id is None:
        turn_id = await _newest(home, agent)
        output.say(f"The newest turn, {turn_id}:")
    found = await home.get("turns", turn_id, "prompt")
    if output.is_json:
        output.data(found)
        return
    if not found["steps"]:
        output.say("The turn has not asked a model yet.")
    for before, step in zip([None, *found["steps"]], found["steps"], strict=False):
        _show_step(output, step, before)


async def _newest(home: Home, agent: str | None) -> str:
    """Return the newest turn that asked a model.

    Raises:
        NotFound: there is none yet.
    """
    found = (await home.get("usage", by="turn", limit=1, agent=agent))["items"]
    if not found:
        raise NotFound(f"no model was asked yet: pattern chat -c {home.name}{f' -a {agent}' if agent else ''}")
    return str(found[0]["key"])


def _show_step(output: Output, step: Json, before: Json | None) -> None:
    output.heading(headline(step))
    if not step["is_known"]:
        output.say("What it was shown was not recorded: the step is older than that feature.")
        return
    output.say(f"  {conversation(step)}")
    for note in step["notes"]:
        output.say(f"  Note: {note}.")
    if before is not None and all(before[name] == step[name] for name in ("parts", "left_out")):
        output.say("  The other parts are those of the step before.")
        output.say()
        return
    output.table(COLUMNS, step["parts"], empty="  Nothing beside the conversation.", shown=part_row)
    if step["left_out"]:
        output.say("Left out:")
        output.table(LEFT_OUT_COLUMNS, step["left_out"], empty="", shown=part_row)
    output.say()


def headline(step: Json) -> str:
    """Return one line about a step: its number, model, tokens and window."""
    attempt = f", attempt {step['attempt']}" if step["attempt"] > 1 else ""
    counted = "estimated" if step["is_estimate"] else "as the vendor counted"
    cached = f", {step['cached_tokens']:,} of them cached" if step["cached_tokens"] else ""
    window = f" of a window of {step['window']:,}" if step["window"] else ""
    asked = f"Step {step['step']}{attempt} ({step['status']}): {step['provider']}/{step['model']}"
    return f"{asked}, {step['tokens']:,} tokens{window}, {counted}{cached}"


def conversation(step: Json) -> str:
    """Return the conversation and the tools that a step showed, in one line."""
    shown, tools = step["history"], step["tools"]
    messages = f"{shown['count']} messages of the conversation (about {shown['tokens']:,} tokens)"
    offered = f"{tools['count']} tools (about {tools['tokens']:,})" if tools["count"] else "no tools"
    return f"{messages}; {offered}."


def part_row(part: Json) -> Json:
    """Return a part as a line of the table."""
    version = f" v{part['version']}" if part["version"] is not None else ""
    text = cut(in_line(part["text"] or ""), TEXT_CHARS_MAX)
    return {
        "part": f"{part['kind']} {in_line(part['name'] or '')}{version}".strip(),
        "tokens": part["tokens"] or None,
        "place": part["place"],
        "why": part["reason"],
        "text": text or (f"({part['note']})" if part["note"] else None),
    }
