"""`pattern turn …` and `pattern why`: turns and their status, cancelling them, and their prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import click

from pattern_core.budgets.budget import MICRO, dollars
from pattern_core.errors import NotFound
from pattern_db.enums import TurnStatus
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, in_constellation
from pattern_server.cli.history import said
from pattern_server.cli.names import AGENT, TURN
from pattern_server.cli.output import Output, cut, in_line, is_terminal, when

COLUMNS = ("part", "tokens", "place?", "why*", "text?")
LIST_COLUMNS = ("id", "status", "for", "accepted=created_at?", "cost?")
COST_SHOWN_MIN = 100  # micro-dollars
LEFT_OUT_COLUMNS = ("part", "tokens", "why*")
TEXT_CHARS_MAX = 60  # shown of each part in the table; --json has more
SHADES = "█▓▒░▚▞▤▥"  # of the parts of a prompt
PROMPT_CHARS = 60  # of its bar

turn = PlainGroup("turn", help="Turns: an agent's work from a message to its answer.")


@turn.add("list", "--status running")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="Only turns of this agent.")
@click.option(
    "--status", type=click.Choice([status.value for status in TurnStatus]), help="Only turns with this status."
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest turns.")
async def list_all(home: Home, output: Output, agent: str | None, status: str | None, limit: int) -> None:
    """List turns, newest first."""
    found = await home.pages("turns", most=limit, agent=agent, status=status)
    await home.name_people(output)
    output.table(LIST_COLUMNS, found, empty="No turns found.", shown=_line)


def _line(turn: Json) -> Json:
    cost = turn["usage"]["cost_microdollars"]
    return {
        **turn,
        "id": turn["turn_id"],
        "for": turn["agent_id"] or turn["group_id"],
        "cost": "" if cost is None else "<$0.0001" if 0 < cost < COST_SHOWN_MIN else f"${cost / MICRO:.4f}",
    }


@turn.add("show", "turn_01k")
@click.argument("turn_id", metavar="TURN", type=TURN)
async def show(home: Home, output: Output, turn_id: str) -> None:
    """Show the status, usage and messages of a turn."""
    await home.name_people(output)
    found = await home.get("turns", turn_id)
    error = found["error"]
    output.record(
        {
            "id": found["turn_id"],
            "for": found["agent_id"] or found["group_id"],
            "session": found["session_id"],
            "status": found["status"],
            "error": None if error is None else error.get("message"),
            "waits for": found["approvals"] or None,
            "sender": f"{found['sender']} ({found['trust']})",
            "started": when(found["started_at"] or found["created_at"]),
            "ended": when(found["ended_at"]) or None,
            "steps": found["steps"],
            "usage": _usage(found["usage"]),
        },
        data=found,
    )
    for line in drawn_tree(found):
        output.say(line)
    for message in found["messages"]:
        output.say(said(message))


def drawn_tree(turn: Json) -> list[str]:
    """Return the turns below a turn as a tree, each with its status, when it began after the whole did, and how long it
    lasted.
    """
    below: dict[str, list[Json]] = {}
    for one in turn["tree"]:
        below.setdefault(one["parent_id"], []).append(one)

    def lines(turn_id: str, indent: str) -> Iterator[str]:
        branches = below.get(turn_id, [])
        for place, one in enumerate(branches, 1):
            is_last = place == len(branches)
            reason = f": {one['reason']}" if one["reason"] else ""
            yield f"{indent}{'└─' if is_last else '├─'} {one['name']}{reason} ({one['turn_id']}), {_times(one, turn)}"
            yield from lines(one["turn_id"], indent + ("   " if is_last else "│  "))

    return [*lines(turn["turn_id"], "")]


def _times(one: Json, whole: Json) -> str:
    began = one["started_at"]
    if began is None:
        return str(one["status"])
    lasted = f" for {_seconds(began, one['ended_at'])}" if one["ended_at"] else ""
    return f"{one['status']}, from {_seconds(whole['created_at'], began)}{lasted}"


def _seconds(start: str, end: str) -> str:
    return f"{(datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds():.1f} s"


def _usage(usage: Json) -> str:
    cost = usage["cost_microdollars"]
    money = "price unknown" if cost is None else dollars(cost)
    estimated = " (estimated)" if usage["is_estimate"] else ""
    return f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out{estimated}; {money}"


@turn.add("cancel", "turn_01k")
@click.argument("turn_id", metavar="TURN", type=TURN)
async def cancel(home: Home, output: Output, turn_id: str) -> None:
    """Cancel a turn. Its messages and effects are kept; approvals that it waits for are withdrawn."""
    answer = await home.call("POST", "turns", turn_id, "cancel")
    ended = f"{turn_id} has already ended ({answer['status']})."
    output.result(answer, f"Cancelled {turn_id}." if answer["cancelled"] else ended)


@click.command(epilog="Example: pattern why -a ada")
@click.argument("turn_id", metavar="[TURN]", required=False, type=TURN)
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="Without TURN: the newest turn of this agent.")
@in_constellation
async def why(home: Home, output: Output, turn_id: str | None, agent: str | None) -> None:
    """Show the prompt of each step of TURN (an id; without it, the newest turn), part by part with the reasons.

    Parts that did not fit are listed at the end. Token counts are estimates where the provider reported none.
    """
    if turn_id is None:
        turn_id = await _newest(home, agent)
        output.say(f"The newest turn, {turn_id}:")
    found = await home.get("turns", turn_id, "prompt")
    if output.is_json:
        output.data(found)
        return
    if not found["steps"]:
        output.say("The turn has not called a model yet.")
    if found["session_id"]:
        output.say(f"The conversation is the session {found['session_id']}.")
    for before, step in zip([None, *found["steps"]], found["steps"], strict=False):
        _show_step(output, step, before)


async def _newest(home: Home, agent: str | None) -> str:
    """Return the newest turn that called a model.

    Raises:
        NotFound: there is none yet.
    """
    found = (await home.get("usage", by="turn", limit=1, agent=agent))["items"]
    if not found:
        raise NotFound(
            f"No model was called yet. Send a message: pattern chat -c {home.name}{f' -a {agent}' if agent else ''}"
        )
    return str(found[0]["key"])


def _show_step(output: Output, step: Json, before: Json | None) -> None:
    output.heading(headline(step))
    if not step["is_known"]:
        output.say("Its prompt was not recorded: the step is from an older version.")
        return
    if is_terminal():
        for line in drawn(step):
            output.say(f"  {line}")
    output.say(f"  {conversation(step)}")
    for note in step["notes"]:
        output.say(f"  Note: {note}.")
    if before is not None and all(before[name] == step[name] for name in ("parts", "left_out")):
        output.say("  The other parts are the same as in the step before.")
        output.say()
        return
    output.table(COLUMNS, step["parts"], empty="  Nothing besides the conversation.", shown=part_row)
    if step["left_out"]:
        output.say("Left out:")
        output.table(LEFT_OUT_COLUMNS, step["left_out"], empty="", shown=part_row)
    output.say()


def drawn(step: Json) -> list[str]:
    """Return the prompt as a stacked bar, and its legend with what is free and what was left out."""
    sizes = Counter(tools=step["tools"]["tokens"], conversation=step["history"]["tokens"])
    for part in step["parts"]:
        sizes[part["kind"]] += part["tokens"] or 0
    shown = [(kind, size) for kind, size in sizes.most_common() if size]
    total = sum(sizes.values())
    shades = [SHADES[min(place, len(SHADES) - 1)] for place in range(len(shown))]
    bars = [shade * max(1, round(size / total * PROMPT_CHARS)) for shade, (_, size) in zip(shades, shown, strict=True)]
    legend = [f"{shade} {kind} {size:,}" for shade, (kind, size) in zip(shades, shown, strict=True)]
    if step["window"]:
        legend.append(f"free {step['window'] - total:,}")
    if left_out := sum(part["tokens"] or 0 for part in step["left_out"]):
        legend.append(f"left out {left_out:,}")
    lines = [""]
    for entry in legend:
        if len(lines[-1]) + len(entry) > PROMPT_CHARS:
            lines.append("")
        lines[-1] += f"{entry}   "
    return ["".join(bars), *lines]


def headline(step: Json) -> str:
    """Return one line about a step: its number, model, tokens and window."""
    attempt = f", attempt {step['attempt']}" if step["attempt"] > 1 else ""
    counted = "estimated" if step["is_estimate"] else "counted by the provider"
    cached = f", {step['cached_tokens']:,} of them cached" if step["cached_tokens"] else ""
    window = f" of a window of {step['window']:,}" if step["window"] else ""
    asked = f"Step {step['step']}{attempt} ({step['status']}): {step['provider']}/{step['model']}"
    return f"{asked}, {step['tokens']:,} tokens{window}, {counted}{cached}"


def conversation(step: Json) -> str:
    """Return the conversation and the tools that a step showed, in one line."""
    shown, tools = step["history"], step["tools"]
    messages = f"Messages of the conversation: {shown['count']} (about {shown['tokens']:,} tokens)"
    offered = f"tools: {tools['count']} (about {tools['tokens']:,})" if tools["count"] else "no tools"
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
