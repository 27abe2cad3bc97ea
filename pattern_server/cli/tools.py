"""`pattern tool …` and `pattern mcp …`: tools for agents, and the MCP servers that provide some of them."""

from __future__ import annotations

import click

from pattern_core.errors import NotFound
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, Home, PlainGroup
from pattern_server.cli.output import FAILED, Output, cut, in_line

SERVER_COLUMNS = ("name", "state", "tools?", "place?", "trouble*")
SERVER_TOOL_COLUMNS = ("name", "effect?", "description")
TOOL_COLUMNS = ("name", "effect?", "profiles?", "description")
PROFILES = ("auto", "full", "small")
DESCRIPTION_CHARS_MAX = 80  # shown of a description

tool = PlainGroup("tool", help="Tools that agents may have.")


@tool.add("list")
async def list_tools(home: Home, output: Output) -> None:
    """List the available tools. A new agent has those of the profile that suits its model."""
    found = await home.get("tools")
    output.table(TOOL_COLUMNS, found["items"], empty="There are no tools.", shown=_tool_row, data=found)
    for reason in found["off"].values():
        output.note(f"Not available: {reason}")
    output.say(f"Give an agent a tool: pattern agent edit AGENT --add-tool NAME -c {home.name}")


mcp = PlainGroup("mcp", help="MCP servers: programs and services that provide tools.")


@mcp.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the configured servers and their state."""
    found = (await home.get("mcp"))["items"]
    empty = "No MCP servers are configured. Add a section [mcp.NAME] to pattern.toml."
    output.table(SERVER_COLUMNS, found, empty=empty, shown=_server_row)


@mcp.add("tools", "git")
@click.argument("name")
async def tools(home: Home, output: Output, name: str) -> ExitCode:
    """List the tools of a server, by the names that agents use. Starts the server if necessary."""
    found = {one["name"]: one for one in (await home.get("mcp"))["items"]}
    if name not in found:
        raise NotFound(f"There is no MCP server {name!r}. Configured: {', '.join(found) or 'none'}")
    server = found[name]
    if server["tools"] is None:
        server = await home.call("POST", "mcp", name, "test")
    if server["tools"] is None:
        return _failed(output, server)
    output.table(SERVER_TOOL_COLUMNS, server["tools"], empty=f"{name} has no tools.", shown=_tool_row)
    if server["tools"]:
        output.say(f"Give them to an agent: pattern agent edit AGENT --add-tool '{name}__*' -c {home.name}")
    return None


@mcp.add("test", "git")
@click.argument("name")
async def test(home: Home, output: Output, name: str) -> ExitCode:
    """Start a server, and report the result."""
    server = await home.call("POST", "mcp", name, "test")
    if server["state"] != "ready":
        return _failed(output, server)
    count = len(server["tools"])
    output.result(server, f"{name} works: {count} tool{'' if count == 1 else 's'}.")
    return None


def in_profile(tool: Json, profile: str) -> bool:
    """Return whether a tool, as the API lists it, is in the profile; `auto` counts as `full`."""
    return tool.get("brief") is not None if profile == "small" else bool(tool.get("enabled_by_default"))


def _failed(output: Output, server: Json) -> ExitCode:
    output.data(server)
    if not output.is_json:
        output.note(f"{server['name']} is {server['state']}: {server['last_error']}")
    return FAILED


def _server_row(server: Json) -> Json:
    missing = ", ".join(server["missing"])
    return {
        **server,
        "tools": None if server["tools"] is None else len(server["tools"]),
        "trouble": server["last_error"] or (f"enabled, but not available: {missing}" if missing else None),
    }


def _tool_row(tool: Json) -> Json:
    words = in_line(tool["description"])
    words = words.partition(", which describes it itself: ")[2] or words
    return {
        **tool,
        "profiles": ", ".join(profile for profile in PROFILES[1:] if in_profile(tool, profile)),
        "description": cut(words, DESCRIPTION_CHARS_MAX),
    }
