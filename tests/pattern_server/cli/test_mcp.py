"""`pattern mcp …`."""

from __future__ import annotations

import json
from typing import Any

import click
import httpx2
import pytest

from pattern_core.errors import NotFound
from pattern_server.cli import mcp
from pattern_server.cli.output import FAILED, Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json

TOOL = {
    "name": "notes__find",
    "description": "A tool of the MCP server `notes`, which describes it itself: Find\nnotes. " + "w" * 100,
    "effect": "unsafe",
    "parameters": {"type": "object", "properties": {}},
}
NOTES = {
    "name": "notes",
    "place": "http://127.0.0.1:8000",
    "state": "ready",
    "last_error": None,
    "tools": [TOOL],
    "missing": ["notes__fnid"],
}
FRESH = {**NOTES, "name": "fresh", "state": "resting", "tools": None, "missing": []}
BROKEN = {**FRESH, "name": "broken", "state": "failed", "last_error": "its program ended"}


async def call(command: click.Command, *, is_json: bool = False, **given: Any) -> tuple[object, list[str]]:
    """The exit code, and what was asked for."""
    asked: list[str] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(f"{request.method} {request.url.path.removeprefix('/api/v1/constellations/home/')}")
        if request.method == "GET":
            return as_json({"items": [NOTES, FRESH, BROKEN]})
        return as_json(BROKEN if "broken" in request.url.path else {**NOTES, "name": "fresh"})

    inner: Any = command.callback
    while "api" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    code = await inner(api_of(answer), Output(is_json=is_json), constellation="home", **given)
    return code, asked


async def test_servers_and_how_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    await call(mcp.list_all)
    shown = capsys.readouterr().out
    for words in ("notes", "ready", "not offered, yet enabled", "resting", "its program ended"):
        assert words in shown
    await call(mcp.list_all, is_json=True)
    assert json.loads(capsys.readouterr().out) == [NOTES, FRESH, BROKEN]


async def test_tools_start_a_server_only_if_they_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert await call(mcp.tools, name="notes") == (None, ["GET mcp"])
    shown = capsys.readouterr().out
    assert "Find notes. www" in shown
    assert "describes it itself" not in shown
    assert "--add-tool 'notes__*' -c home" in shown
    assert await call(mcp.tools, name="fresh") == (None, ["GET mcp", "POST mcp/fresh/test"])
    assert await call(mcp.tools, name="broken") == (FAILED, ["GET mcp", "POST mcp/broken/test"])
    assert "broken is failed: its program ended" in capsys.readouterr().err
    with pytest.raises(NotFound, match="configured are: notes, fresh, broken"):
        await call(mcp.tools, name="other")


async def test_a_test_tells_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert (await call(mcp.test, name="fresh"))[0] is None
    assert "fresh answers and offers 1 tool." in capsys.readouterr().out
    assert (await call(mcp.test, name="broken", is_json=True))[0] == FAILED
    assert json.loads(capsys.readouterr().out)["last_error"] == "its program ended"
