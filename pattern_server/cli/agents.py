"""`pattern agent …`: the agents of a constellation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = ("name", "status", "model_provider", "model_name", "description", "id")


@click.group()
def agent() -> None:
    """Agents: instructions, a model, tools and memory."""


def fields(function: F) -> F:
    """The options that describe an agent, as `create` and `edit` take them."""
    for option in (
        click.option("--tool", "tools", multiple=True, metavar="NAME", help="A tool that it may use; repeatable."),
        click.option("--instructions-file", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.option("--instructions", metavar="TEXT", help="Its instructions (the system prompt)."),
        click.option("--model", metavar="NAME", help="The model's name at its provider."),
        click.option("--provider", metavar="NAME", help="anthropic, openai, embedded, or one of pattern.toml's."),
        click.option("--description", metavar="TEXT", help="What it is for, in a sentence."),
    ):
        function = option(function)
    return function


def body_of(
    description: str | None,
    provider: str | None,
    model: str | None,
    instructions: str | None,
    instructions_file: Path | None,
    tools: tuple[str, ...],
) -> Json:
    """The fields that were given, under the API's names.

    Raises:
        click.UsageError: the instructions were given twice.
    """
    if instructions is not None and instructions_file is not None:
        raise click.UsageError("Give --instructions or --instructions-file, not both.")
    if instructions_file is not None:
        instructions = instructions_file.read_text(encoding="utf-8")
    given = {
        "description": description,
        "model_provider": provider,
        "model_name": model,
        "system_prompt": instructions,
        "enabled_tools": list(tools) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


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
    api: Api, output: Output, name: str, constellation: str, memory: tuple[str, ...], **given: Any
) -> ExitCode:
    """Make an agent called NAME."""
    body = {"name": name, **body_of(**given)}
    if memory:
        body["memory"] = [block_of(text) for text in memory]
    made = await api.call("POST", path("constellations", constellation, "agents"), body=body)
    output.data(made)
    output.say(f"Created the agent {made['name']} ({made['model_provider']}/{made['model_name']}).")
    output.say(f"Next: pattern chat -c {constellation} --agent {made['name']}")
    return None


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
    """Show one agent, by name or id."""
    output.record(await api.get(path("constellations", constellation, "agents", name)))
    return None


@agent.command("edit")
@click.argument("name")
@constellation_option
@click.option("--name", "new_name", metavar="NAME", help="A new name.")
@fields
@connected
async def edit(api: Api, output: Output, name: str, constellation: str, new_name: str | None, **given: Any) -> ExitCode:
    """Change an agent; what is not given stays as it is."""
    body = body_of(**given)
    if new_name is not None:
        body["name"] = new_name
    if not body:
        raise click.UsageError("Nothing to change was given; see --help for what can be.")
    changed = await api.call("PATCH", path("constellations", constellation, "agents", name), body=body)
    output.data(changed)
    output.say(f"Changed {changed['name']}: {', '.join(body)}.")
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
