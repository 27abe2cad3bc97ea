"""`pattern memory …`: the blocks that an agent keeps in mind."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click
import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_server.cli.client import Api, Json, ServerFailed, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("label", "block_type", "permission", "chars", "version", "pinned", "description")
APPEND_ATTEMPTS_MAX = 5  # somebody else may edit the block between our reading and our writing

agent_option = click.option("-a", "--agent", required=True, metavar="NAME", help="The agent, by name or id.")


@click.group()
def memory() -> None:
    """Memory: the labelled blocks that an agent keeps in mind and edits itself."""


@memory.command("list")
@constellation_option
@agent_option
@connected
async def list_all(api: Api, output: Output, constellation: str, agent: str) -> ExitCode:
    """List an agent's blocks."""
    blocks = await api.pages(path("constellations", constellation, "agents", agent, "memory"))
    rows = blocks if output.is_json else [{**block, "chars": _filled(block)} for block in blocks]
    output.table(COLUMNS, rows, empty=f"{agent} has no memory block yet: pattern memory edit LABEL … makes one.")
    return None


def _filled(block: Json) -> str:
    return f"{len(block['content'])}/{block['char_limit']}"


@memory.command("show")
@click.argument("label")
@constellation_option
@agent_option
@connected
async def show(api: Api, output: Output, label: str, constellation: str, agent: str) -> ExitCode:
    """Show the block LABEL: its content, and nothing else unless --json is given."""
    block = await api.get(path("constellations", constellation, "agents", agent, "memory", label))
    output.data(block)
    output.say(block["content"].removesuffix("\n"))
    return None


@memory.command("edit")
@click.argument("label")
@constellation_option
@agent_option
@click.option("--content", metavar="TEXT", help="The whole new content; without it an editor opens, or a pipe is read.")
@connected
async def edit(api: Api, output: Output, label: str, constellation: str, agent: str, content: str | None) -> ExitCode:
    """Write the block LABEL anew; it is made if there is none.

    Refused if somebody else, the agent for one, changed it since it was shown to you.
    """
    where = path("constellations", constellation, "agents", agent, "memory", label)
    found = await api.find(where)
    before = str(found[0]["content"]) if found else ""
    is_edited = content is None and sys.stdin.isatty()
    typed = partial(_edited, before) if is_edited else sys.stdin.read
    after = await trio.to_thread.run_sync(typed) if content is None else content
    if found and after == before:
        output.data(found[0])
        output.say("Nothing was changed.")
        return None
    block = await replace(api, where, after, found, label=label, keep=is_edited)
    output.data(block)
    output.say(f"{'Changed' if found else 'Created'} {label}: {_filled(block)} characters, version {block['version']}.")
    return None


async def replace(
    api: Api, where: str, content: str, found: tuple[Json, str] | None, *, label: str, keep: bool
) -> Json:
    """Write a block anew if it still is what was `found` (a block and its version, or none); the block then.

    With `keep`, a text that cannot be stored is written to a file in the current folder, and the error names it.

    Raises:
        Conflict: somebody else changed the block meanwhile.
    """
    try:
        return await _put(api, where, content, found)
    except ServerFailed as error:
        if error.status != 412:
            raise
        kept = f" Your text is in {_kept(label, content)}." if keep else ""
        raise Conflict(f"{label} was changed by somebody else meanwhile; look at it and edit again.{kept}") from error


def _edited(before: str) -> str:
    after = click.edit(before, extension=".md", require_save=True)
    return before if after is None else after


def _kept(label: str, content: str) -> Path:
    """Write what somebody typed where it can be found again: the first free name in the current folder."""
    number = 1
    while (target := Path(f"{label}.{number}.md")).exists():
        number += 1
    target.write_text(content, encoding="utf-8")
    return target


async def _put(api: Api, where: str, content: str, found: tuple[Json, str] | None) -> Json:
    # Without a block to replace, the condition is that there still is none (RFC 9110, section 13.1.2).
    headers = {"If-Match": found[1]} if found else {"If-None-Match": "*"}
    block: Json = await api.call("PUT", where, body={"content": content}, headers=headers)
    return block


@memory.command("append")
@click.argument("label")
@click.argument("text")
@constellation_option
@agent_option
@connected
async def append(api: Api, output: Output, label: str, text: str, constellation: str, agent: str) -> ExitCode:
    """Add TEXT as a line at the end of the block LABEL."""
    where = path("constellations", constellation, "agents", agent, "memory", label)
    for _ in range(APPEND_ATTEMPTS_MAX):
        found = await api.find(where)
        if found is None:
            raise NotFound(f"{agent} has no block {label}; `pattern memory edit {label}` makes one")
        before = str(found[0]["content"])
        line = before if not before or before.endswith("\n") else before + "\n"
        try:
            block = await _put(api, where, f"{line}{text}\n", found)
        except ServerFailed as error:
            if error.status != 412:
                raise
            continue
        output.data(block)
        output.say(f"Added to {label}: {_filled(block)} characters, version {block['version']}.")
        return None
    raise Conflict(f"{label} is being changed all the time; try again in a moment")


@memory.command("delete")
@click.argument("label")
@constellation_option
@agent_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
async def delete(api: Api, output: Output, label: str, constellation: str, agent: str, yes: bool) -> ExitCode:
    """Take the block LABEL out of the agent's mind."""
    where = path("constellations", constellation, "agents", agent, "memory", label)
    if await api.find(where) is None:
        raise InvalidInput(f"{agent} has no block {label}: see `pattern memory list`")
    if not yes:
        output.confirm(f"Delete {agent}'s block {label}?", flag="--yes")
    await api.call("DELETE", where)
    output.data({"deleted": label})
    output.say(f"Deleted {label}.")
    return None
