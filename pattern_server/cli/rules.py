"""`pattern rule …`: tool rules, which limit or order tool calls."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_type_hints

import click

from pattern_core.errors import Conflict
from pattern_core.rules.kinds import KINDS
from pattern_core.rules.rule import ToolRule
from pattern_core.rules.ruleset import OTHER_NAMES, RuleSet
from pattern_db.columns import Json as Value
from pattern_server.cli.agents import note_warnings
from pattern_server.cli.client import Json, json_or_words
from pattern_server.cli.command import Home, PlainGroup, agent_option
from pattern_server.cli.output import Output

COLUMNS = ("number", "tool", "type?", "rest?", "means*")
OF_ALL = ("tool", "priority", "message")  # fields that rules of every kind have


def _fields(kind: type[ToolRule]) -> str:
    """Return the fields of a kind in addition to `OF_ALL`: `outputs= [default=]`."""
    own = [field for field in dataclasses.fields(kind) if field.name not in OF_ALL]
    is_needed = {field.name: field.default is field.default_factory is dataclasses.MISSING for field in own}
    return " ".join(f"{name}=" if needed else f"[{name}=]" for name, needed in is_needed.items())


KINDS_HELP = "\n".join(f"  {name:<24} {_fields(kind)}".rstrip() for name, kind in KINDS.items())
ADD_HELP = f"""Add a rule about TOOL, a name or a pattern such as 'web_*'.

Each TYPE has its own fields, given as FIELD=VALUE; those in brackets are optional. Separate names with commas
(tools=recall,search), write texts and numbers as they are (count=3), and anything else as JSON
(condition='{{"tool_called": "web"}}').

\b
{KINDS_HELP}
"""

rule = PlainGroup("rule", help="Tool rules, which limit or order the tool calls of an agent.")


@rule.add("list", "-a ada")
@agent_option
async def list_all(home: Home, output: Output, agent: str) -> None:
    """List an agent's rules, with their numbers and meaning."""
    found = await home.get("agents", agent)
    rules = RuleSet.of(found["tool_rules"])
    stored = rules.to_json()
    if output.is_json:
        output.data(stored)
        return
    hint = f"There are no rules yet. Add one: pattern rule add TOOL TYPE -c {home.name} -a {agent}"
    output.table(COLUMNS, [_row(number, one) for number, one in enumerate(stored, 1)], empty=hint)
    note_warnings(output, found)


def _row(number: int, stored: Json) -> Json:
    rest = {name: value for name, value in stored.items() if name not in ("tool", "type", "message")}
    shown = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in rest.items())
    return {**stored, "number": number, "rest": shown, "means": RuleSet.of([stored]).lines[0]}


@rule.add("add", "'web_*' max_calls count=3 -a ada", help=ADD_HELP)
@click.argument("tool")
@click.argument("type_", metavar="TYPE")
@click.argument("fields", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--priority", type=int, metavar="N", help="0 to 255; higher ones are checked first.  [default: 5]")
@click.option("--message", metavar="TEXT", help="A text that the agent reads with the rule.")
@agent_option
async def add(
    home: Home, output: Output, tool: str, type_: str, fields: tuple[str, ...], agent: str, **options: Any
) -> None:
    """Add a rule; `ADD_HELP` is its help."""
    given: Json = {"tool": tool, "type": type_, **field_values(type_, fields)}
    given |= {name: value for name, value in options.items() if value is not None}

    def added(found: Json) -> Json:
        return {"tool_rules": RuleSet.of([*RuleSet.of(found["tool_rules"]).to_json(), given]).to_json()}

    changed = await home.change("agents", agent, by=added)
    rules = RuleSet.of(changed["tool_rules"])
    words = f"Added rule {len(rules.rules)} of {changed['name']}: {RuleSet(rules.rules[-1:]).lines[0]}"
    output.result(rules.to_json()[-1], words)
    note_warnings(output, changed)


def field_values(kind: str, fields: tuple[str, ...]) -> Json:
    """Return the fields that were given as FIELD=VALUE: JSON, or text; for a list of names, text split at commas.

    Raises:
        click.UsageError: one has no `=`.
    """
    types = get_type_hints(KINDS[OTHER_NAMES[kind]]) if kind in OTHER_NAMES else {}
    given: Json = {}
    for text in fields:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{text!r} is not FIELD=VALUE. Write it as in count=3.")
        given[name] = _value(types.get(name), value)
    return given


def _value(type_: Any, text: str) -> Value:
    if type_ == tuple[str, ...] and not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    if type_ == str | None:
        return text
    return json_or_words(text)


@rule.add("remove", "2 -a ada")
@click.argument("number", type=click.IntRange(min=1))
@agent_option
async def remove(home: Home, output: Output, number: int, agent: str) -> None:
    """Remove the rule with this NUMBER in `pattern rule list`."""
    meant: list[Json] = []

    def without(found: Json) -> Json:
        stored = RuleSet.of(found["tool_rules"]).to_json()
        if number > len(stored):
            raise click.UsageError(
                f"There is no rule {number}: {found['name']} has {len(stored)}. See pattern rule list."
            )
        gone = stored.pop(number - 1)
        if meant and meant != [gone]:
            raise Conflict("the rules were changed by someone else. See pattern rule list for the new numbers")
        meant[:] = [gone]
        return {"tool_rules": stored or None}

    changed = await home.change("agents", agent, by=without)
    left = len(RuleSet.of(changed["tool_rules"]).rules)
    output.result(meant[0], f"Removed the rule {meant[0]['type']} about {meant[0]['tool']}; {left} left.")
