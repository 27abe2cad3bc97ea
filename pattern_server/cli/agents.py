"""`pattern agent …`: the agents of a constellation."""

from __future__ import annotations

from typing import Any

import click

from pattern_server.cli.agent_fields import (
    body_of,
    changed_config,
    changed_tools,
    fields,
    model_lines,
    settings_in,
    trouble,
)
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("name", "status", "model_provider", "model_name", "description", "id")


@click.group()
def agent() -> None:
    """Agents: instructions, a model, tools and memory."""


def block_of(text: str) -> Json:
    """The block in `LABEL=TEXT`.

    Raises:
        click.UsageError: there is no `=`, or no label before it.
    """
    label, sign, content = text.partition("=")
    if not sign or not label.strip():
        raise click.UsageError(f"--memory takes LABEL=TEXT, such as human='Likes tea.'; got {text!r}.")
    return {"label": label.strip(), "content": content}


@agent.command("create")
@click.argument("name")
@constellation_option
@fields
@click.option("--memory", multiple=True, metavar="LABEL=TEXT", help="A memory block to begin with; repeatable.")
@connected
async def create(
    api: Api,
    output: Output,
    name: str,
    constellation: str,
    memory: tuple[str, ...],
    settings: tuple[str, ...],
    **given: Any,
) -> ExitCode:
    """Make an agent called NAME."""
    body = {"name": name, **body_of(**given)}
    if settings:
        body["config"] = changed_config({}, settings)
    if memory:
        body["memory"] = [block_of(text) for text in memory]
    made = await api.call("POST", path("constellations", constellation, "agents"), body=body)
    output.data(made)
    output.say(f"Created the agent {made['name']} ({made['model_provider']}/{made['model_name']}).")
    output.say(f"Next: pattern chat -c {constellation} --agent {made['name']}")
    await _warn(api, output, constellation, made)
    return None


async def _warn(api: Api, output: Output, constellation: str, agent: Json) -> None:
    """Say what in an agent's rules contradicts itself or its tools, and what is wrong with its model."""
    for warning in agent["rule_warnings"]:
        output.note(f"Note: {warning}.")
    facts = await api.get(path("constellations", constellation, "agents", agent["id"], "model"))
    for sentence in trouble(facts):
        output.note(f"Note: {sentence}")


@agent.command("list")
@constellation_option
@connected
async def list_all(api: Api, output: Output, constellation: str) -> ExitCode:
    """List the agents of a constellation."""
    rows = await api.pages(path("constellations", constellation, "agents"))
    output.table(COLUMNS, rows, empty=f"There is no agent yet: pattern agent create NAME -c {constellation}")
    return None


@agent.command("show")
@click.argument("name")
@constellation_option
@connected
async def show(api: Api, output: Output, name: str, constellation: str) -> ExitCode:
    """Show one agent, by name or id: what it is, its settings, and what is known of its model."""
    where = path("constellations", constellation, "agents", name)
    found, facts = await api.get(where), await api.get(f"{where}/model")
    if output.is_json:
        output.data({**found, "model": facts})
        return None
    rules = found["tool_rules"]
    shown = {
        "config": "\n".join(settings_in(found["config"]))
        if found["config"]
        else "the defaults; pattern agent edit --config changes them",
        "tool_rules": f"{len(rules)}; pattern rule list shows them" if rules else None,
    }
    warnings = found.pop("rule_warnings")
    output.record({**found, **shown, "model": "\n".join(model_lines(facts))})
    for warning in warnings:
        output.note(f"Note: {warning}.")
    return None


@agent.command("edit")
@click.argument("name")
@constellation_option
@click.option("--name", "new_name", metavar="NAME", help="A new name.")
@click.option("--add-tool", "added", multiple=True, metavar="NAME", help="One tool more; repeatable.")
@click.option("--drop-tool", "dropped", multiple=True, metavar="NAME", help="One tool less; repeatable.")
@fields
@connected
async def edit(
    api: Api,
    output: Output,
    name: str,
    constellation: str,
    new_name: str | None,
    added: tuple[str, ...],
    dropped: tuple[str, ...],
    settings: tuple[str, ...],
    **given: Any,
) -> ExitCode:
    """Change an agent; what is not given stays as it is."""
    body = body_of(**given)
    if "enabled_tools" in body and (added or dropped):
        raise click.UsageError("--tool names all tools; --add-tool and --drop-tool change some: give one or the other.")
    if new_name is not None:
        body["name"] = new_name
    if not (body or settings or added or dropped):
        raise click.UsageError("Nothing to change was given; see --help for what can be.")

    def changes(found: Json) -> Json:
        if settings:
            body["config"] = changed_config(found["config"], settings)
        if added or dropped:
            body["enabled_tools"] = changed_tools(found["enabled_tools"], added, dropped)
        return body

    changed = await api.change(path("constellations", constellation, "agents", name), changes)
    output.data(changed)
    output.say(f"Changed {changed['name']}: {', '.join(name.replace('_', ' ') for name in body)}.")
    await _warn(api, output, constellation, changed)
    return None


@agent.command("archive")
@click.argument("name")
@constellation_option
@connected
async def archive(api: Api, output: Output, name: str, constellation: str) -> ExitCode:
    """Let an agent rest: it keeps everything and answers no more."""
    where = path("constellations", constellation, "agents", name)
    changed = await api.call("PATCH", where, body={"status": "archived"})
    output.data(changed)
    output.say(f"Archived {changed['name']}.")
    return None


@agent.command("compact")
@click.argument("name")
@constellation_option
@connected
async def compact(api: Api, output: Output, name: str, constellation: str) -> ExitCode:
    """Take the older part of an agent's conversation out of its prompt, leaving a summary. Nothing is deleted."""
    made = await api.call("POST", path("constellations", constellation, "agents", name, "compact"))
    output.data(made)
    if made["messages"]:
        output.say(
            f"Archived {made['messages']} messages of {name}: {made['tokens_before']} tokens became"
            f" {made['tokens_after']}. pattern history summaries -c {constellation} -a {name} shows what is kept."
        )
    else:
        output.say(f"There is nothing in the conversation of {name} that could leave.")
    if made["trouble"]:
        output.note(f"There is no summary: {made['trouble']}.")
    return None


@agent.command("delete")
@click.argument("name")
@constellation_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
async def delete(api: Api, output: Output, name: str, constellation: str, yes: bool) -> ExitCode:
    """Delete an agent with its messages and its memory."""
    found = await api.get(path("constellations", constellation, "agents", name))
    if not yes:
        output.confirm(f"Delete {found['name']} with everything that it remembers?", flag="--yes")
    await api.call("DELETE", path("constellations", constellation, "agents", found["id"]))
    output.data({"deleted": found["id"]})
    output.say(f"Deleted {found['name']}.")
    return None
