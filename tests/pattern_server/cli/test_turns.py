"""Turns on the command line: shown, cancelled, and what their model was shown."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from pattern_core.errors import NotFound
from pattern_server.cli.output import Output
from pattern_server.cli.turns import _took, conversation, headline, part_row, why
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json

ASKS = '[{"tool": "block_edit", "type": "requires_consent"}]'


def test_a_turn_is_shown_and_stopped(home: Pattern) -> None:
    assert home("agent", "edit", "ada", "-c", "home", "--rules", ASKS).code == 0
    waiting = home("chat", "-c", "home", "--json", "Remember that Ruth lives in Lisbon.").json
    assert waiting["status"] == "waiting"
    turn = ("turn", "show", waiting["turn_id"], "-c", "home")
    shown = home(*turn).out
    assert f"waits for  {waiting['approvals'][0]}\n" in shown
    assert "user: Remember that Ruth lives in Lisbon.\n" in shown
    stop = ("turn", "cancel", waiting["turn_id"], "-c", "home")
    stopped = home(*stop)
    assert (stopped.code, stopped.out) == (0, f"Stopped {waiting['turn_id']}.\n")
    again = home(*stop)
    assert (again.code, "had ended already (cancelled)" in again.out) == (0, True)
    assert home(*turn, "--json").json["status"] == "cancelled"
    assert home("approvals", "list", "-c", "home").out == "Nothing waits for an answer.\n"
    unknown = home("turn", "cancel", "turn_x", "-c", "home")
    assert (unknown.code, "there is no turn" in unknown.err) == (1, True)


def test_what_a_turn_took() -> None:
    usage = {"input_tokens": 1_234, "output_tokens": 5, "cost_microdollars": 1_500_000, "is_estimate": False}
    assert _took(usage) == "1,234 tokens in, 5 out; $1.50"
    unknown = {**usage, "cost_microdollars": None, "is_estimate": True}
    assert _took(unknown) == "1,234 tokens in, 5 out (estimated); a price that is not known"


CORE = {
    "kind": "core",
    "place": "system",
    "name": "human",
    "ref": "mem_1",
    "version": 3,
    "tokens": 40,
    "reason": "a core block, the agent's own",
    "text": "Likes\ntea. " + "x" * 100,
    "note": None,
}
STEP = {
    "step": 1,
    "attempt": 1,
    "status": "done",
    "provider": "anthropic",
    "model": "m-1",
    "started_at": "2026-01-01T00:00:00.000Z",
    "window": 200_000,
    "tokens": 3_210,
    "is_estimate": False,
    "cached_tokens": 3_000,
    "tools": {"count": 7, "tokens": 900},
    "history": {"first": "1", "last": "9", "count": 12, "tokens": 1_500},
    "parts": [CORE],
    "left_out": [{**CORE, "kind": "pinned", "name": "plan", "reason": "no room", "text": None}],
    "notes": ["the core blocks take much"],
    "is_known": True,
}


async def shown(
    steps: list[Any],
    *,
    is_json: bool = False,
    turn: str | None = "turn_1",
    agent: str | None = None,
    newest: tuple[str, ...] = ("turn_9",),
) -> list[str]:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(f"{request.method} {request.url.path}")
        if request.url.path.endswith("/usage"):
            wanted = {"by": "turn", "limit": "1", **({"agent": agent} if agent else {})}
            assert dict(request.url.params) == wanted
            return as_json({"items": [{"key": one} for one in newest]})
        return as_json({"turn_id": "turn_1", "agent_id": "agent_1", "steps": steps})

    inner: Any = why.callback
    while "api" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    await inner(api_of(answer), Output(is_json=is_json), turn_id=turn, constellation="home", agent=agent)
    return asked


async def test_a_step_is_told_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert await shown([STEP]) == ["GET /api/v1/constellations/home/turns/turn_1/prompt"]
    out = capsys.readouterr().out
    assert "3,210 tokens of a window of 200,000, as the vendor counted, 3,000 of them cached" in out
    assert "12 messages of the conversation (about 1,500 tokens); 7 tools (about 900)." in out
    assert "Note: the core blocks take much." in out
    assert "core human v3" in out
    assert "a core block, the agent's own" in out
    assert "Left out:" in out
    assert "pinned plan v3" in out


@pytest.mark.parametrize("agent", [None, "ada"])
async def test_without_an_id_it_is_the_newest_turn(capsys: pytest.CaptureFixture[str], agent: str | None) -> None:
    assert (await shown([STEP], turn=None, agent=agent))[-1] == "GET /api/v1/constellations/home/turns/turn_9/prompt"
    assert capsys.readouterr().out.startswith("The newest turn, turn_9:\nStep 1")
    with pytest.raises(NotFound, match="no model was asked yet"):
        await shown([STEP], turn=None, agent=agent, newest=())


async def test_a_step_that_was_shown_the_same_is_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    await shown([STEP, {**STEP, "step": 2, "attempt": 2}, {**STEP, "step": 3, "parts": []}])
    out = capsys.readouterr().out
    assert out.count("core human v3") == 1
    assert "Step 2, attempt 2" in out
    assert "The other parts are those of the step before." in out
    assert "Nothing beside the conversation." in out


async def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    await shown([])
    assert "has not asked a model yet" in capsys.readouterr().out
    await shown([{**STEP, "is_known": False, "is_estimate": True, "cached_tokens": 0, "window": 0}])
    out = capsys.readouterr().out
    assert "was not noted" in out
    assert "3,210 tokens, estimated\n" in out


async def test_as_json_it_is_what_the_server_told(capsys: pytest.CaptureFixture[str]) -> None:
    await shown([STEP], is_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == [STEP]


def test_lines() -> None:
    assert headline({**STEP, "attempt": 2}).startswith("Step 1, attempt 2 (done): anthropic/m-1, 3,210 tokens")
    assert conversation({**STEP, "tools": {"count": 0, "tokens": 0}}).endswith("; no tools.")
    line = part_row(CORE)
    assert (line["part"], line["tokens"]) == ("core human v3", 40)
    assert line["text"].startswith("Likes tea. x")
    assert len(line["text"]) == 60
    assert part_row({**CORE, "text": None, "note": "is not there any more"})["text"] == "(is not there any more)"
    assert part_row({**CORE, "text": None, "version": None, "name": ""})["part"] == "core"
