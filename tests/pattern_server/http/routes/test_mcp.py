"""MCP servers of a constellation, through a whole server: listed, tested, and used by an agent."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_core.mcp_servers.rig import PROGRAM
from tests.pattern_server.place import Place, config_for, serving

HOME = "/constellations/home"


@pytest.fixture
async def place(alone: Path, scripted: ScriptedProvider) -> AsyncIterator[Place]:
    args = ["-I", "-S", str(PROGRAM), str(alone / "log")]
    program = {"command": sys.executable, "args": args, "protocol": "legacy"}
    servers = {"notes": program, "bad": {**program, "args": [*args, "broken"]}}
    async with serving(config_for(alone, mcp=servers), {"scripted": scripted}) as found:
        yield found


async def test_listed_tested_and_used(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("notes__echo", {"text": "over there"}), says("Done.")])
    await place.constellation(enabled_tools=["notes__*", "notes__ehco", "bad__x"])
    first = (await place.admin.get(f"{HOME}/mcp")).json()["items"]
    assert [(one["name"], one["state"], one["tools"], one["missing"]) for one in first] == [
        ("bad", "resting", None, []),
        ("notes", "resting", None, []),
    ]
    assert (await place.say("Hello")).json()["status"] == "completed"
    bad, notes = (await place.admin.get(f"{HOME}/mcp")).json()["items"]
    assert (bad["state"], bad["last_error"]) == (
        "failed",
        "its program ended; its last words: Traceback: no key was given",
    )
    assert (notes["state"], notes["missing"]) == ("ready", ["notes__ehco"])
    assert [tool["effect"] for tool in notes["tools"] if tool["name"] == "notes__echo"] == ["unsafe"]
    asked = scripted.requests
    assert "notes__echo" in [tool.name for tool in asked[0].tools]
    assert "over there" in str(asked[1].messages[-1])


async def test_a_test_starts_a_server(place: Place) -> None:
    await place.constellation()
    assert (await place.admin.post(f"{HOME}/mcp/notes/test")).json()["state"] == "ready"
    assert (await place.admin.post(f"{HOME}/mcp/bad/test")).json()["state"] == "failed"
    refused = await place.admin.post(f"{HOME}/mcp/none/test")
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    refused = await place.admin.patch(f"{HOME}/agents/ada", json={"enabled_tools": ["other__echo"]})
    assert refused.status_code == 422
