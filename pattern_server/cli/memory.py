"""`pattern memory …`: memory blocks, their versions, and their mirror as files in a folder."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import trio

from pattern_core.errors import Conflict, NotFound
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_db.enums import BlockType, Permission
from pattern_server.cli.client import Api, Json, ServerFailed
from pattern_server.cli.command import (
    ABSENT,
    ExitCode,
    Home,
    PlainGroup,
    agent_option,
    in_constellation,
    json_of,
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
from pattern_server.cli.names import AGENT, LABEL, people
from pattern_server.cli.output import Output, is_terminal, spark, when

COLUMNS = ("label", "chars", "kind?", "block_type?", "permission?", "version?", "pinned?", "description?")
BLAME_COLUMNS = ("version?", "author", "when=created_at?", "line", "text*")
SHARE_COLUMNS = ("agent", "permission", "since=attached_at?")
PLOT_CHARS = 40
TYPES = click.Choice([kind.value for kind in BlockType])
PERMISSIONS = click.Choice([permission.value for permission in Permission])
LENT_PERMISSIONS = click.Choice(["read_only", "append", "read_write"])

_VERSION = click.IntRange(min=0)
_limit_option = click.option(
    "--limit", "char_limit", type=click.IntRange(min=1), metavar="N", help="The maximum length in characters."
)

memory = PlainGroup("memory", help="Memory blocks: labelled texts and data that agents see and edit.")


class MemoryOf(Home):
    """The memory of one agent (by name or id), or of the constellation; what lies below it are blocks, by label."""

    def __init__(self, api: Api, name: str, agent: str) -> None:
        super().__init__(api, name, "agents", agent, "memory")
        self.agent = agent

    @property
    def owner(self) -> str:
        """The owner as it appears in a sentence."""
        return "the constellation" if self.agent == EVERYONE else self.agent

    @property
    def options(self) -> str:
        """The options that select it, for hints."""
        return f"-c {self.name} " + ("--everyone" if self.agent == EVERYONE else f"-a {self.agent}")


def about_memory(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return a command called with the `MemoryOf` that its options name, its `Output`, and click's parameters."""

    @in_constellation
    @agent_option
    @click.option("--everyone", is_flag=True, help="The blocks of the constellation, which all its agents see.")
    @wraps(function)
    async def command(home: Home, output: Output, agent: str | None, everyone: bool, **given: Any) -> None:
        if everyone and agent is not None:
            raise click.UsageError("Use --agent or --everyone, not both.")
        await function(MemoryOf(home.api, home.name, agent or EVERYONE), output, **given)

    return command


def filled(block: Json) -> str:
    """Return how full a block is: `120/5000`."""
    return f"{len(block['content'])}/{block['char_limit']}"


@memory.add("list", "-a ada", runs=about_memory)
async def list_all(kept: MemoryOf, output: Output) -> None:
    """List the blocks that an agent sees, or with --everyone those of the constellation."""
    blocks = await kept.pages()
    empty = f"{kept.owner} has no memory blocks yet. Create one: pattern memory edit LABEL {kept.options}"
    output.table(COLUMNS, blocks, empty=empty, shown=_row)
    for block in blocks:
        if block.get("damaged"):
            output.note(f"{block['label']} is damaged: {block['damaged']}")


def _row(block: Json) -> Json:
    return {**block, "kind": schema_name(block).lower(), "chars": filled(block)}


@memory.add("show", "human -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@click.option("--version", type=_VERSION, metavar="N", help="Show this older version.")
async def show(kept: MemoryOf, output: Output, label: str, version: int | None) -> None:
    """Show the content of the block LABEL; with --json, everything about it."""
    block = await kept.get(label, version=version)
    output.result(block, block["content"].removesuffix("\n"))


@memory.add("create", 'goals -a ada --content "Learn Portuguese."', runs=about_memory)
@click.argument("label", type=LABEL)
@click.option("--content", metavar="TEXT", help="The first content.")
@click.option("--template", metavar="NAME", help="A template: persona, human, scratchpad, task_list …")
@click.option("--schema", metavar="JSON|FILE", help="Its structure, such as '{\"List\": {}}'.  [default: text]")
@click.option("--type", "block_type", type=TYPES, help="Where agents see it.  [default: core]")
@click.option("--permission", type=PERMISSIONS, help="What agents may do with it.  [default: read_write]")
@_limit_option
@click.option("--description", metavar="TEXT", help="Its purpose; agents read this.")
@click.option("--pinned", is_flag=True, default=None, help="Always show it to the agent, although it is not core.")
async def create(
    kept: MemoryOf, output: Output, label: str, content: str | None, schema: str | None, **given: Any
) -> None:
    """Create the block LABEL. An existing block is not changed."""
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
        click.UsageError: it is not valid JSON.
    """
    return json_of("--schema", text) if text.lstrip().startswith("{") or Path(text).is_file() else text


@memory.add("edit", 'human -a ada --content "Likes tea."', runs=about_memory)
@click.argument("label", type=LABEL)
@click.option("--content", metavar="TEXT", help="The new content.  [default: from an editor, or the standard input]")
async def edit(kept: MemoryOf, output: Output, label: str, content: str | None) -> None:
    """Edit the block LABEL, or create it. Structured blocks are edited as JSON.

    Changes that agents and others make in the meantime are merged with yours.
    """
    found = await kept.find(label)
    before = "" if found is None else written(found[0])
    is_typed = content is None and sys.stdin.isatty()
    if content is not None:
        after = content
    elif is_typed:
        extension = ".md" if found is None or is_text(found[0]) else ".json"
        after = await trio.to_thread.run_sync(_edited, before, extension)
    else:
        after = await piped("to empty the block, use --content ''")
    if found and after == before:
        output.result(found[0], "Nothing was changed.")
        return
    block = await replace(kept, label, after, found, keep=is_typed)
    done = "Changed" if found else "Created"
    if found and written(block) != after and block["version"] > found[0]["version"] + 1:
        done = "Merged your changes with those of others in"
    output.result(block, f"{done} {label}: {filled(block)} characters, version {block['version']}.")


def _edited(before: str, extension: str) -> str:
    after = click.edit(before, extension=extension, require_save=True)
    return before if after is None else after


@memory.add("append", 'human "Likes tea." -a ada', runs=about_memory)
@click.argument("label", type=LABEL)
@click.argument("text")
async def append(kept: MemoryOf, output: Output, label: str, text: str) -> None:
    """Append TEXT to the block LABEL: as a line, or to a list as an item (JSON or plain text)."""
    if not text.strip():
        raise click.UsageError("TEXT is empty. There is nothing to add.")
    block = await _changed(kept, label, partial(with_more, text=text))
    output.result(block, f"Added to {label}: {filled(block)} characters, version {block['version']}.")


@memory.add("set", "profile city Lisbon -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@click.argument("field")
@click.argument("value")
async def set_field(kept: MemoryOf, output: Output, label: str, field: str, value: str) -> None:
    """Set one FIELD of the structured block LABEL to VALUE: JSON or plain text.

    In a composite block, FIELD is SECTION or SECTION.FIELD.
    """
    block = await _changed(kept, label, partial(with_field, field=field, value=value))
    output.result(block, f"Set {field} of {label}; version {block['version']}.")


async def _changed(kept: MemoryOf, label: str, body_of: Callable[[Json], Json]) -> Json:
    try:
        return await kept.change(label, by=body_of, method="PUT")
    except ServerFailed as error:
        if error.status == CHANGED_MEANWHILE:
            raise Conflict(f"The block {label} is being changed by others. Try again in a moment") from error
        if error.status != ABSENT:
            raise
        hint = f"Create it: pattern memory edit {label} {kept.options}"
        raise NotFound(f"There is no block {label} of {kept.owner}. {hint}") from error


@memory.add("settings", "human -a ada --limit 8000", runs=about_memory)
@click.argument("label", type=LABEL)
@click.option("--label", "new_label", metavar="LABEL", help="A new label.")
@click.option("--description", metavar="TEXT", help="Its purpose; agents read this.")
@click.option("--type", "block_type", type=TYPES, help="core is always shown; archival is only found by search.")
@click.option("--permission", type=PERMISSIONS, help="What agents may do with it.")
@_limit_option
@click.option("--pinned/--unpinned", default=None, help="Always show a working block, or only when it is needed.")
async def settings(kept: MemoryOf, output: Output, label: str, new_label: str | None, **given: Any) -> None:
    """Change the settings of the block LABEL; its content is not changed."""
    body = {name: value for name, value in {"label": new_label, **given}.items() if value is not None}
    if not body:
        raise click.UsageError("No setting was given. Use one of the options below --help.")
    block = await kept.call("PATCH", label, body=body)
    output.result(block, f"Changed {block['label']}: {', '.join(body)}.")


@memory.add("delete", "plans -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@yes_option
async def delete(kept: MemoryOf, output: Output, label: str, yes: bool) -> None:
    """Delete the block LABEL."""
    if await kept.find(label) is None:
        raise NotFound(f"There is no block {label} of {kept.owner}. List them: pattern memory list {kept.options}")
    output.confirm(f"Delete the block {label} of {kept.owner}?", yes=yes)
    await kept.call("DELETE", label)
    output.result({"deleted": label}, f"Deleted {label}.")


@memory.add("history", "human -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many versions.")
async def history(kept: MemoryOf, output: Output, label: str, limit: int) -> None:
    """Show the versions of the block LABEL, newest first: author, time, summary and cause."""
    edits = await kept.pages(label, "history", most=limit)
    output.data(edits)
    await kept.name_people(output)
    if is_terminal() and len(edits) > 1:
        output.say(f"{spark(_per_period(edits))}  {len(edits)} versions, {when(edits[-1]['created_at'])} to now\n")
    for edit in edits:
        undone = ", undone" if edit["undone"] else ""
        output.heading(f"version {edit['version']}, {edit['author']}, {when(edit['created_at'])}{undone}")
        cause = edit["cause"] if "turn" not in edit["cause"] else {"turn": edit["cause"]["turn"]}
        for line in (edit["summary"] or edit["kind"], *(f"{name} {value}" for name, value in cause.items())):
            output.say(f"    {line}")


def _per_period(edits: list[Json]) -> list[int]:
    """Return the numbers of edits in equal periods between the oldest and the newest."""
    times = [datetime.fromisoformat(edit["created_at"]).timestamp() for edit in edits]
    first, length = min(times), max(max(times) - min(times), 0.001)
    counts = Counter(round((one - first) / length * (PLOT_CHARS - 1)) for one in times)
    return [counts[place] for place in range(PLOT_CHARS)]


@memory.add("diff", "human -a ada --from 1 --to 3", runs=about_memory)
@click.argument("label", type=LABEL)
@click.option("--from", "older", type=_VERSION, metavar="N", help="The older version.  [default: the one before]")
@click.option("--to", "newer", type=_VERSION, metavar="N", help="The newer version.  [default: as it is now]")
async def diff(kept: MemoryOf, output: Output, label: str, older: int | None, newer: int | None) -> None:
    """Show the differences between two versions of the block LABEL."""
    answer = await kept.get(label, "diff", **{"from": older, "to": newer})
    same = f"Versions {answer['from']} and {answer['to']} are the same."
    output.result(answer, answer["diff"].removesuffix("\n") or same)


@memory.add("blame", "human -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
async def blame(kept: MemoryOf, output: Output, label: str) -> None:
    """Show the author and the time of each line of the block LABEL."""
    found = await kept.get(label, "blame")
    await kept.name_people(output)
    output.table(BLAME_COLUMNS, found["lines"], empty=f"{label} is empty.", data=found)


_author_option = click.option(
    "--author", metavar="WHO", help="The author of the change, as `history` shows it.  [default: you]"
)


@memory.add("undo", "human -a ada --author ada", runs=about_memory)
@click.argument("label", type=LABEL)
@_author_option
async def undo(kept: MemoryOf, output: Output, label: str, author: str | None) -> None:
    """Undo an author's last change of the block LABEL; later changes of others are kept."""
    await _step(kept, output, label, "undo", author)


@memory.add("redo", "human -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@_author_option
async def redo(kept: MemoryOf, output: Output, label: str, author: str | None) -> None:
    """Redo the last undone change of the block LABEL."""
    await _step(kept, output, label, "redo", author)


async def _step(kept: MemoryOf, output: Output, label: str, which: str, author: str | None) -> None:
    if author is not None:
        users = {name: f"user:{key}" for key, name in (await people(kept.api, kept.name)).items() if key[0] == "u"}
        author = users.get(author, author)
    answer = await kept.call("POST", label, which, body={} if author is None else {"author": author})
    at = f"{label} is at version {answer['block']['version']}, {filled(answer['block'])} characters."
    left = f"{answer['undo_remaining']} more to undo, {answer['redo_remaining']} to redo."
    output.result(answer, f"{answer['note']}: {at}", left)


@memory.add("rollback", "human 3 -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@click.argument("version", type=_VERSION)
async def rollback(kept: MemoryOf, output: Output, label: str, version: int) -> None:
    """Restore the block LABEL to VERSION, as a new version that can be undone."""
    block = await kept.call("POST", label, "rollback", body={"version": version})
    output.result(block, f"Restored {label} to version {version}, as version {block['version']}.")


@memory.add("repair", "human -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
async def repair(kept: MemoryOf, output: Output, label: str) -> None:
    """Repair the damaged block LABEL from what can still be read of it.

    The result is a new version. The damaged bytes are kept aside in the file; the history is kept.
    """
    answer = await kept.call("POST", label, "repair")
    block = answer["block"]
    output.result(answer, f"{answer['note']}. {label} is at version {block['version']}, {filled(block)} characters.")


@memory.add("share", "human bob -a ada --permission append", runs=about_memory)
@click.argument("label", type=LABEL)
@click.argument("with_agent", metavar="[AGENT]", required=False, type=AGENT)
@click.option(
    "--permission", type=LENT_PERMISSIONS, default="read_only", show_default=True, help="What AGENT may do with it."
)
async def share(kept: MemoryOf, output: Output, label: str, with_agent: str | None, permission: str) -> None:
    """Share the block LABEL with AGENT; without AGENT, list who sees it."""
    if with_agent is None:
        shares = (await kept.get(label, "share"))["items"]
        output.table(SHARE_COLUMNS, shares, empty=f"{label} is not shared.")
        return
    shared = await kept.call("POST", label, "share", body={"agent": with_agent, "permission": permission})
    output.result(shared, f"Shared {label} with {with_agent} ({permission}).")


@memory.add("unshare", "human bob -a ada", runs=about_memory)
@click.argument("label", type=LABEL)
@click.argument("from_agent", metavar="AGENT", type=AGENT)
async def unshare(kept: MemoryOf, output: Output, label: str, from_agent: str) -> None:
    """Stop sharing the block LABEL with AGENT; its owner keeps it."""
    await kept.call("DELETE", label, "share", from_agent)
    output.result({"unshared": label, "agent": from_agent}, f"{from_agent} no longer sees {label}.")


@memory.add("sync", "./memory --once")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "-a", "--agent", "agents", multiple=True, metavar="NAME", type=AGENT, help="Only this agent's blocks; repeatable."
)
@click.option("--everyone", is_flag=True, help="With --agent: also the blocks of the constellation.")
@click.option("--once", is_flag=True, help="Synchronise once, and exit.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
async def sync(
    home: Home, output: Output, folder: Path, agents: tuple[str, ...], everyone: bool, once: bool, dry_run: bool
) -> ExitCode:
    """Keep the memory of a constellation in DIR as files: Markdown for texts, JSON for the rest.

    Edit them with any editor: your changes and those of agents are merged. A file that is deleted or emptied is written
    again; a new Markdown file in an agent's folder becomes a block. A change that cannot be stored is left in place,
    and the reason is printed. It runs until Ctrl-C; exit code 3 means that something needs your attention.
    """
    # Late: it imports the code that merges documents, which no other command here needs.
    mirror = import_module("pattern_server.cli.memory_sync")
    work = partial(mirror.once, is_dry=dry_run) if once or dry_run else mirror.until_stopped
    code: ExitCode = await work(home, output, folder, (*agents, EVERYONE) if everyone else agents)
    return code
