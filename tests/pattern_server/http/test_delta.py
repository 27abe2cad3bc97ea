"""The toolset of Delta, called by the official client over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from pattern_core.errors import leaves
from pattern_server.http.toolsets import OTHERS
from tests.pattern_server.http.test_mcp import both, http_of, token_of
from tests.pattern_server.place import Place

# The sixteen with arguments, in an order that suits a new workspace, and how their texts begin.
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("delta_info", {}, "Database location: no workspace yet"),
    ("delta_recall", {}, "No episodes found"),
    ("delta_set", {"key": "build", "value": "make"}, 'Stored "build"'),
    ("delta_get", {"key": "build"}, "make"),
    ("delta_delete", {"key": "build"}, 'Deleted "build"'),
    ("delta_log", {"content": "It leaks.", "tags": ["bug"]}, "Logged episode #1"),
    ("delta_recall", {"query": "leak", "since": "2020-01-01", "limit": 5}, "Found 1 episodes:\n\n#1 "),
    ("delta_task_create", {"title": "Build", "priority": "critical"}, "Created task #1:\n○ #1 [critical] Build"),
    ("delta_task_create", {"title": "Part", "parent_id": 1}, "Created task #2:"),
    ("delta_task_list", {"status": "todo", "parent_id": None}, "Found 1 tasks:\n\n○ #1 "),
    ("delta_task_list", {"status": ["todo", "done"], "limit": 1.0}, "Found 1 tasks:\n\n○ #1 "),
    ("delta_task_update", {"id": 2, "parent_id": None}, "Updated task #2:\n○ #2 [medium] Part\n"),
    ("delta_task_get", {"id": 2}, "○ #2 [medium] Part"),
    ("delta_task_delete", {"id": 2}, "Deleted task #2"),
    ("delta_note_create", {"title": "Style", "content": "Use tabs."}, "Created note #1:\n#1 Style"),
    ("delta_note_list", {"activeOnly": True}, "Found 1 notes:\n\n#1 Style"),
    ("delta_note_update", {"id": 1, "active": False}, "Updated note #1:\n#1 Style\n  general | archived"),
    ("delta_note_get", {"id": 1}, "#1 Style\ngeneral | archived"),
    ("delta_note_delete", {"id": 1}, "Deleted note #1"),
    ("delta_info", {}, "Database location: the workspace ws_"),
]
# D5, D14 and others: what is refused, and how.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("delta_get", {"key": "none"}, 'Key "none" not found'),
    ("delta_task_get", {"id": 99}, "Task #99 not found"),
    ("delta_task_create", {"title": "x", "parent_id": 9999}, "Error: Parent task #9999 not found"),
    ("delta_recall", {"limit": 0}, "Error: limit is a whole number"),
    ("delta_recall", {"limit": 1.5}, "Error: invalid arguments"),
    ("delta_task_create", {"title": "x", "status": "lost"}, "Error: invalid arguments"),
]


@asynccontextmanager
async def connected(place: Place, mode: str, query: str, token: str = "") -> AsyncIterator[Client]:
    try:
        async with http_of(place, token or place.parts.local_token) as http:
            transport = streamable_http_client(f"{place.url}/mcp/home?{query}", http_client=http)
            async with Client(transport, mode=mode, cache=None) as client:
                yield client
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None


async def called(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    result = await client.call_tool(tool, arguments)
    return getattr(result.content[0], "text", ""), bool(result.is_error)


@both
async def test_all_sixteen_are_listed_and_called(home: Place, mode: str, tmp_path: Path) -> None:
    query = f"toolset=delta&workspace={tmp_path}"
    async with connected(home, mode, query) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {*OTHERS["delta"]} and len(listed) == 16
        assert {*listed} == {name for name, _, _ in CALLS}
        for tool in listed.values():
            for name, one in tool.input_schema.get("properties", {}).items():
                assert "type" in one and one["type"] != "object", (tool.name, name)
        assert listed["delta_task_list"].input_schema["properties"]["parent_id"]["type"] == ["integer", "null"]
        for name, arguments, begins in CALLS:
            text, is_error = await called(client, name, arguments)
            assert text.startswith(begins) and not is_error, (name, text)
        for name, arguments, begins in REFUSED:
            text, is_error = await called(client, name, arguments)
            assert text.startswith(begins) and is_error, (name, text)
    found = (await home.admin.get("/constellations/home/workspaces", params={"path": str(tmp_path)})).json()
    assert [one["roots"] for one in found["items"]] == [[str(tmp_path)]]


@both
async def test_the_address_says_which_tools_and_which_workspace(home: Place, mode: str) -> None:
    async with connected(home, mode, "toolset=delta") as client:
        assert await called(client, "delta_task_list", {}) == (
            "Error: the address names no workspace; add &workspace= with a folder, an id or a name to it",
            True,
        )
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("memory_list", {})
    with pytest.raises(MCPError, match="no toolset 'gamma'"):
        async with connected(home, mode, "toolset=gamma") as client:
            await client.list_tools()
    async with connected(home, mode, "toolset=pattern&workspace=shop") as client:
        assert "memory_list" in {tool.name for tool in (await client.list_tools()).tools}


async def test_the_memory_is_a_prompt_and_a_resource(home: Place, tmp_path: Path) -> None:
    where = str(tmp_path)
    async with connected(home, "2026-07-28", f"toolset=delta&workspace={where}") as client:
        await called(client, "delta_note_create", {"title": "Style", "content": "Use tabs."})
        (message,) = (await client.get_prompt("delta", {"workspace": where})).messages
        (resource,) = (await client.read_resource(f"pattern://delta/{quote(where, safe='')}")).contents
        shown = (await home.admin.get("/constellations/home/context", params={"workspace": where})).json()["text"]
        assert getattr(message.content, "text", "") == getattr(resource, "text", "") == shown
        assert shown.startswith("<delta_memory>\n\n## Project Notes\n### Style (general)\nUse tabs.\n")


async def test_who_may_only_read_makes_no_workspace(place: Place) -> None:
    ann = await place.client("ann", "write")
    assert (await ann.post("/constellations", json={"name": "home"})).status_code == 201
    async with connected(place, "2026-07-28", "toolset=delta&workspace=shop", await token_of(place, "read")) as client:
        assert len((await client.list_tools()).tools) == 7
        assert await called(client, "delta_note_list", {}) == ("No notes found matching criteria", False)
        text, is_error = await called(client, "delta_set", {"key": "k", "value": "v"})
        assert is_error and text.startswith("Error: this token may read")
    assert (await ann.get("/constellations/home/workspaces")).json()["items"] == []
