"""`pattern memory …`: the blocks that agents keep in mind, and as files in a folder."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_db.enums import BlockType, Permission
from pattern_server.cli.client import Api, Json, ServerFailed, path
from pattern_server.cli.command import (
    ExitCode,
    Home,
    PlainGroup,
    connected,
    constellation_option,
    json_of,
    local,
    piped,
    yes_option,
)
from pattern_server.cli.memory_edits import (
    CHANGED_MEANWHILE,
    is_text,
    replace,
    schema_name,
    with_field,
    with_more,
    written,
)
from pattern_server.cli.output import Output
from pattern_server.config import Config

COLUMNS = ("label", "kind", "block_type", "permission", "chars", "version", "pinned", "description")
HISTORY_COLUMNS = ("version", "when=created_at", "author", "kind", "summary", "cause")
BLAME_COLUMNS = ("version", "when=created_at", "author", "text")
SHARE_COLUMNS = ("agent", "permission", "since=attached_at")
TYPES = click.Choice([kind.value for kind in BlockType])
PERMISSIONS = click.Choice([permission.value for permission in Permission])
LENT_PERMISSIONS = click.Choice(["read_only", "append", "read_write"])
INTERVAL_S = 30.0
ABSENT = 404

_VERSION = click.IntRange(min=0)


@click.group(cls=PlainGroup)
def memory() -> None:
    """Memory: the labelled blocks that an agent keeps in mind and edits itself."""


@dataclass(frozen=True, slots=True)
class MemoryOf(Home):
    """The memory of one agent (by name or id), or that of all agents. Paths are those below it."""

    agent: str

    @property
    def owner(self) -> str:
        """The owner as it stands in a sentence."""
        return "the constellation" if self.agent == EVERYONE else self.agent

    @property
    def options(self) -> str:
        """The options that lead here again, for hints."""
        return f"-c {self.name} " + ("--everyone" if self.agent == EVERYONE else f"-a {self.agent}")

    def at(self, *below: str) -> str:
        """Return the path of a block by its label and what follows."""
        return path("constellations", self.name, "agents", self.agent, "memory", *below)


def about_memory(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return a command that is called with the `MemoryOf` that its options name, its `Output`, and click's
    parameters.
    """

    @connected
    @constellation_option
    @click.option("-a", "--agent", metavar="NAME", help="The agent, by name or id.")
    @click.option("--everyone", is_flag=True, help="The blocks of the constellation, which all its agents see.")
    @wraps(function)
    async def command(
        api: Api, output: Output, constellation: str, agent: str | None, everyone: bool, **given: Any
    ) -> None:
        if everyone == (agent is not None):
            raise click.UsageError("Say whose memory: -a AGENT, or --everyone for what the constellation shares.")
        await function(MemoryOf(api, constellation, EVERYONE if agent is None else agent), output, **given)

    return command


def filled(block: Json) -> str:
    """Return how full a block is: `120/5000`."""
    return f"{len(block['content'])}/{block['char_limit']}"


@memory.command("list")
@about_memory
async def list_all(kept: MemoryOf, output: Output) -> None:
    """List the blocks that an agent sees, or with --everyone those that all see."""
    blocks = await kept.pages()
    empty = f"{kept.owner} has no memory block yet: pattern memory edit LABEL {kept.options} makes one."
    output.table(COLUMNS, blocks, empty=empty, shown=_row)
    for block in blocks:
        if block.get("damaged"):
            output.note(f"{block['label']} is damaged and cannot be opened: {block['damaged']}")


def _row(block: Json) -> Json:
    return {**block, "kind": schema_name(block).lower(), "chars": filled(block)}


@memory.command("show")
@click.argument("label")
@click.option("--version", type=_VERSION, metavar="N", help="As it was at that version.")
@about_memory
async def show(kept: MemoryOf, output: Output, label: str, version: int | None) -> None:
    """Show the block LABEL: its content, and nothing else unless --json is given."""
    block = await kept.get(label, version=version)
    output.result(block, block["content"].removesuffix("\n"))


@memory.command("create")
@click.argument("label")
@click.option("--content", metavar="TEXT", help="What it says at first.")
@click.option("--template", metavar="NAME", help="A ready form, such as persona, human, scratchpad or task_list.")
@click.option("--schema", metavar="JSON|FILE", help="What it holds, such as '{\"List\": {}}'.  [default: text]")
@click.option("--type", "block_type", type=TYPES, help="[default: core]")
@click.option("--permission", type=PERMISSIONS, help="What the agent may do with it.  [default: read_write]")
@click.option("--limit", "char_limit", type=click.IntRange(min=1), metavar="N", help="Characters at most.")
@click.option("--description", metavar="TEXT", help="What it is for; the agent reads this.")
@click.option("--pinned", is_flag=True, default=None, help="Shown to the agent all the time, though not core.")
@about_memory
async def create(
    kept: MemoryOf, output: Output, label: str, content: str | None, schema: str | None, **given: Any
) -> None:
    """Make the block LABEL; refused if there is one already."""
    body = {name: value for name, value in given.items() if value is not None}
    if schema is not None:
        body["schema"] = schema_of(schema)
    if content is not None or not (schema or given["template"]):
        body["content"] = content or ""
    made = await kept.call("PUT", label, body=body, headers={"If-None-Match": "*"})
    output.result(made, f"Created {label}, a {schema_name(made).lower()} block of {kept.owner}.")


def schema_of(text: str) -> object:
    """Return a schema given as JSON, as the name of a simple one (`Text`), or as the path of a file with JSON.

    Raises:
        click.UsageError: what is given or in the file is no JSON.
    """
    return json_of("--schema", text) if text.lstrip().startswith("{") or Path(text).is_file() else text


@memory.command("edit")
@click.argument("label")
@click.option("--content", metavar="TEXT", help="The whole new content; without it an editor opens, or a pipe is read.")
@about_memory
async def edit(kept: MemoryOf, output: Output, label: str, content: str | None) -> None:
    """Write the whole block LABEL; it is made if there is none. Structured blocks are shown as JSON.

    What others, such as the agent, changed since it was shown to you is kept, and merged with what you changed.
    """
    where = kept.at(label)
    found = await kept.api.find(where)
    before = "" if found is None else written(found[0])
    is_typed = content is None and sys.stdin.isatty()
    if content is not None:
        after = content
    elif is_typed:
        extension = ".md" if found is None or is_text(found[0]) else ".json"
        after = await trio.to_thread.run_sync(_edited, before, extension)
    else:
        after = await piped("to empty the block use --content ''")
    if found and after == before:
        output.result(found[0], "Nothing was changed.")
        return
    block = await replace(kept.api, where, after, found, label=label, keep=is_typed)
    done = "Changed" if found else "Created"
    if found and written(block) != after and block["version"] > found[0]["version"] + 1:
        done = "It was changed meanwhile; both changes are kept in"
    output.result(block, f"{done} {label}: {filled(block)} characters, version {block['version']}.")


def _edited(before: str, extension: str) -> str:
    after = click.edit(before, extension=extension, require_save=True)
    return before if after is None else after


@memory.command("append")
@click.argument("label")
@click.argument("text")
@about_memory
async def append(kept: MemoryOf, output: Output, label: str, text: str) -> None:
    """Add TEXT as a line at the end of the block LABEL, or as an item (JSON, or just words) if it is a list."""
    if not text.strip():
        raise click.UsageError("TEXT is empty: there is nothing to add")
    block = await _changed(kept, label, partial(with_more, text=text))
    output.result(block, f"Added to {label}: {filled(block)} characters, version {block['version']}.")


@memory.command("set")
@click.argument("label")
@click.argument("field")
@click.argument("value")
@about_memory
async def set_field(kept: MemoryOf, output: Output, label: str, field: str, value: str) -> None:
    """Set one FIELD of the structured block LABEL to VALUE: JSON, or just words.

    In a composite block FIELD is SECTION, or SECTION.FIELD.
    """
    block = await _changed(kept, label, partial(with_field, field=field, value=value))
    output.result(block, f"Set {field} of {label}; version {block['version']}.")


async def _changed(kept: MemoryOf, label: str, body_of: Callable[[Json], Json]) -> Json:
    try:
        return await kept.api.change(kept.at(label), body_of, method="PUT")
    except ServerFailed as error:
        if error.status == CHANGED_MEANWHILE:
            raise Conflict(f"{label} is being changed all the time; try again in a moment") from error
        if error.status != ABSENT:
            raise
        hint = f"`pattern memory edit {label} {kept.options}` makes one"
        raise NotFound(f"{kept.owner} has no block {label}; {hint}") from error


@memory.command("settings")
@click.argument("label")
@click.option("--label", "new_label", metavar="LABEL", help="A new label.")
@click.option("--description", metavar="TEXT", help="What it is for; the agent reads this.")
@click.option("--type", "block_type", type=TYPES, help="core is always shown, archival is only found.")
@click.option("--permission", type=PERMISSIONS, help="What the agent may do with it.")
@click.option("--limit", "char_limit", type=click.IntRange(min=1), metavar="N", help="Characters at most.")
@about_memory
async def settings(kept: MemoryOf, output: Output, label: str, new_label: str | None, **given: Any) -> None:
    """Change how the block LABEL is kept; its content stays."""
    body = {name: value for name, value in {"label": new_label, **given}.items() if value is not None}
    if not body:
        raise click.UsageError("Nothing to change was given; see --help for what can be.")
    block = await kept.call("PATCH", label, body=body)
    output.result(block, f"Changed {block['label']}: {', '.join(body)}.")


@memory.command("pin")
@click.argument("label")
@about_memory
async def pin(kept: MemoryOf, output: Output, label: str) -> None:
    """Show the working block LABEL to the agent all the time."""
    output.result(await kept.call("PATCH", label, body={"pinned": True}), f"Pinned {label}.")


@memory.command("unpin")
@click.argument("label")
@about_memory
async def unpin(kept: MemoryOf, output: Output, label: str) -> None:
    """Let the working block LABEL be looked up only when it is needed."""
    output.result(await kept.call("PATCH", label, body={"pinned": False}), f"Unpinned {label}.")


@memory.command("delete")
@click.argument("label")
@yes_option
@about_memory
async def delete(kept: MemoryOf, output: Output, label: str, yes: bool) -> None:
    """Take the block LABEL out of the agent's mind."""
    if await kept.api.find(kept.at(label)) is None:
        raise InvalidInput(f"{kept.owner} has no block {label}: see `pattern memory list {kept.options}`")
    output.confirm(f"Delete the block {label} of {kept.owner}?", yes=yes)
    await kept.call("DELETE", label)
    output.result({"deleted": label}, f"Deleted {label}.")


@memory.command("history")
@click.argument("label")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="So many at most.")
@about_memory
async def history(kept: MemoryOf, output: Output, label: str, limit: int) -> None:
    """Show who changed the block LABEL, when and why, newest first."""
    edits = await kept.pages(label, "history", most=limit)
    output.table(HISTORY_COLUMNS, edits, empty=f"{label} has never been changed.", shown=_edit_row)


def _edit_row(edit: Json) -> Json:
    undone = " (undone)" if edit["undone"] else ""
    # Why it was made, in a few words: `tool block_edit, turn turn_01…`.
    cause = ", ".join(f"{name} {value}" for name, value in edit["cause"].items())
    summary = f"{edit['summary']}{undone}".strip()
    return {**edit, "summary": summary, "cause": cause}


@memory.command("diff")
@click.argument("label")
@click.option("--from", "older", type=_VERSION, metavar="N", help="The older version.  [default: the one before]")
@click.option("--to", "newer", type=_VERSION, metavar="N", help="The newer version.  [default: as it is now]")
@about_memory
async def diff(kept: MemoryOf, output: Output, label: str, older: int | None, newer: int | None) -> None:
    """Show what changed in the block LABEL between two versions."""
    answer = await kept.get(label, "diff", **{"from": older, "to": newer})
    same = f"Versions {answer['from']} and {answer['to']} say the same."
    output.result(answer, answer["diff"].removesuffix("\n") or same)


@memory.command("blame")
@click.argument("label")
@about_memory
async def blame(kept: MemoryOf, output: Output, label: str) -> None:
    """Show for each line of the block LABEL who wrote it, and when."""
    found = await kept.get(label, "blame")
    output.table(BLAME_COLUMNS, found["lines"], empty=f"{label} is empty.", data=found)


_author_option = click.option(
    "--author", metavar="WHO", help="Whose change, as `history` names them.  [default: yours]"
)


@memory.command("undo")
@click.argument("label")
@_author_option
@about_memory
async def undo(kept: MemoryOf, output: Output, label: str, author: str | None) -> None:
    """Take back an author's last change of the block LABEL; what others changed since stays."""
    await _step(kept, output, label, "undo", author)


@memory.command("redo")
@click.argument("label")
@_author_option
@about_memory
async def redo(kept: MemoryOf, output: Output, label: str, author: str | None) -> None:
    """Make the last change that `undo` took back once more."""
    await _step(kept, output, label, "redo", author)


async def _step(kept: MemoryOf, output: Output, label: str, which: str, author: str | None) -> None:
    answer = await kept.call("POST", label, which, body={} if author is None else {"author": author})
    at = f"{label} is at version {answer['block']['version']}, {filled(answer['block'])} characters."
    left = f"{answer['undo_remaining']} more to undo, {answer['redo_remaining']} to redo."
    output.result(answer, f"{answer['note']}: {at}", left)


@memory.command("rollback")
@click.argument("label")
@click.argument("version", type=_VERSION)
@about_memory
async def rollback(kept: MemoryOf, output: Output, label: str, version: int) -> None:
    """Let the block LABEL say again what it said at VERSION. It is a new change: `undo` takes it back."""
    block = await kept.call("POST", label, "rollback", body={"version": version})
    output.result(block, f"{label} says again what it said at version {version}; it is at version {block['version']}.")


@memory.command("repair")
@click.argument("label")
@about_memory
async def repair(kept: MemoryOf, output: Output, label: str) -> None:
    """Bring back the block LABEL, whose stored bytes are damaged, from what is known of it.

    It becomes a new version. The bytes that cannot be read are put aside in the file, and no history goes.
    """
    answer = await kept.call("POST", label, "repair")
    block = answer["block"]
    output.result(answer, f"{answer['note']}. {label} is at version {block['version']}, {filled(block)} characters.")


@memory.command("share")
@click.argument("label")
@click.argument("with_agent", metavar="[AGENT]", required=False)
@click.option("--permission", type=LENT_PERMISSIONS, default="read_only", show_default=True, help="What AGENT may do.")
@about_memory
async def share(kept: MemoryOf, output: Output, label: str, with_agent: str | None, permission: str) -> None:
    """Let AGENT see the block LABEL as its own; without AGENT, show who sees it."""
    if with_agent is None:
        shares = (await kept.get(label, "share"))["items"]
        output.table(SHARE_COLUMNS, shares, empty=f"{label} is not shared.")
        return
    shared = await kept.call("POST", label, "share", body={"agent": with_agent, "permission": permission})
    output.result(shared, f"{with_agent} sees {label} now ({permission}).")


@memory.command("unshare")
@click.argument("label")
@click.argument("from_agent", metavar="AGENT")
@about_memory
async def unshare(kept: MemoryOf, output: Output, label: str, from_agent: str) -> None:
    """Take the block LABEL out of AGENT's mind again; its owner keeps it."""
    await kept.call("DELETE", label, "share", from_agent)
    output.result({"unshared": label, "agent": from_agent}, f"{from_agent} does not see {label} any more.")


@memory.command("sync")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@constellation_option
@click.option("-a", "--agent", "agents", multiple=True, metavar="NAME", help="Only this agent's blocks; repeatable.")
@click.option("--everyone", is_flag=True, help="Beside --agent, also the blocks that all agents see.")
@click.option("--once", is_flag=True, help="Bring both sides together once, and end.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--delete", "deletes", is_flag=True, help="A file that is deleted takes its block with it.")
@click.option("--yes", is_flag=True, help="Do not ask about --delete.")
@click.option("--interval", type=click.FloatRange(1, 3600), default=INTERVAL_S, show_default=True, metavar="SECONDS",
              help="How often to look at everything, besides reacting to changes.")  # fmt: skip
@local
def sync(
    config: Config,
    output: Output,
    folder: Path,
    constellation: str,
    agents: tuple[str, ...],
    everyone: bool,
    once: bool,
    dry_run: bool,
    deletes: bool,
    yes: bool,
    interval: float,
) -> ExitCode:
    """Keep the memory of a constellation in DIR as files: Markdown for texts, JSON for the rest.

    Edit them with any editor: what you and the agents change is merged. A file that is deleted or emptied is written
    again; a new Markdown file in an agent's folder becomes a block. What cannot be taken stays as it is, with the
    reason in a file beside it. It runs until Ctrl-C; exit code 3 says that something waits for you.
    """
    if deletes and not dry_run:
        output.confirm(f"Should a file that is deleted in {folder} take its block with it?", yes=yes)
    # Imported now and not above: what merges documents comes with it, which no other command here needs.
    mirror = import_module("pattern_server.cli.mirror.sync")
    wanted = mirror.SyncWanted(
        root=folder,
        constellation=constellation,
        agents=(*agents, EVERYONE) if everyone else agents,
        rules=mirror.Rules(deletes=deletes, is_dry=dry_run),
        interval_s=interval,
    )
    code: ExitCode = trio.run(mirror.once if once or dry_run else mirror.until_stopped, config, output, wanted)
    return code
