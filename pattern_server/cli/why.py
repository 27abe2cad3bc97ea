"""`pattern why`: what a turn's model was shown, part by part, with the reasons."""

from __future__ import annotations

import click

from pattern_core.errors import NotFound
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("part", "tokens", "place", "why", "text")
LEFT_OUT_COLUMNS = ("part", "tokens", "why")
TEXT_CHARS_MAX = 60  # shown of each part in the table; --json has more


@click.command()
@click.argument("turn", metavar="[TURN]", required=False)
@constellation_option
@click.option("-a", "--agent", metavar="NAME", help="Without TURN: the newest turn of this agent.")
@connected
async def why(api: Api, output: Output, turn: str | None, constellation: str, agent: str | None) -> ExitCode:
    """Show what the model was shown in each step of TURN (its id; without one, of the newest turn), and why.

    Parts come in the order of the prompt; what was left out for lack of room follows with the reason. Numbers of
    tokens are estimates where the vendor counted none. `pattern usage --by turn` and the events tell the ids of turns.
    """
    if turn is None:
        turn = await _newest(api, constellation, agent)
        output.say(f"The newest turn, {turn}:")
    found = await api.get(path("constellations", constellation, "turns", turn, "prompt"))
    if output.is_json:
        output.data(found)
        return None
    if not found["steps"]:
        output.say("The turn has not asked a model yet.")
    before: Json | None = None
    for step in found["steps"]:
        _show(output, step, before)
        before = step
    return None


async def _newest(api: Api, constellation: str, agent: str | None) -> str:
    """The newest turn that asked a model.

    Raises:
        NotFound: there is none yet.
    """
    params = {"by": "turn", "limit": 1, **({"agent": agent} if agent else {})}
    found = (await api.get(path("constellations", constellation, "usage"), **params))["items"]
    if not found:
        raise NotFound(f"no model was asked yet: pattern chat -c {constellation}{f' -a {agent}' if agent else ''}")
    return str(found[0]["key"])


def _show(output: Output, step: Json, before: Json | None) -> None:
    if output.is_json:
        return
    output.heading(headline(step))
    if not step["is_known"]:
        output.say("What it was shown was not noted: the step is from before that was done.")
        return
    output.say(f"  {conversation(step)}")
    for note in step["notes"]:
        output.say(f"  Note: {note}.")
    if before is not None and all(before[name] == step[name] for name in ("parts", "left_out")):
        output.say("  The other parts are those of the step before.")
        output.say()
        return
    output.table(COLUMNS, [row(part) for part in step["parts"]], empty="  Nothing beside the conversation.")
    if step["left_out"]:
        output.say("Left out:")
        output.table(LEFT_OUT_COLUMNS, [row(part) for part in step["left_out"]], empty="")
    output.say()


def headline(step: Json) -> str:
    """One line about a step: its number, model, tokens and window."""
    attempt = f", attempt {step['attempt']}" if step["attempt"] > 1 else ""
    counted = "estimated" if step["is_estimate"] else "as the vendor counted"
    cached = f", {step['cached_tokens']:,} of them cached" if step["cached_tokens"] else ""
    window = f" of a window of {step['window']:,}" if step["window"] else ""
    asked = f"Step {step['step']}{attempt} ({step['status']}): {step['provider']}/{step['model']}"
    return f"{asked}, {step['tokens']:,} tokens{window}, {counted}{cached}"


def conversation(step: Json) -> str:
    """The conversation and the tools that a step showed, in one line."""
    shown, tools = step["history"], step["tools"]
    messages = f"{shown['count']} messages of the conversation (about {shown['tokens']:,} tokens)"
    offered = f"{tools['count']} tools (about {tools['tokens']:,})" if tools["count"] else "no tools"
    return f"{messages}; {offered}."


def row(part: Json) -> Json:
    """A part as a line of the table."""
    version = f" v{part['version']}" if part["version"] is not None else ""
    name = " ".join(str(part["name"] or "").split())
    text = " ".join(str(part["text"] or "").split())
    short = text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"
    return {
        "part": f"{part['kind']} {name}{version}".strip(),
        "tokens": part["tokens"] or None,
        "place": part["place"],
        "why": part["reason"],
        "text": short or (f"({part['note']})" if part["note"] else None),
    }
