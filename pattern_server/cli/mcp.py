"""`pattern mcp …`: servers whose tools agents may have."""

from __future__ import annotations

import click

from pattern_core.errors import NotFound
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, Home, in_constellation
from pattern_server.cli.output import FAILED, Output, cut, in_line

SERVER_COLUMNS = ("name", "state", "tools", "place", "trouble")
TOOL_COLUMNS = ("name", "effect", "description")
DESCRIPTION_CHARS_MAX = 80  # shown of a description


@click.group()
def mcp() -> None:
    """MCP servers: programs and services whose tools agents may have."""


@mcp.command("list")
@in_constellation
async def list_all(home: Home, output: Output) -> None:
    """List the configured servers and how they are."""
    found = (await home.get("mcp"))["items"]
    empty = "No MCP server is configured; each needs a section [mcp.NAME]."
    output.table(SERVER_COLUMNS, found, empty=empty, shown=_server_row)


@mcp.command("tools")
@click.argument("name")
@in_constellation
async def tools(home: Home, output: Output, name: str) -> ExitCode:
    """List what a server offers, by the names that agents know; starts it if that is not known yet."""
    found = {one["name"]: one for one in (await home.get("mcp"))["items"]}
    if name not in found:
        raise NotFound(f"there is no MCP server {name!r}; configured are: {', '.join(found) or 'none'}")
    told = found[name]
    if told["tools"] is None:
        told = await home.call("POST", "mcp", name, "test")
    if told["tools"] is None:
        return _failed(output, told)
    output.table(TOOL_COLUMNS, told["tools"], empty=f"{name} offers nothing.", shown=_tool_row)
    if told["tools"]:
        output.say(f"Let an agent have them: pattern agent edit AGENT --add-tool '{name}__*' -c {home.name}")
    return None


@mcp.command("test")
@click.argument("name")
@in_constellation
async def test(home: Home, output: Output, name: str) -> ExitCode:
    """Start a server and tell how that went."""
    told = await home.call("POST", "mcp", name, "test")
    if told["state"] != "ready":
        return _failed(output, told)
    count = len(told["tools"])
    output.result(told, f"{name} answers and offers {count} tool{'' if count == 1 else 's'}.")
    return None


def _failed(output: Output, told: Json) -> ExitCode:
    output.data(told)
    if not output.is_json:
        output.note(f"{told['name']} is {told['state']}: {told['last_error']}")
    return FAILED


def _server_row(told: Json) -> Json:
    missing = ", ".join(told["missing"])
    return {
        **told,
        "tools": None if told["tools"] is None else len(told["tools"]),
        "trouble": told["last_error"] or (f"not offered, yet enabled: {missing}" if missing else None),
    }


def _tool_row(tool: Json) -> Json:
    words = in_line(tool["description"])
    words = words.partition(", which describes it itself: ")[2] or words
    return {**tool, "description": cut(words, DESCRIPTION_CHARS_MAX)}
