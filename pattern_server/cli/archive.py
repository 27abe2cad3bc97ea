"""`pattern archive …`: long-term entries of an agent, outside the prompt."""

from __future__ import annotations

import sys
from typing import Any

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, agent_option, piped, yes_option
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output, cut, in_line, when
from pattern_server.cli.search import mode_of

COLUMNS = ("id", "stored=created_at?", "tags?", "text*")
TEXT_CHARS_MAX = 100  # of an entry in a list
LIMIT_MAX = 500

ENTRY = Named("constellations/{constellation}/agents/{agent}/archival", field="id", include_superseded="true")
tags_option = click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag of the entry; repeatable.")
force_option = click.option("--force", is_flag=True, help="Store it even if an entry says nearly the same.")


archive = PlainGroup(
    "archive",
    help="The archive: long-term entries outside the prompt. They are superseded when no longer true, not"
    " overwritten.\n\nThe archive of the whole constellation is that of the agent _constellation_.",
)


@archive.add("add", '"Ruth moved to Lisbon." -a ada --tag people')
@click.argument("content", required=False)
@agent_option
@tags_option
@force_option
async def add(home: Home, output: Output, content: str | None, agent: str, tags: tuple[str, ...], force: bool) -> None:
    """Store CONTENT, or the standard input, as an entry."""
    entry = await _store(home, agent, content=content, tags=tags, force=force)
    output.result(entry, f"Stored as {entry['id']}." if entry["is_new"] else f"Already stored as {entry['id']}.")


@archive.add("list", "-a ada --tag people")
@agent_option
@click.option("--tag", metavar="TAG", help="Only entries with this tag.")
@click.option("--all", "is_all", is_flag=True, help="Include superseded and ended entries.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True, help="How many entries.")
async def list_all(home: Home, output: Output, agent: str, tag: str | None, is_all: bool, limit: int) -> None:
    """List entries, newest first."""
    entries = await home.pages("agents", agent, "archival", most=limit, tag=tag, include_superseded=is_all)
    empty = f"The archive of {agent} is empty. Add an entry: pattern archive add TEXT -c {home.name} -a {agent}"
    output.table(COLUMNS, entries, empty=empty, shown=_row)


@archive.add("show", "arch_01k -a ada")
@click.argument("entry_id", metavar="ID", type=ENTRY)
@agent_option
async def show(home: Home, output: Output, entry_id: str, agent: str) -> None:
    """Show the entry ID with its details."""
    output.record(await home.get("agents", agent, "archival", entry_id))


@archive.add("search", "Lisbon -a ada")
@click.argument("query", nargs=-1, required=True)
@agent_option
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=10, show_default=True, help="How many entries.")
async def search(home: Home, output: Output, query: tuple[str, ...], agent: str, limit: int) -> None:
    """Find entries by QUERY, best first. To search everything, see `pattern search`."""
    body: Json = {"query": " ".join(query), "kinds": ["archival"], "agents": [agent], "limit": limit}
    body.update(mode_of(home, output, None))
    answer = await home.call("POST", "search", body=body)
    hits = [{**hit, "text": in_line(hit["snippet"])} for hit in answer["hits"]]
    output.table(("id", "stored=created_at?", "text*"), hits, empty="Nothing was found.", data=answer)


@archive.add("history", "arch_01k -a ada")
@click.argument("entry_id", metavar="ID", type=ENTRY)
@agent_option
async def history(home: Home, output: Output, entry_id: str, agent: str) -> None:
    """Show what the entry ID superseded, and what superseded it; oldest first."""
    entries = (await home.get("agents", agent, "archival", entry_id, "history"))["items"]
    output.table(("id", "stored=created_at?", "until?", "text*"), entries, empty="Nothing was found.", shown=_row)


@archive.add("supersede", 'arch_01k "Ruth moved to Porto." -a ada')
@click.argument("entry_id", metavar="ID", type=ENTRY)
@click.argument("content", required=False)
@agent_option
@tags_option
@force_option
async def supersede(home: Home, output: Output, entry_id: str, agent: str, **given: Any) -> None:
    """Replace the entry ID by CONTENT, or the standard input. The old entry stays in the history."""
    entry = await _store(home, agent, entry_id, "supersede", **given)
    output.result(entry, f"{entry['id']} supersedes {entry_id}.")


@archive.add("tag", "arch_01k people family -a ada")
@click.argument("entry_id", metavar="ID", type=ENTRY)
@click.argument("tags", nargs=-1)
@agent_option
async def tag(home: Home, output: Output, entry_id: str, tags: tuple[str, ...], agent: str) -> None:
    """Set the TAGS of the entry ID; without any, remove them all."""
    entry = await home.call("PATCH", "agents", agent, "archival", entry_id, body={"tags": list(tags)})
    has = f"the tags {', '.join(entry['tags'])}" if entry["tags"] else "no tag"
    output.result(entry, f"{entry['id']} has {has}.")


@archive.add("delete", "arch_01k -a ada")
@click.argument("entry_id", metavar="ID", type=ENTRY)
@agent_option
@yes_option
async def delete(home: Home, output: Output, entry_id: str, agent: str, yes: bool) -> None:
    """Delete the entry ID permanently. If it is only no longer true, supersede it instead."""
    entry = await home.get("agents", agent, "archival", entry_id)
    output.confirm(f"Delete {entry['id']} ({_text(entry)!r})?", yes=yes)
    await home.call("DELETE", "agents", agent, "archival", entry["id"])
    output.result({"deleted": entry["id"]}, f"Deleted {entry['id']}.")


async def _store(home: Home, agent: str, *below: str, content: str | None, tags: tuple[str, ...], force: bool) -> Json:
    """Store the text of the command line, or the standard input.

    Raises:
        click.UsageError: neither was given.
    """
    if content is None:
        if sys.stdin.isatty():
            raise click.UsageError("No text was given. Give it as an argument, or pipe it in.")
        content = await piped("give the text as an argument")
    body = {"content": content, "tags": list(tags), "force": force}
    return await home.call("POST", "agents", agent, "archival", *below, body=body)


def _row(entry: Json) -> Json:
    until = "now" if entry["valid_to"] is None else when(entry["valid_to"])
    return {**entry, "until": until, "text": _text(entry)}


def _text(entry: Json) -> str:
    return cut(in_line(entry["content"]), TEXT_CHARS_MAX)
