"""`pattern agent …`: agents with their settings (KEY=VALUE) and models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pattern_core.budgets.budget import dollars
from pattern_db.enums import AgentStatus
from pattern_server.cli.client import Json, json_or_words
from pattern_server.cli.command import Home, PlainGroup, json_of, options, yes_option
from pattern_server.cli.names import AGENT
from pattern_server.cli.output import Output
from pattern_server.cli.tools import PROFILES, in_profile

COLUMNS = ("name", "status?", "provider=model_provider?", "model=model_name?", "description?", "id?")
CONFIG_HELP = (
    "A setting, such as limits.steps=20, context_window=32000 or compaction.type=truncate. VALUE is JSON or plain text;"
    " KEY= removes the setting. Repeatable."
)
TOOL_HELP = "A tool, instead of the default ones; repeatable."
PROVIDER_HELP = "anthropic, openai, google, embedded, or a name from pattern.toml."
STATUS = click.Choice([status.value for status in AgentStatus])
INSTRUCTIONS_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# Options that replace a field of an agent, in the order in which changes are reported.
WHOLE_FIELDS = ("description", "model_provider", "model_name", "system_prompt", "enabled_tools", "tool_rules", "force")
RULES_HELP = "Its tool rules: a JSON list, or a file with one; '[]' for none. See also `pattern rule add`."

agent = PlainGroup("agent", help="Agents, each with instructions, a model, tools and memory.")


# What describes an agent, for `create` and `edit`.
fields = options(
    click.option("--description", metavar="TEXT", help="Its purpose, in a sentence."),
    click.option("--provider", "model_provider", metavar="NAME", help=PROVIDER_HELP),
    click.option("--model", "model_name", metavar="NAME", help="The model's name at its provider."),
    click.option("--instructions", "system_prompt", metavar="TEXT", help="Its instructions (the system prompt)."),
    click.option("--instructions-file", type=INSTRUCTIONS_FILE, help="A file with its instructions."),
    click.option("--add-tool", "added", multiple=True, metavar="NAME", help="Add a tool; repeatable."),
    click.option("--drop-tool", "dropped", multiple=True, metavar="NAME", help="Remove a tool; repeatable."),
    click.option("--tool", "enabled_tools", multiple=True, metavar="NAME", help=TOOL_HELP),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=CONFIG_HELP),
    click.option("--rules", "tool_rules", metavar="FILE|JSON", help=RULES_HELP),
    click.option("--force", is_flag=True, help="Accept a provider that is not configured yet."),
)


def block_of(text: str) -> Json:
    """Return the block in `LABEL=TEXT`.

    Raises:
        click.UsageError: there is no `=`, or no label before it.
    """
    label, sign, content = text.partition("=")
    if not sign or not label.strip():
        raise click.UsageError(f"--memory: {text!r} is not LABEL=TEXT. Write it as in human='Likes tea.'")
    return {"label": label.strip(), "content": content}


@agent.add("create", 'ada --instructions "Be brief."')
@click.argument("name")
@fields
@click.option("--memory", multiple=True, metavar="LABEL=TEXT", help="An initial memory block; repeatable.")
async def create(home: Home, output: Output, name: str, memory: tuple[str, ...], **given: Any) -> None:
    """Create an agent called NAME."""
    usual = {"config": {}, "enabled_tools": ["auto"]}
    body = {"name": name, **body_of(given), **changes_of(usual, await _tools(home, given), given)}
    if memory:
        body["memory"] = [block_of(text) for text in memory]
    made = await home.call("POST", "agents", body=body)
    output.result(
        made,
        f"Created the agent {made['name']} ({made['model_provider']}/{made['model_name']}).",
        f"Next: pattern chat -c {home.name} --agent {made['name']}",
    )
    await _warn(home, output, made)


async def _tools(home: Home, given: Json) -> Sequence[Json]:
    """Return the available tools, if they are needed to remove one from a profile."""
    return (await home.get("tools"))["items"] if given["dropped"] else ()


async def _warn(home: Home, output: Output, agent: Json) -> None:
    """Print problems of an agent's rules and model."""
    note_warnings(output, agent)
    for sentence in trouble(await home.get("agents", agent["id"], "model")):
        output.note(f"Note: {sentence}")


def note_warnings(output: Output, agent: Json) -> None:
    """Print contradictions in an agent's rules."""
    for warning in agent["rule_warnings"]:
        output.note(f"Note: {warning}.")


@agent.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the agents of a constellation."""
    rows = await home.pages("agents")
    output.table(COLUMNS, rows, empty=f"There are no agents yet. Create one: pattern agent create NAME -c {home.name}")


@agent.add("show", "ada")
@click.argument("name", type=AGENT)
async def show(home: Home, output: Output, name: str) -> None:
    """Show an agent with its settings and its model."""
    found, facts = await home.get("agents", name), await home.get("agents", name, "model")
    if output.is_json:
        output.data({**found, "model": facts})
        return
    rules, config = found["tool_rules"], "\n".join(settings_in(found["config"]))
    shown = {
        "config": config or "defaults; change them with pattern agent edit --set",
        "tool_rules": f"{len(rules)}; see pattern rule list" if rules else None,
        "model": "\n".join(model_lines(facts)),
    }
    output.record({**{name: value for name, value in found.items() if name != "rule_warnings"}, **shown})
    note_warnings(output, found)


@agent.add("edit", "ada --set limits.steps=20 --add-tool calculator")
@click.argument("name", type=AGENT)
@click.option("--name", "new_name", metavar="NAME", help="A new name.")
@click.option(
    "--status",
    type=STATUS,
    metavar="STATUS",
    help="active, hibernated (until there is something to do) or archived (refuses messages).",
)
@fields
async def edit(home: Home, output: Output, name: str, new_name: str | None, status: str | None, **given: Any) -> None:
    """Change an agent. Settings that are not given stay the same."""
    body = body_of(given)
    body |= {field: value for field, value in (("name", new_name), ("status", status)) if value is not None}
    if not (body.keys() - {"force"} or given["settings"] or given["added"] or given["dropped"]):
        raise click.UsageError("No change was given. Use one of the options below --help.")

    there = await _tools(home, given)

    def changes(found: Json) -> Json:
        body.update(changes_of(found, there, given))
        return body

    changed = await home.change("agents", name, by=changes)
    output.result(
        changed, f"Changed {changed['name']}: {', '.join(name.replace('_', ' ') for name in body if name != 'force')}."
    )
    await _warn(home, output, changed)


@agent.add("archive", "ada")
@click.argument("name", type=AGENT)
async def archive(home: Home, output: Output, name: str) -> None:
    """Archive an agent. Its data is kept; it stops answering."""
    changed = await home.call("PATCH", "agents", name, body={"status": "archived"})
    output.result(changed, f"Archived {changed['name']}.")


@agent.add("compact", "ada")
@click.argument("name", type=AGENT)
async def compact(home: Home, output: Output, name: str) -> None:
    """Replace the older part of the conversation by a summary in the prompt. Nothing is deleted."""
    made = await home.call("POST", "agents", name, "compact")
    if made["messages"]:
        said = (
            f"Archived messages of {name}: {made['messages']}"
            f" (tokens: {made['tokens_before']} → {made['tokens_after']})."
            f" See pattern history summaries -c {home.name} -a {name}."
        )
    else:
        said = f"The conversation of {name} is too short to compact."
    output.result(made, said)
    if made["trouble"]:
        output.note(f"No summary was written: {made['trouble'].removesuffix('.')}.")


@agent.add("delete", "ada")
@click.argument("name", type=AGENT)
@yes_option
async def delete(home: Home, output: Output, name: str, yes: bool) -> None:
    """Delete an agent with its messages and its memory."""
    found = await home.get("agents", name)
    output.confirm(f"Delete {found['name']} with its messages and its memory?", yes=yes)
    await home.call("DELETE", "agents", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['name']}.")


def body_of(given: Json) -> Json:
    """Return the fields that were given completely; `changes_of` has the others.

    Raises:
        click.UsageError: the instructions or the tools were given twice, the instructions' file is empty, or the rules
            cannot be read.
    """
    body = {name: given[name] for name in WHOLE_FIELDS if given[name] not in (None, (), False)}
    if "enabled_tools" in body and (given["added"] or given["dropped"]):
        raise click.UsageError("--tool excludes --add-tool and --drop-tool. It names all tools; they change some.")
    if (file := given["instructions_file"]) is not None:
        if "system_prompt" in body:
            raise click.UsageError("Use --instructions or --instructions-file, not both.")
        body["system_prompt"] = file.read_text(encoding="utf-8")
        if not body["system_prompt"].strip():
            raise click.UsageError(f"{file} is empty. For no instructions, use --instructions ''.")
    if "tool_rules" in body:
        body["tool_rules"] = json_of("--rules", body["tool_rules"])
    return body


def changes_of(found: Json, there: Sequence[Json], given: Json) -> Json:
    """Return the fields that --set, --add-tool and --drop-tool change in an agent as it was `found`; `there` are the
    available tools.

    Raises:
        click.UsageError: as `changed_config` and `changed_tools`.
    """
    changed: Json = {}
    if given["settings"]:
        changed["config"] = changed_config(found["config"], given["settings"])
    if given["added"] or given["dropped"]:
        changed["enabled_tools"] = changed_tools(found["enabled_tools"], given["added"], given["dropped"], there)
    return changed


def changed_config(config: Mapping[str, Any], settings: tuple[str, ...]) -> Json:
    """Return the config with settings given as KEY=VALUE: `limits.steps=20` sets `{"limits": {"steps": 20}}` and keeps
    the other limits; `limits.steps=` removes the key, and the object with its last key.

    Raises:
        click.UsageError: one has no `=`, an unknown key, or a key below a value that is not an object.
    """
    changed: Json = json.loads(json.dumps(config))
    # Late: it imports all rooms that have settings, and few commands need them.
    keys = import_module("pattern_core.agent_settings").KEYS
    for setting in settings:
        key, sign, text = setting.partition("=")
        steps = key.strip().split(".")
        if not sign or not all(steps):
            raise click.UsageError(f"--set: {setting!r} is not KEY=VALUE. Write it as in limits.steps=20.")
        if steps[0] not in keys:
            raise click.UsageError(f"--set: there is no setting {steps[0]!r}. Settings: {', '.join(keys)}.")
        _put(changed, steps, text)
    return changed


def changed_tools(
    enabled: Sequence[str], added: Sequence[str], dropped: Sequence[str], tools: Sequence[Json] = ()
) -> list[str]:
    """Return an agent's tools with some added and others removed. A profile without one of its tools is replaced by the
    names of the others.

    Raises:
        click.UsageError: it does not have a tool to remove.
    """
    if dropped:
        of = {profile: [tool["name"] for tool in tools if in_profile(tool, profile)] for profile in PROFILES}
        enabled = [name for one in enabled for name in (of.get(one, [one]) if one not in dropped else [one])]
    absent = [name for name in dropped if name not in enabled]
    if absent:
        raise click.UsageError(f"--drop-tool: the agent has no {', '.join(absent)}. It has {', '.join(enabled)}")
    return [name for name in dict.fromkeys((*enabled, *added)) if name not in dropped]


def _put(place: Json, steps: list[str], text: str) -> None:
    name, *rest = steps
    if not rest:
        if text:
            place[name] = json_or_words(text)
        else:
            place.pop(name, None)
        return
    inner = place.setdefault(name, {})
    if not isinstance(inner, dict):
        raise click.UsageError(f"--set: {name} is {json.dumps(inner)}, which has no keys. Set all of it as JSON.")
    _put(inner, rest, text)
    if not inner:
        del place[name]


def settings_in(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the settings of a config, in the form that `--set` accepts."""
    for name, value in config.items():
        if isinstance(value, dict) and value and name != "response_schema":
            yield from settings_in(value, f"{before}{name}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{before}{name}={shown}"


def model_lines(facts: Json) -> Iterator[str]:
    """Yield lines about an agent's model: its window, prices, abilities and problems."""
    window = f"{facts['window']:,} tokens ({facts['window_source']})"
    if facts["prompt_window"] < facts["window"]:
        window += f", of which this agent uses {facts['prompt_window']:,}"
    yield f"window {window}; answers up to {facts['output_max']:,}"
    if facts["tool_profile"] is not None:
        names = ", ".join(facts["offered_tools"])
        yield f"tool profile {facts['tool_profile']} ({facts['tool_profile_reason']}): {names}"
    yield f"price {_price(facts)}"
    able = [name for name in ("tools", "images", "reasoning") if facts[name]]
    yield f"supports {', '.join(able)}" if able else "supports only text"
    yield from trouble(facts)


def trouble(facts: Json) -> Iterator[str]:
    """Yield problems of an agent's model, each as a sentence with advice."""
    provider, model = facts["provider"], facts["model"]
    section = f'[providers.{provider}.models."{model}"]'
    if not facts["is_configured"]:
        yield (
            f"The provider {provider} is not configured: set its key in the environment and restart the server, or"
            f" write a section [providers.{provider}] in pattern.toml and run `pattern up`."
        )
    if not facts["is_known"]:
        yield (
            f"The model {model} is unknown; a window of {facts['window']:,} tokens is assumed. To change it, set"
            f" window = … below {section} in pattern.toml."
        )
    elif facts["window_source"] in ("assumed", "unasked") and (facts["trained_window"] or 0) > facts["window"]:
        yield (
            f"The model supports up to {facts['trained_window']:,} tokens, but its server may allow fewer;"
            f" {facts['window']:,} are assumed. To change it, set window = … below {section} in pattern.toml."
        )

    if problem := facts.get("window_trouble"):
        yield f"The agent cannot answer: {problem}."


def _price(facts: Json) -> str:
    if facts["input_price"] is None or facts["output_price"] is None:
        return "unknown; usage is counted in tokens only"
    cached = "" if facts["cache_read_price"] is None else f" ({dollars(facts['cache_read_price'])} cached)"
    prices = f"{dollars(facts['input_price'])} in{cached}, {dollars(facts['output_price'])} out per million tokens"
    return prices + (f", as of {facts['as_of']}" if facts["as_of"] else "")
