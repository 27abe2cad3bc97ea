"""`pattern memory list|show|create|settings|pin|unpin|delete`: blocks as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pattern_core.errors import InvalidInput
from pattern_db.enums import BlockType, Permission
from pattern_server.cli.client import Api, Json
from pattern_server.cli.command import ExitCode, connected
from pattern_server.cli.memory.place import Place, filled, placed, schema_name
from pattern_server.cli.output import Output

COLUMNS = ("label", "kind", "block_type", "permission", "chars", "version", "pinned", "description")
TYPES = click.Choice([kind.value for kind in BlockType])
PERMISSIONS = click.Choice([permission.value for permission in Permission])


@click.command("list")
@connected
@placed
async def list_all(api: Api, output: Output, place: Place) -> ExitCode:
    """List the blocks that an agent sees, or with --everyone those that all see."""
    blocks = await api.pages(place.at())
    rows = blocks if output.is_json else [_row(block) for block in blocks]
    empty = f"{place.whose} has no memory block yet: pattern memory edit LABEL {place.options} makes one."
    output.table(COLUMNS, rows, empty=empty)
    for block in blocks:
        if block.get("damaged"):
            output.note(f"{block['label']} is damaged and cannot be opened: {block['damaged']}")
    return None


def _row(block: Json) -> Json:
    return {**block, "kind": schema_name(block).lower(), "chars": filled(block)}


@click.command("show")
@click.argument("label")
@click.option("--version", type=click.IntRange(min=0), metavar="N", help="As it was at that version.")
@connected
@placed
async def show(api: Api, output: Output, place: Place, label: str, version: int | None) -> ExitCode:
    """Show the block LABEL: its content, and nothing else unless --json is given."""
    block = await api.get(place.at(label), version=version)
    output.data(block)
    output.say(block["content"].removesuffix("\n"))
    return None


@click.command("create")
@click.argument("label")
@click.option("--content", metavar="TEXT", help="What it says at first.")
@click.option("--template", metavar="NAME", help="A ready form, such as persona, human, scratchpad or task_list.")
@click.option("--schema", metavar="JSON|FILE", help="What it holds, such as '{\"List\": {}}'.  [default: text]")
@click.option("--type", "block_type", type=TYPES, help="[default: core]")
@click.option("--permission", type=PERMISSIONS, help="What the agent may do with it.  [default: read_write]")
@click.option("--limit", "char_limit", type=click.IntRange(min=1), metavar="N", help="Characters at most.")
@click.option("--description", metavar="TEXT", help="What it is for; the agent reads this.")
@click.option("--pinned", is_flag=True, default=None, help="Shown to the agent all the time, though not core.")
@connected
@placed
async def create(
    api: Api, output: Output, place: Place, label: str, content: str | None, schema: str | None, **given: Any
) -> ExitCode:
    """Make the block LABEL; refused if there is one already."""
    body = {name: value for name, value in given.items() if value is not None}
    if schema is not None:
        body["schema"] = schema_of(schema)
    if content is not None or not (schema or given["template"]):
        body["content"] = content or ""
    made = await api.call("PUT", place.at(label), body=body, headers={"If-None-Match": "*"})
    output.data(made)
    output.say(f"Created {label}, a {schema_name(made).lower()} block of {place.whose}.")
    return None


def schema_of(text: str) -> object:
    """A schema given as JSON, as the name of a simple one (`Text`), or as the path of a file with JSON.

    Raises:
        InvalidInput: it is none of these.
    """
    source = text
    if not text.lstrip().startswith("{"):
        file = Path(text)
        if not file.is_file():
            return text
        source = file.read_text(encoding="utf-8")
    try:
        return json.loads(source)
    except ValueError as error:
        raise InvalidInput(
            f"the schema is not JSON: {error}; try '{{\"List\": {{}}}}', or the path of a file"
        ) from None


@click.command("settings")
@click.argument("label")
@click.option("--label", "new_label", metavar="LABEL", help="A new label.")
@click.option("--description", metavar="TEXT", help="What it is for; the agent reads this.")
@click.option("--type", "block_type", type=TYPES, help="core is always shown, archival is only found.")
@click.option("--permission", type=PERMISSIONS, help="What the agent may do with it.")
@click.option("--limit", "char_limit", type=click.IntRange(min=1), metavar="N", help="Characters at most.")
@connected
@placed
async def settings(api: Api, output: Output, place: Place, label: str, new_label: str | None, **given: Any) -> ExitCode:
    """Change how the block LABEL is kept; its content stays."""
    body = {name: value for name, value in {"label": new_label, **given}.items() if value is not None}
    if not body:
        raise click.UsageError("Nothing to change was given; see --help for what can be.")
    block = await api.call("PATCH", place.at(label), body=body)
    output.data(block)
    output.say(f"Changed {block['label']}: {', '.join(body)}.")
    return None


@click.command("pin")
@click.argument("label")
@connected
@placed
async def pin(api: Api, output: Output, place: Place, label: str) -> ExitCode:
    """Show the working block LABEL to the agent all the time."""
    block = await api.call("PATCH", place.at(label), body={"pinned": True})
    output.data(block)
    output.say(f"Pinned {label}.")
    return None


@click.command("unpin")
@click.argument("label")
@connected
@placed
async def unpin(api: Api, output: Output, place: Place, label: str) -> ExitCode:
    """Let the working block LABEL be looked up only when it is needed."""
    block = await api.call("PATCH", place.at(label), body={"pinned": False})
    output.data(block)
    output.say(f"Unpinned {label}.")
    return None


@click.command("delete")
@click.argument("label")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
@placed
async def delete(api: Api, output: Output, place: Place, label: str, yes: bool) -> ExitCode:
    """Take the block LABEL out of the agent's mind."""
    if await api.find(place.at(label)) is None:
        raise InvalidInput(f"{place.whose} has no block {label}: see `pattern memory list {place.options}`")
    if not yes:
        output.confirm(f"Delete the block {label} of {place.whose}?", flag="--yes")
    await api.call("DELETE", place.at(label))
    output.data({"deleted": label})
    output.say(f"Deleted {label}.")
    return None
