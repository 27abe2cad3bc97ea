"""`pattern tool …` and `pattern mcp …`: tools for agents, and the MCP servers that provide some of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, urlencode

import click
import httpx2
import trio

from pattern_core.errors import NotFound
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, Home, PlainGroup, always_hosting, unwrapped
from pattern_server.cli.names import WORKSPACE
from pattern_server.cli.output import FAILED, Output, cut, in_line

SERVER_COLUMNS = ("name", "state", "tools?", "place?", "trouble*")
SERVER_TOOL_COLUMNS = ("name", "effect?", "description")
TOOL_COLUMNS = ("name", "effect?", "profiles?", "description")
PROFILES = ("auto", "full", "small")
DESCRIPTION_CHARS_MAX = 80  # shown of a description
# The methods of the protocol that the server answers; the library answers all others.
FORWARDED = (
    *("tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read"),
    *("prompts/list", "prompts/get"),
)
PROGRESS_MAX = 1_000  # notes of a call that wait for a slow client
GONE = "the server stopped answering; start it with `pattern up`. What it had accepted is stored and continues then"

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
    output.result(server, f"{name} works (tools: {len(server['tools'])}).")
    return None


@mcp.add("serve", "-c home", runs=always_hosting)
@click.option(
    "--toolset",
    type=click.Choice(["pattern", "delta", "lodestone", "delia"]),
    default="pattern",
    help="The tools.  [default: pattern]",
)
@click.option(
    "--workspace",
    default=os.curdir,
    metavar="WORKSPACE",
    type=WORKSPACE,
    help="Of other toolsets: a name, id or folder.  [default: .]",
)
async def serve(home: Home, output: Output, toolset: str, workspace: str) -> None:
    """Serve a constellation to an MCP client, such as an editor, which starts this command.

    Speaks the protocol over standard input and output until the input ends. Starts a server in the background if none
    runs. The toolsets delta, lodestone and delia have the tools of these programs, for one project.
    """
    await home.get()  # a wrong name or token is refused here, with a reason that a person can read
    await trio.to_thread.run_sync(import_module, "mcp.client.client")  # half a second of computing
    from mcp.server.lowlevel.server import Server
    from mcp.server.stdio import stdio_server
    from mcp_types import RequestParams

    query = urlencode({"toolset": toolset, "workspace": workspace})
    async with _protocol(home, query, "auto") as client:
        server: Server[Any] = Server("pattern", version=version("pattern-server"), instructions=client.instructions)
    for method in FORWARDED:
        server.add_request_handler(method, RequestParams, partial(_forward, home, query))
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


@asynccontextmanager
async def _protocol(home: Home, query: str, mode: str) -> AsyncIterator[Any]:  # Any: the library's client
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    home.find_again()
    url = f"{str(home.http.base_url).rstrip('/')}/mcp/{quote(home.name, safe='')}?{query}"
    with unwrapped():
        async with Client(streamable_http_client(url, http_client=home.http), mode=mode, cache=None) as client:
            yield client


async def _forward(home: Home, query: str, ctx: Any, _params: object) -> dict[str, Any]:  # Any: the library's request
    """Have the server answer. Each request is one of HTTP by itself: the server may restart in between."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED
    from mcp_types.methods import MONOLITH_REQUESTS
    from mcp_types.version import LATEST_MODERN_VERSION
    from pydantic import TypeAdapter

    params = {name: value for name, value in (ctx.params or {}).items() if name != "_meta"}
    request = MONOLITH_REQUESTS[ctx.method].model_validate({"method": ctx.method, "params": params})
    answers = TypeAdapter(dict[str, Any])
    noted, notes = trio.open_memory_channel[tuple[Any, ...]](PROGRESS_MAX)

    async def note(*progress: object) -> None:
        with suppress(trio.WouldBlock):  # the client reads slowly, and the next note says more
            noted.send_nowait(progress)

    try:
        with unwrapped():
            # The library calls `note` in a task of its own, and cancels it when the answer is there.
            async with trio.open_nursery() as nursery, noted:
                nursery.start_soon(_report, notes, ctx.session.report_progress)
                async with _protocol(home, query, LATEST_MODERN_VERSION) as client:
                    answer = await client.session.send_request(request, answers, progress_callback=note)
        return dict(answer)
    except (MCPError, httpx2.TransportError) as error:
        if isinstance(error, MCPError) and error.error.code != CONNECTION_CLOSED:
            raise
        raise MCPError(CONNECTION_CLOSED, GONE) from error


async def _report(notes: trio.MemoryReceiveChannel[tuple[Any, ...]], report: Callable[..., Awaitable[None]]) -> None:
    """Pass all progress on, in order, before the answer."""
    async for progress in notes:
        await report(*progress)


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
