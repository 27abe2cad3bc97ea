"""`pattern mcp …`: servers whose tools agents may have."""

from __future__ import annotations

import click

from pattern_core.errors import NotFound
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import FAILED, Output

SERVER_COLUMNS = ("name", "state", "tools", "place", "trouble")
TOOL_COLUMNS = ("name", "effect", "description")
DESCRIPTION_CHARS_MAX = 80  # shown of a description


@click.group()
def mcp() -> None:
    """MCP servers: programs and services whose tools agents may have."""


@mcp.command("list")
@constellation_option
@connected
async def list_all(api: Api, output: Output, constellation: str) -> ExitCode:
    """List the configured servers and how they are."""
    found = (await api.get(path("constellations", constellation, "mcp")))["items"]
    rows = found if output.is_json else [_row(one) for one in found]
    output.table(SERVER_COLUMNS, rows, empty="No MCP server is configured; each needs a section [mcp.NAME].")
    return None


@mcp.command("tools")
@constellation_option
@click.argument("name")
@connected
async def tools(api: Api, output: Output, constellation: str, name: str) -> ExitCode:
    """List what a server offers, by the names that agents know; starts it if that is not known yet."""
    found = (await api.get(path("constellations", constellation, "mcp")))["items"]
    told = next((one for one in found if one["name"] == name), None)
    if told is None:
        known = ", ".join(one["name"] for one in found) or "none"
        raise NotFound(f"there is no MCP server {name!r}; configured are: {known}")
    if told["tools"] is None:
        told = await api.call("POST", path("constellations", constellation, "mcp", name, "test"))
    if told["tools"] is None:
        return _failed(output, told)
    rows = told["tools"] if output.is_json else [{**one, "description": _short(one)} for one in told["tools"]]
    output.table(TOOL_COLUMNS, rows, empty=f"{name} offers nothing.")
    if told["tools"] and not output.is_json:
        output.say(f"Let an agent have them: pattern agent edit AGENT --add-tool '{name}__*' -c {constellation}")
    return None


@mcp.command("test")
@constellation_option
@click.argument("name")
@connected
async def test(api: Api, output: Output, constellation: str, name: str) -> ExitCode:
    """Start a server and tell how that went."""
    told = await api.call("POST", path("constellations", constellation, "mcp", name, "test"))
    if told["state"] != "ready":
        return _failed(output, told)
    if output.is_json:
        output.data(told)
    else:
        count = len(told["tools"])
        output.say(f"{name} answers and offers {count} tool{'' if count == 1 else 's'}.")
    return None


def _failed(output: Output, told: Json) -> ExitCode:
    if output.is_json:
        output.data(told)
    else:
        output.note(f"{told['name']} is {told['state']}: {told['last_error']}")
    return FAILED


def _row(told: Json) -> Json:
    missing = ", ".join(told["missing"])
    return {
        **told,
        "tools": None if told["tools"] is None else len(told["tools"]),
        "trouble": told["last_error"] or (f"not offered, yet enabled: {missing}" if missing else None),
    }


def _short(tool: Json) -> str:
    words = " ".join(str(tool["description"]).split())
    words = words.partition(", which describes it itself: ")[2] or words
    return words if len(words) <= DESCRIPTION_CHARS_MAX else words[: DESCRIPTION_CHARS_MAX - 1] + "…"
