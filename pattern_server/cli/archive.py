"""`pattern archive …`: what an agent keeps for good, beside its memory blocks."""

from __future__ import annotations

import sys

import click
import trio

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("id", "stored", "tags", "text")
TEXT_CHARS_MAX = 100  # of an entry in a list
LIMIT_MAX = 500

agent_option = click.option(
    "-a", "--agent", required=True, metavar="NAME", help="The agent, by name or id; _constellation_ for all of them."
)
tags_option = click.option("--tag", "tags", multiple=True, metavar="TAG", help="A word to sort it by; repeatable.")


@click.group()
def archive() -> None:
    """Archive: entries that an agent keeps for good; superseded when they are no longer true, never overwritten."""


@archive.command("add")
@click.argument("content", required=False)
@constellation_option
@agent_option
@tags_option
@click.option("--force", is_flag=True, help="Store it although an entry says nearly the same.")
@connected
async def add(
    api: Api, output: Output, content: str | None, constellation: str, agent: str, tags: tuple[str, ...], force: bool
) -> ExitCode:
    """Store CONTENT, or what is piped in, as an entry."""
    body = {"content": await _given(content), "tags": list(tags), "force": force}
    entry = await api.call("POST", _path(constellation, agent), body=body)
    output.data(entry)
    output.say(f"Stored as {entry['id']}." if entry["is_new"] else f"It is there already, as {entry['id']}.")
    return None


@archive.command("list")
@constellation_option
@agent_option
@click.option("--tag", metavar="TAG", help="Only entries with this tag.")
@click.option("--all", "is_all", is_flag=True, help="Also entries that were superseded or have ended.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True)
@connected
async def list_all(
    api: Api, output: Output, constellation: str, agent: str, tag: str | None, is_all: bool, limit: int
) -> ExitCode:
    """List entries, newest first."""
    wanted = {"tag": tag, "include_superseded": is_all}
    entries = await api.pages(_path(constellation, agent), most=limit, **wanted)
    rows = entries if output.is_json else [_line(entry) for entry in entries]
    output.table(
        COLUMNS, rows, empty=f"{agent} has nothing in the archive: pattern archive add TEXT … stores something."
    )
    return None


@archive.command("show")
@click.argument("entry_id", metavar="ID")
@constellation_option
@agent_option
@connected
async def show(api: Api, output: Output, entry_id: str, constellation: str, agent: str) -> ExitCode:
    """Show the entry ID whole, with what is known about it."""
    output.record(await api.get(_path(constellation, agent, entry_id)))
    return None


@archive.command("search")
@click.argument("query", nargs=-1, required=True)
@constellation_option
@agent_option
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=10, show_default=True)
@connected
async def search(
    api: Api, output: Output, query: tuple[str, ...], constellation: str, agent: str, limit: int
) -> ExitCode:
    """Find entries by QUERY, best first. For other memory too, see `pattern search`."""
    body: Json = {"query": " ".join(query), "kinds": ["archival"], "agents": [agent], "limit": limit}
    answer = await api.call("POST", path("constellations", constellation, "search"), body=body)
    output.data(answer)
    if output.is_json:
        return None
    rows = [
        {"id": hit["id"], "stored": _when(hit), "text": " ".join(str(hit["snippet"]).split())} for hit in answer["hits"]
    ]
    output.table(("id", "stored", "text"), rows, empty="Nothing was found.")
    return None


@archive.command("history")
@click.argument("entry_id", metavar="ID")
@constellation_option
@agent_option
@connected
async def history(api: Api, output: Output, entry_id: str, constellation: str, agent: str) -> ExitCode:
    """Show what the entry ID superseded, and what superseded it; oldest first."""
    entries = (await api.get(_path(constellation, agent, entry_id, "history")))["items"]
    rows = entries if output.is_json else [{**_line(entry), "until": _until(entry)} for entry in entries]
    output.table(("id", "stored", "until", "text"), rows, empty="Nothing was found.")
    return None


@archive.command("supersede")
@click.argument("entry_id", metavar="ID")
@click.argument("content", required=False)
@constellation_option
@agent_option
@tags_option
@click.option("--force", is_flag=True, help="Store it although an entry says nearly the same.")
@connected
async def supersede(
    api: Api,
    output: Output,
    entry_id: str,
    content: str | None,
    constellation: str,
    agent: str,
    tags: tuple[str, ...],
    force: bool,
) -> ExitCode:
    """Store CONTENT, or what is piped in, in the place of the entry ID, which is kept as something once true."""
    body = {"content": await _given(content), "tags": list(tags), "force": force}
    entry = await api.call("POST", _path(constellation, agent, entry_id, "supersede"), body=body)
    output.data(entry)
    output.say(f"{entry['id']} takes the place of {entry_id}.")
    return None


@archive.command("tag")
@click.argument("entry_id", metavar="ID")
@click.argument("tags", nargs=-1)
@constellation_option
@agent_option
@connected
async def tag(
    api: Api, output: Output, entry_id: str, tags: tuple[str, ...], constellation: str, agent: str
) -> ExitCode:
    """Give the entry ID these TAGS in place of those that it has; none takes them all away."""
    entry = await api.call("PATCH", _path(constellation, agent, entry_id), body={"tags": list(tags)})
    output.data(entry)
    output.say(
        f"{entry['id']} has the tags {', '.join(entry['tags'])}." if entry["tags"] else f"{entry['id']} has no tag."
    )
    return None


@archive.command("delete")
@click.argument("entry_id", metavar="ID")
@constellation_option
@agent_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
async def delete(api: Api, output: Output, entry_id: str, constellation: str, agent: str, yes: bool) -> ExitCode:
    """Remove the entry ID for good; what is merely no longer true is better superseded."""
    entry = await api.get(_path(constellation, agent, entry_id))
    if not yes:
        output.confirm(f"Delete {entry['id']} ({_cut(entry['content'])!r})?", flag="--yes")
    await api.call("DELETE", _path(constellation, agent, entry["id"]))
    output.data({"deleted": entry["id"]})
    output.say(f"Deleted {entry['id']}.")
    return None


def _path(constellation: str, agent: str, *more: str) -> str:
    return path("constellations", constellation, "agents", agent, "archival", *more)


async def _given(content: str | None) -> str:
    """The text of the command line, or what is piped in.

    Raises:
        click.UsageError: neither was given.
    """
    if content is not None:
        return content
    if sys.stdin.isatty():
        raise click.UsageError("Give the text to store, or pipe it in.")
    return await trio.to_thread.run_sync(sys.stdin.read)


def _line(entry: Json) -> Json:
    return {"id": entry["id"], "stored": _when(entry), "tags": entry["tags"], "text": _cut(entry["content"])}


def _when(entry: Json) -> str:
    return str(entry["created_at"])[:16].replace("T", " ")


def _until(entry: Json) -> str:
    return "now" if entry["valid_to"] is None else str(entry["valid_to"])[:16].replace("T", " ")


def _cut(text: str) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= TEXT_CHARS_MAX else line[: TEXT_CHARS_MAX - 1] + "…"
