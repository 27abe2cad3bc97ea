"""`pattern archive …`: what an agent keeps for good, beside its memory blocks."""

from __future__ import annotations

import sys
from typing import Any

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, in_constellation, piped, yes_option
from pattern_server.cli.output import Output, cut, in_line, when

COLUMNS = ("id", "stored=created_at", "tags", "text")
TEXT_CHARS_MAX = 100  # of an entry in a list
LIMIT_MAX = 500

agent_option = click.option(
    "-a", "--agent", required=True, metavar="NAME", help="The agent, by name or id; _constellation_ for all of them."
)
tags_option = click.option("--tag", "tags", multiple=True, metavar="TAG", help="A word to sort it by; repeatable.")
force_option = click.option("--force", is_flag=True, help="Store it although an entry says nearly the same.")


@click.group()
def archive() -> None:
    """Archive: entries that an agent keeps for good; superseded when they are no longer true, never overwritten."""


@archive.command("add")
@click.argument("content", required=False)
@agent_option
@tags_option
@force_option
@in_constellation
async def add(home: Home, output: Output, content: str | None, agent: str, tags: tuple[str, ...], force: bool) -> None:
    """Store CONTENT, or what is piped in, as an entry."""
    entry = await _store(home, agent, content=content, tags=tags, force=force)
    output.result(entry, f"Stored as {entry['id']}." if entry["is_new"] else f"It is there already, as {entry['id']}.")


@archive.command("list")
@agent_option
@click.option("--tag", metavar="TAG", help="Only entries with this tag.")
@click.option("--all", "is_all", is_flag=True, help="Also entries that were superseded or have ended.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True)
@in_constellation
async def list_all(home: Home, output: Output, agent: str, tag: str | None, is_all: bool, limit: int) -> None:
    """List entries, newest first."""
    entries = await home.pages("agents", agent, "archival", most=limit, tag=tag, include_superseded=is_all)
    empty = f"{agent} has nothing in the archive: pattern archive add TEXT … stores something."
    output.table(COLUMNS, entries, empty=empty, shown=_row)


@archive.command("show")
@click.argument("entry_id", metavar="ID")
@agent_option
@in_constellation
async def show(home: Home, output: Output, entry_id: str, agent: str) -> None:
    """Show the entry ID whole, with what is known about it."""
    output.record(await home.get("agents", agent, "archival", entry_id))


@archive.command("search")
@click.argument("query", nargs=-1, required=True)
@agent_option
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=10, show_default=True)
@in_constellation
async def search(home: Home, output: Output, query: tuple[str, ...], agent: str, limit: int) -> None:
    """Find entries by QUERY, best first. For other memory too, see `pattern search`."""
    body: Json = {"query": " ".join(query), "kinds": ["archival"], "agents": [agent], "limit": limit}
    answer = await home.call("POST", "search", body=body)
    hits = [{**hit, "text": in_line(hit["snippet"])} for hit in answer["hits"]]
    output.table(("id", "stored=created_at", "text"), hits, empty="Nothing was found.", data=answer)


@archive.command("history")
@click.argument("entry_id", metavar="ID")
@agent_option
@in_constellation
async def history(home: Home, output: Output, entry_id: str, agent: str) -> None:
    """Show what the entry ID superseded, and what superseded it; oldest first."""
    entries = (await home.get("agents", agent, "archival", entry_id, "history"))["items"]
    output.table(("id", "stored=created_at", "until", "text"), entries, empty="Nothing was found.", shown=_row)


@archive.command("supersede")
@click.argument("entry_id", metavar="ID")
@click.argument("content", required=False)
@agent_option
@tags_option
@force_option
@in_constellation
async def supersede(home: Home, output: Output, entry_id: str, agent: str, **given: Any) -> None:
    """Store CONTENT, or what is piped in, in the place of the entry ID, which is kept as something once true."""
    entry = await _store(home, agent, entry_id, "supersede", **given)
    output.result(entry, f"{entry['id']} takes the place of {entry_id}.")


@archive.command("tag")
@click.argument("entry_id", metavar="ID")
@click.argument("tags", nargs=-1)
@agent_option
@in_constellation
async def tag(home: Home, output: Output, entry_id: str, tags: tuple[str, ...], agent: str) -> None:
    """Give the entry ID these TAGS in place of those that it has; none takes them all away."""
    entry = await home.call("PATCH", "agents", agent, "archival", entry_id, body={"tags": list(tags)})
    has = f"the tags {', '.join(entry['tags'])}" if entry["tags"] else "no tag"
    output.result(entry, f"{entry['id']} has {has}.")


@archive.command("delete")
@click.argument("entry_id", metavar="ID")
@agent_option
@yes_option
@in_constellation
async def delete(home: Home, output: Output, entry_id: str, agent: str, yes: bool) -> None:
    """Remove the entry ID for good; what is merely no longer true is better superseded."""
    entry = await home.get("agents", agent, "archival", entry_id)
    output.confirm(f"Delete {entry['id']} ({_text(entry)!r})?", yes=yes)
    await home.call("DELETE", "agents", agent, "archival", entry["id"])
    output.result({"deleted": entry["id"]}, f"Deleted {entry['id']}.")


async def _store(home: Home, agent: str, *below: str, content: str | None, tags: tuple[str, ...], force: bool) -> Json:
    """Store the text of the command line, or what is piped in.

    Raises:
        click.UsageError: neither was given.
    """
    if content is None:
        if sys.stdin.isatty():
            raise click.UsageError("Give the text to store, or pipe it in.")
        content = await piped("give the text to store")
    body = {"content": content, "tags": list(tags), "force": force}
    return await home.call("POST", "agents", agent, "archival", *below, body=body)


def _row(entry: Json) -> Json:
    until = "now" if entry["valid_to"] is None else when(entry["valid_to"])
    return {**entry, "until": until, "text": _text(entry)}


def _text(entry: Json) -> str:
    return cut(in_line(entry["content"]), TEXT_CHARS_MAX)
