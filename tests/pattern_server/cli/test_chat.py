"""Talking to an agent, answering what it asks in the middle, and answering from elsewhere."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from pattern_core.testing.model import ScriptedProvider, calls, says
from pattern_server.cli import approvals, run
from pattern_server.cli.chat import Screen, Talk, answer_of, ended, turn_of
from pattern_server.cli.client import Api, Json, RunningServer, ServerEvent, connection
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json, below
from tests.pattern_server.place import Place, config_for, serving


class Keyboard(io.StringIO):
    """A terminal at which somebody types what is in it."""

    def isatty(self) -> bool:
        return True


def test_a_conversation(
    home: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard = Keyboard("Remember that Ruth likes figs.\nWhat do you know about Ruth?\n/quit\nnever read\n")
    monkeypatch.setattr(sys, "stdin", keyboard)
    capsys.readouterr()
    assert run(["chat", "-c", "home", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr()
    assert "figs" in shown.out
    assert shown.err.count("you> ") == 3
    assert keyboard.readline() == "never read\n"


def shown(capsys: pytest.CaptureFixture[str], *events: tuple[str, Json]) -> tuple[str, str]:
    screen = Screen(Output())
    for seq, (name, data) in enumerate(events, 1):
        screen.show(ServerEvent(seq=seq, name=name, data=data))
    out, err = capsys.readouterr()
    return out, err


def test_words_appear_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("turn.started", {}),
        ("text.delta", {"text": "Let me "}),
        ("text.delta", {"text": "look."}),
        ("message", {"role": "assistant", "content": "Let me look."}),
        ("tool.call", {"tool": "search", "arguments": {}}),
        ("tool.result", {"tool": "search", "content": "…"}),
        ("message", {"role": "assistant", "content": "Lisbon."}),
        ("turn.completed", {}),
    )
    assert out == "Let me look.\nLisbon.\n"
    assert err == "· search\n"


def test_a_step_that_is_begun_again_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("text.delta", {"text": "Lis"}),
        ("step.superseded", {}),
        ("text.delta", {"text": "Lisbon."}),
        ("turn.completed", {}),
    )
    assert out == "Lis\nLisbon.\n"
    assert "(interrupted; once more)" in err


def test_an_answer_that_was_none_or_is_not_whole_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("step.superseded", {"why": "no_answer"}),
        ("message", {"role": "assistant", "content": "Lis", "partial": "length"}),
        ("message", {"role": "assistant", "content": "and", "partial": "cancelled"}),
        ("turn.cancelled", {}),
    )
    assert out == "Lis\nand\n"
    assert err == "(the model gave no answer; once more)\n[not complete: it was cut at max_output_tokens]\n"


def test_what_went_wrong_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("tool.call", {"tool": "file"}),
        ("tool.result", {"tool": "file", "status": "error", "content": "There is no\nfolder. " + "x" * 200}),
        ("model.retry", {"code": "overloaded"}),
        ("model.fallback", {"from": "a/one", "to": "b/two"}),
        ("turn.completed", {"joined": "turn_x"}),
    )
    assert out == ""
    assert "  file: There is no folder. xxx" in err
    assert "…" in err
    assert "overloaded" in err
    assert "now b/two is asked" in err
    assert "joined" in err


def test_whose_turn_is_shown() -> None:
    screen = Screen(Output())
    screen.show(ServerEvent(seq=1, name="turn.started", data={"turn_id": "turn_1"}))
    screen.show(ServerEvent(seq=2, name="constellation.resumed", data={"turn_id": None}))
    assert screen.turn_id == "turn_1"


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (
            "cancelled",
            {"code": "cancelled", "message": "cancelled: user"},
            "The turn was stopped: a person cancelled it",
        ),
        ("cancelled", {"code": "cancelled", "message": "cancelled: new"}, "The turn was stopped: new"),
        ("cancelled", None, "The turn was stopped"),
        ("limit", {"code": "limit_reached", "message": "50 steps"}, "The turn ended as limit: 50 steps"),
        ("interrupted", {}, "The turn ended as interrupted"),
    ],
)
def test_how_a_turn_ended(status: str, error: Json | None, words: str) -> None:
    assert ended(status, error) == words


@asynccontextmanager
async def api_at(place: Place) -> AsyncIterator[Api]:
    """The API of the test's server, as commands speak to it."""
    async with connection(RunningServer(pid=1, url=place.url, started_at="", token=place.parts.local_token)) as http:
        yield Api(http, streams=True)


class Leaving(Output):
    """A screen before which somebody presses Ctrl-C when the first words are there."""

    def words(self, text: str) -> None:
        """Leave."""
        raise KeyboardInterrupt


async def test_leaving_in_the_middle_tells_how_to_stop_the_turn(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(config_for(alone), {"scripted": ScriptedProvider(otherwise=says("All right."))}) as place:
        await place.constellation()
        async with api_at(place) as api:
            output = Leaving()
            with pytest.raises(KeyboardInterrupt):
                await Talk(Home(api, "home"), output, "ada", None, is_live=False).say("Hello!")
    told = capsys.readouterr().err
    assert "pattern turn cancel turn_" in told
    assert told.endswith(" -c home\n")


def asks_for_consent(home: Pattern) -> None:
    rule = '[{"tool": "block_edit", "type": "requires_consent"}]'
    assert home("agent", "edit", "ada", "-c", "home", "--rules", rule).code == 0


@pytest.mark.parametrize(
    ("typed", "is_kept", "is_asked_again"),
    [("y\n", True, True), ("what?\nalways\n", True, False), ("n not now\n", False, True)],
)
def test_at_a_terminal_one_is_asked(
    home: Pattern,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    is_kept: bool,
    is_asked_again: bool,
) -> None:
    asks_for_consent(home)
    again = "Remember that Fig is a cat.\nlater\n" if is_asked_again else "Remember that Fig is a cat.\n"
    monkeypatch.setattr(sys, "stdin", Keyboard(f"Remember that Ruth likes figs.\n{typed}{again}/quit\n"))
    capsys.readouterr()
    assert run(["chat", "-c", "home", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("? ada wants to run block_edit(") == 1 + is_asked_again
    assert ("waits for that" in shown.err) is is_asked_again
    content = home("memory", "show", "human", "-c", "home", "-a", "ada").out
    assert ("figs" in content) is is_kept
    assert ("Fig is a cat" in content) is not is_asked_again


EDIT = {"op": "append", "label": "human", "content": "Tea."}


def test_what_a_line_means() -> None:
    assert answer_of("Y") == {"decision": "approve"}
    assert answer_of("always") == {"decision": "approve", "scope": "always"}
    assert answer_of("no it is too late") == {"decision": "deny", "reason": "it is too late"}
    assert answer_of("n") == {"decision": "deny"}
    assert answer_of("later") is None
    assert answer_of("") is None
    assert answer_of("perhaps") == {}


def test_whose_question() -> None:
    assert turn_of({"turn_id": "t1"}) == "t1"
    assert turn_of({"cause": {"turn": "t2"}}) == "t2"
    assert turn_of({"cause": {}}) is None


@pytest.mark.parametrize("kind", ["call", "memory"])
@pytest.mark.parametrize("is_live", [True, False])
async def test_a_stream_asks_and_continues(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, is_live: bool
) -> None:
    provider = ScriptedProvider([calls("block_edit", EDIT), says("Done so.")], otherwise=says("All right."))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    permission = "human" if kind == "memory" else "read_write"
    rules = None if kind == "memory" else [{"tool": "block_edit", "type": "requires_consent"}]
    async with serving(config_for(alone), {"scripted": provider}) as place:
        block = {"label": "human", "content": "", "permission": permission}
        await place.constellation(memory=[block], tool_rules=rules)
        async with api_at(place) as api:
            home, output = Home(api, "home"), Output()
            code = await Talk(home, output, "ada", None, is_live).say("Remember tea.")
            content = (await home.get("agents", "ada", "memory", "human"))["content"]
    shown = capsys.readouterr()
    assert ("Tea." in content) is is_live
    assert code == (3 if kind == "call" and not is_live else 0)
    assert ("Done so." in shown.out) is (is_live or kind == "memory")
    assert ("Agree?" in shown.err) is is_live
    assert ("pattern approvals approve" in shown.err) is not is_live


async def test_an_answer_that_is_refused_is_shown(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(config_for(alone)) as place:
        await place.constellation()
        async with api_at(place) as api:
            talk = Talk(Home(api, "home"), Output(), "ada", None, is_live=True)
            assert not await talk._answer("apr_none", {"decision": "approve"})
    assert "apr_none" in capsys.readouterr().err


ONE = {
    "id": "apr_1",
    "kind": "memory_edit",
    "status": "pending",
    "audience": "human",
    "request": {"label": "human", "edit": {"op": "append"}, "empty": None},
    "decision": None,
    "created_at": "2026-01-02T03:04:05.678Z",
    "expires_at": None,
}


async def typed(command: click.Command, *words: str) -> list[tuple[str, Any]]:
    """Run a command with the parameters as a person types them; return what was asked for."""
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append((f"{request.method} {request.url.path}", json.loads(request.content)))
        return as_json({**ONE, "decision": {"note": "Done"}})

    with command.make_context("approve", ["apr_1", "-c", "home", *words]) as context:
        own = ("config_file", "data_dir", "is_json", "constellation")
        given = {name: value for name, value in context.params.items() if name not in own}
        return await _called(command, answer, asked, is_json=False, **given)


async def _called(
    command: click.Command,
    answer: Callable[[httpx2.Request], Answer],
    asked: list[tuple[str, Any]],
    *,
    is_json: bool,
    **given: Any,
) -> list[tuple[str, Any]]:
    await below(command)(api_of(answer), Output(is_json=is_json), constellation="home", **given)
    return asked


async def test_a_call_is_shown_with_all_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    command = "x" * 500
    call_of_tool = {"agent_id": "agent_1", "agent": "ada", "tool": "shell", "digest": "ab", "call_id": "call_1"}
    request = {**call_of_tool, "arguments": {"command": command, "timeout": 5}, "reason": "it writes"}
    asked: list[tuple[str, Any]] = []
    await _called(approvals.show, lambda _: as_json({**ONE, "request": request}), asked, is_json=False, id_="apr_1")
    shown = capsys.readouterr().out
    assert f"    arguments:\n      command: {command}\n      timeout: 5\n    reason: it writes" in shown
    assert "call_1" not in shown and "ab\n" not in shown


WHERE = "POST /api/v1/constellations/home/approvals/apr_1"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ([], {"scope": "once"}),
        (["--same"], {"scope": "same"}),
        (["--always"], {"scope": "always"}),
        (["--for", "2h"], {"scope": "time", "seconds": 7_200}),
        (["--for", "90"], {"scope": "time", "seconds": 90}),
        (["--same", "--for", "1.5d"], {"scope": "same", "seconds": 129_600}),
        (["--always", "--for", "30 m"], {"scope": "always", "seconds": 1_800}),
        (["--arguments", '{"to": "bob"}'], {"scope": "once", "arguments": {"to": "bob"}}),
    ],
)
async def test_a_yes_for_longer_or_otherwise(words: list[str], body: dict[str, Any]) -> None:
    assert await typed(approvals.approve, *words) == [(WHERE, {"decision": "approve", **body})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--same", "--always"], "exclude each other"),
        (["--for", "soon"], "write 90s, 30m, 2h or 7d"),
        (["--for", "-5s"], "write 90s, 30m, 2h or 7d"),
        (["--arguments", "{to: bob}"], "no JSON"),
        (["--arguments", "[1]"], "must be a JSON object"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_anything_is_sent(words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        await typed(approvals.approve, *words)
    assert said in refused.value.format_message()


def test_a_call_in_a_line() -> None:
    request = {"tool": "pay", "agent": "ada", "arguments": {"to": "bob", "amount": 5}, "reason": "it costs money"}
    assert approvals.what_is_asked(request) == "ada wants to run pay(to: bob, amount: 5): it costs money"


def test_a_request_in_a_line() -> None:
    assert approvals.what_is_asked({"summary": " Append\n a line ", "x": 1}) == "Append a line"
    assert approvals.what_is_asked({"text": "x" * 500}).endswith("…")
