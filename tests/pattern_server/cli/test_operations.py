"""Usage, budgets, embeddings and MCP servers on the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import httpx2
import pytest
import trio

from pattern_server.cli import tools
from pattern_server.cli.embeddings import status, switch
from pattern_server.cli.output import Output
from pattern_server.cli.usage import usage
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json, below, on_terminal

LINE = {
    "key": "2026-11-21",
    "name": None,
    "calls": 1200,
    "unpriced_calls": 0,
    "estimated_calls": 0,
    "input_tokens": 1_000_000,
    "output_tokens": 10,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "cost_microdollars": 1_500_042,
}
UNPRICED = {**LINE, "key": "agt_1", "name": "ada", "calls": 2, "unpriced_calls": 2, "estimated_calls": 1}


async def shown(capsys: pytest.CaptureFixture[str], *lines: dict[str, Any], **given: Any) -> tuple[str, str]:
    asked: dict[str, str] = {}
    total = {**LINE, "unpriced_calls": sum(line["unpriced_calls"] for line in lines), "estimated_calls": 1}

    def answer(request: Any) -> Answer:
        asked.update(request.url.params)
        return as_json({"total": total, "items": list(lines), "next_cursor": "more"})

    values = {"by": "day", "agent": None, "turn": None, "since": None, "until": None, "limit": 100, **given}
    await below(usage)(api_of(answer), Output(), constellation="home", **values)
    assert asked == {name: str(value) for name, value in values.items() if value is not None}
    out, err = capsys.readouterr()
    return out, err


async def test_usage_is_shown_with_exact_money(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = await shown(capsys, LINE, since="2026-11-01")
    assert "1,200" in out
    assert "$1.500042" in out
    assert out.splitlines()[-1].startswith("all")
    assert "There are more lines" in err


async def test_a_terminal_is_drawn_where_the_money_went(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = on_terminal(monkeypatch, 80)
    await shown(capsys, {**LINE, "cost_microdollars": 200}, {**LINE, "cost_microdollars": 100})
    head, first, second, total = click.unstyle(screen.getvalue()).splitlines()
    assert head.endswith("plot") and first.endswith(" " + "█" * 12) and second.endswith(" " + "█" * 6)
    assert "█" not in total


async def test_unknown_prices_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = await shown(capsys, UNPRICED, {**UNPRICED, "unpriced_calls": 1}, by="agent")
    first, second = out.splitlines()[1:3]
    assert first.split()[0] == "ada"
    assert first.split()[-1] == "unknown"
    assert "≥ $1.500042" in second
    assert "Calls without a known price: 3" in err
    assert "Calls with an estimated token count: 1." in err


def test_a_switch_to_another_length(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    home("chat", "-c", "home", "Remember that Ruth is allergic to walnuts.")
    told = home("embeddings", "status", "-c", "home", "--wait", "--json").json
    assert (told["constellation"], told["state"], told["done"]) == ("home", "idle", told["total"])
    assert home("embeddings", "rebuild", "-c", "home", "--wait").code == 0
    monkeypatch.setenv("PATTERN_EMBEDDINGS__DIMENSIONS", "128")
    assert "pattern embeddings switch -c home" in home("embeddings", "status", "-c", "home").err
    ran = home("embeddings", "switch", "-c", "home", "--wait")
    assert ran.code == 0, ran.err
    told = home("embeddings", "status", "-c", "home", "--json").json
    assert (told["active"]["dimension"], told["building"], told["done"]) == (128, None, told["total"])
    again = home("embeddings", "switch", "--all", "--json")
    assert again.code == 1
    assert "already" in again.json[0]["error"]
    assert home("embeddings", "switch", "-c", "home", "--cancel").code == 1


def test_a_switch_that_is_over_says_so_of_its_own_constellation_alone(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"model": "small", "dimension": 384}
    buildings = {"done": None, "running": {"model": "large", "dimension": 1024}}

    def answer(request: httpx2.Request) -> Answer:
        if request.method == "GET":
            return as_json({"items": [{"name": name} for name in buildings], "next_cursor": None})
        building = buildings[request.url.path.split("/")[-3]]
        return as_json({"done": 9, "total": 9, "active": model, "building": building})

    trio.run(
        partial(below(switch), api_of(answer), Output(), constellation=None, is_all=True, cancel=False, wait=False)
    )
    assert capsys.readouterr().out.splitlines() == ["done: search uses small (384)", "running: started"]


def test_every_state_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    old = {"provider": "local", "model": "small", "dimension": 384, "fingerprint": "f"}
    new = {**old, "model": "large", "dimension": 1024}
    idle: dict[str, Any] = {
        "state": "idle", "reason": None, "done": 9, "total": 9, "skipped": 0, "refusals": [], "model": "small",
        "switch_needed": False, "configured": old, "active": old, "building": None,
    }  # fmt: skip
    states = {
        "fine": idle,
        "empty": {**idle, "done": 0, "total": 0, "active": None},
        "other": {**idle, "switch_needed": True, "configured": new},
        "between": {**idle, "state": "working", "done": 4, "building": new, "configured": new},
        "broken": {**idle, "state": "unavailable", "reason": "Install it.", "active": None, "done": 0},
        "picky": {**idle, "skipped": 1, "refusals": [{"kind": "message", "ref": "msg_1", "reason": "Too odd."}]},
    }

    def answer(request: httpx2.Request) -> Answer:
        name = request.url.path.split("/")[-2]
        if name != "v1":
            return as_json(states[name])
        return as_json({"items": [{"name": name} for name in states], "next_cursor": None})

    trio.run(partial(below(status), api_of(answer), Output(), constellation=None, wait=False))
    told = capsys.readouterr()
    lines = {line.split()[0]: " ".join(line.split()) for line in told.out.splitlines()}
    assert lines["fine"] == "fine up to date 9 of 9 small (384) -"
    assert lines["empty"] == "empty no texts yet 0 of 0 - -"
    assert lines["between"] == "between embedding 4 of 9 small (384) large (1024)"
    assert lines["broken"] == "broken stopped 0 of 9 - -"
    assert "other: large (1024) is configured, but search still uses small (384)." in told.err
    assert "Switch with: pattern embeddings switch -c other" in told.err
    assert "between: search uses small (384) until large (1024) has every text" in told.err
    assert "broken: Install it." in told.err
    assert "picky: texts that the model refused, which are only found by words: 1." in told.err
    assert "message msg_1: Too odd." in told.err
    assert "fine:" not in told.err


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


async def call(command: click.Command, **given: Any) -> tuple[object, list[str]]:
    """The exit code, and what was asked for."""
    asked: list[str] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(f"{request.method} {request.url.path.removeprefix('/api/v1/constellations/home/')}")
        if request.method == "GET":
            return as_json({"items": [NOTES, FRESH, BROKEN]})
        return as_json({**NOTES, "name": "fresh"})

    code = await below(command)(api_of(answer), Output(), constellation="home", **given)
    return code, asked


async def test_servers_and_how_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    await call(tools.list_all)
    shown = capsys.readouterr().out
    for words in ("notes", "ready", "enabled, but not available", "resting", "its program ended"):
        assert words in shown


async def test_tools_start_a_server_only_if_they_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert await call(tools.tools, name="notes") == (None, ["GET mcp"])
    shown = capsys.readouterr().out
    assert "Find notes. www" in shown
    assert "describes it itself" not in shown
    assert "--add-tool 'notes__*' -c home" in shown
    assert await call(tools.tools, name="fresh") == (None, ["GET mcp", "POST mcp/fresh/test"])


def test_a_token_is_revoked_by_the_beginning_of_its_id(home: Pattern) -> None:
    first, second = [home("token", "create", "--json").json["id"] for _ in range(2)]
    unclear = home("token", "revoke", "token_0")
    assert (unclear.code, "2 ids begin with token_0" in unclear.err and first in unclear.err) == (2, True)
    same = next(at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
    assert home("token", "revoke", first[: same + 1], "--json").json == {"revoked": first}
    rows = {row["id"]: row["revoked_at"] for row in home("token", "list", "--json").json}
    assert rows[first] is not None and rows[second] is None
    assert home("token", "create", "--user", "nobody").code == 1
