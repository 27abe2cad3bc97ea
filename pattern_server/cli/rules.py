"""`pattern rule …`: what an agent may call when."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import click

from pattern_core.errors import Conflict
from pattern_core.rules.kinds import KINDS
from pattern_core.rules.ruleset import OTHER_NAMES, RuleSet
from pattern_db.columns import Json as Value
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("number", "tool", "type", "rest", "means")

agent_option = click.option("-a", "--agent", required=True, metavar="NAME", help="The agent, by name or id.")


@click.group()
def rule() -> None:
    """Tool rules: what an agent may call when, and what it must."""


@rule.command("list")
@constellation_option
@agent_option
@connected
async def list_all(api: Api, output: Output, constellation: str, agent: str) -> ExitCode:
    """List an agent's rules, numbered, with what each one means."""
    found = await api.get(path("constellations", constellation, "agents", agent))
    rules = RuleSet.of(found["tool_rules"])
    stored = rules.to_json()
    if output.is_json:
        output.data(stored)
        return None
    hint = f"There is no rule: pattern rule add TOOL TYPE -c {constellation} -a {agent}"
    output.table(COLUMNS, [_row(number, one) for number, one in enumerate(stored, 1)], empty=hint)
    _warn(output, found)
    return None


def _row(number: int, stored: Json) -> Json:
    rest = {name: value for name, value in stored.items() if name not in ("tool", "type", "message")}
    shown = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in rest.items())
    return {**stored, "number": number, "rest": shown, "means": RuleSet.of([stored]).lines[0]}


@rule.command("add")
@click.argument("tool")
@click.argument("type_", metavar="TYPE")
@click.argument("fields", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--priority", type=int, metavar="N", help="0 to 255; the highest is judged first.  [default: 5]")
@click.option("--message", metavar="TEXT", help="Words of yours that the agent is told with the rule.")
@constellation_option
@agent_option
@connected
async def add(
    api: Api,
    output: Output,
    tool: str,
    type_: str,
    fields: tuple[str, ...],
    priority: int | None,
    message: str | None,
    constellation: str,
    agent: str,
) -> ExitCode:
    """Add a rule about TOOL, a name or a pattern such as 'web_*'.

    \b
    TYPE and what it takes, with examples of FIELD=VALUE (JSON, or just words; names with commas between):
      exit_loop, continue_loop, needed, required_before_exit
      start_constraint         args='{"query": "today"}'
      required_before_exit_if  condition='{"tool_called": "web"}'
      requires_preceding, requires_following   tools=recall,search
      child, parent            children=search,recall
      conditional              outputs='{"found": "send_message"}' default=search strict=true
      exclusive_groups         groups='[["web", "shell"]]'
      max_calls count=3, cooldown seconds=60, periodic seconds=86400
      requires_consent         scope=mail
      allowed_operations       operations=read,append
    """
    given: Json = {"tool": tool, "type": type_, **field_values(type_, fields)}
    given.update({name: value for name, value in (("priority", priority), ("message", message)) if value is not None})

    def added(found: Json) -> Json:
        return {"tool_rules": RuleSet.of([*RuleSet.of(found["tool_rules"]).to_json(), given]).to_json()}

    changed = await api.change(path("constellations", constellation, "agents", agent), added)
    rules = RuleSet.of(changed["tool_rules"])
    output.data(rules.to_json()[-1])
    output.say(f"Added rule {len(rules.rules)} of {changed['name']}: {RuleSet(rules.rules[-1:]).lines[0]}")
    _warn(output, changed)
    return None


def field_values(kind: str, fields: tuple[str, ...]) -> Json:
    """The fields that were written as FIELD=VALUE: JSON where it is that, else words, where a list is wanted split at
    commas.

    Raises:
        click.UsageError: one has no `=`.
    """
    types = get_type_hints(KINDS[OTHER_NAMES[kind]]) if kind in OTHER_NAMES else {}
    given: Json = {}
    for text in fields:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.UsageError(f"What a rule takes is written FIELD=VALUE, such as count=3; got {text!r}.")
        given[name] = _value(types.get(name), value)
    return given


def _value(type_: Any, text: str) -> Value:
    if type_ == tuple[str, ...] and not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    if type_ == str | None:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


@rule.command("remove")
@click.argument("number", type=click.IntRange(min=1))
@constellation_option
@agent_option
@connected
async def remove(api: Api, output: Output, number: int, constellation: str, agent: str) -> ExitCode:
    """Remove the rule with this NUMBER in `pattern rule list`."""
    meant: list[Json] = []

    def without(found: Json) -> Json:
        stored = RuleSet.of(found["tool_rules"]).to_json()
        if number > len(stored):
            raise click.UsageError(
                f"There is no rule {number}; {found['name']} has {len(stored)}: see pattern rule list."
            )
        gone = stored.pop(number - 1)
        if meant and meant != [gone]:
            raise Conflict("somebody changed the rules in this moment; see pattern rule list for their numbers now")
        meant[:] = [gone]
        return {"tool_rules": stored or None}

    changed = await api.change(path("constellations", constellation, "agents", agent), without)
    left = len(RuleSet.of(changed["tool_rules"]).rules)
    output.data(meant[0])
    output.say(f"Removed the rule {meant[0]['type']} about {meant[0]['tool']}; {left} left.")
    return None


def _warn(output: Output, agent: Json) -> None:
    for warning in agent["rule_warnings"]:
        output.note(f"Note: {warning}.")
