"""Talking to an agent, and answering what it asks in the middle."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from pattern_server.cli import run
from pattern_server.cli.chat import Talk, _asker, turn_of
from pattern_server.cli.chat_screen import (
    Lines,
    Screen,
    answer_of,
    call_line,
    ended,
    question_lines,
    result_text,
    typed_text,
)
from pattern_server.cli.client import RECONNECT_S, Api, Json, RunningServer, ServerEvent, ServerUnreachable, connection
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, Pattern, Terminal, api_of, as_json
from tests.pattern_server.place import Place, config_for, serving


def test_a_conversation(
    home: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard = Terminal("Remember that Ruth likes figs.\nWhat do you know about Ruth?\n/quit\nnever read\n")
    monkeypatch.setattr(sys, "stdin", keyboard)
    capsys.readouterr()
    assert run(["chat", "-c", "home", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr()
    assert "figs" in shown.out
    assert shown.err.count("you> ") == 3
    assert keyboard.readline() == "never read\n"


def shown(capsys: pytest.CaptureFixture[str], *events: tuple[str, Json]) -> tuple[str, str]:
    screen = Screen(Lines(Output()))
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
        ("tool.call", {"tool": "search", "call_id": "c", "arguments": {"query": "figs"}}),
        ("tool.result", {"tool": "search", "call_id": "c", "status": "done", "content": "found", "duration_ms": 12}),
        ("message", {"role": "assistant", "content": "Lisbon."}),
        ("turn.completed", {}),
    )
    assert out == "Let me look.\nLisbon.\n"
    assert err == "search(figs) → found · 12 ms\n"


def test_a_step_that_is_begun_again_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("text.delta", {"text": "Lis"}),
        ("step.superseded", {}),
        ("text.delta", {"text": "Lisbon."}),
        ("turn.completed", {}),
    )
    assert out == "Lis\nLisbon.\n"
    assert err == "(the answer was interrupted; retrying)\n"


def test_an_answer_that_was_none_or_is_not_whole_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("step.superseded", {"why": "no_answer"}),
        ("message", {"role": "assistant", "content": "Lis", "partial": "length"}),
        ("message", {"role": "assistant", "content": "and", "partial": "cancelled"}),
        ("turn.cancelled", {}),
    )
    assert out == "Lis\nand\n"
    assert err == "(the model gave no answer; retrying)\n[not complete: it was cut at max_output_tokens]\n"


def test_what_went_wrong_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("tool.call", {"tool": "file"}),
        ("tool.result", {"tool": "file", "status": "error", "content": "There is no\nfolder. " + "x" * 200}),
        ("model.retry", {"code": "overloaded"}),
        ("model.retry", {"code": "overloaded"}),
        ("model.retry", {"code": "model_loading"}),
        ("model.fallback", {"from": "a/one", "to": "b/two"}),
        ("turn.completed", {"joined": "turn_x"}),
    )
    assert out == ""
    failed, *rest = err.splitlines()
    assert failed.startswith("file() → There is no folder. xxx") and failed.endswith("…")
    assert rest == [
        "(the model failed: overloaded; retrying)",
        "(a/one does not answer; asking b/two)",
        "(joined the answer in progress)",
    ]


class Phases(Lines):
    """A sink that also keeps what was waited for."""

    def __init__(self) -> None:
        super().__init__(Output())
        self.seen: list[str] = []

    def phase(self, text: str) -> None:
        self.seen.append(text)


def test_what_is_waited_for_is_said() -> None:
    sink = Phases()
    screen = Screen(sink)
    events: list[tuple[str, Json]] = [
        ("turn.queued", {}),
        ("turn.started", {}),
        ("mcp.starting", {"servers": ["git", "time"]}),
        ("step.started", {}),
        ("model.retry", {"code": "model_loading"}),
        ("model.retry", {"code": "overloaded"}),
        ("reasoning.delta", {"text": "hm"}),
        ("text.delta", {"text": "Well"}),
        ("tool.call", {"tool": "search", "call_id": "c"}),
        ("turn.waiting", {}),
        ("turn.completed", {}),
    ]
    for name, data in events:
        screen.show(ServerEvent(seq=1, name=name, data=data))
    assert sink.seen == [
        "waiting in the queue",
        "preparing",
        "starting MCP server git, time",
        "waiting for the model",
        "the model is loading",
        "the model failed (overloaded), retrying",
        "thinking",
        "answering",
        "running search",
        "waiting for your approval",
        "",
    ]


def test_the_footer_says_what_a_turn_used(capsys: pytest.CaptureFixture[str]) -> None:
    usage = {"input_tokens": 1204, "output_tokens": 88, "cost_microdollars": 3_000}
    screen = Screen(Lines(Output()), has_footer=True)
    at = "2026-01-02T03:04:{}Z"
    screen.show(ServerEvent(seq=1, name="turn.started", data={"created_at": at.format("05.678")}))
    ended = {"created_at": at.format("09.900"), "turn_id": "turn_1", "usage": usage}
    screen.show(ServerEvent(seq=2, name="turn.completed", data=ended))
    assert capsys.readouterr().err == "1,204 in · 88 out · $0.003 · 4.2 s · turn_1\n"


def test_a_change_of_memory_is_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    added = "".join(f"+line {number}\n" for number in range(9))
    Screen(Lines(Output())).changed("human", f"--- 1\n+++ 2\n@@ -1 +1,9 @@\n-Ruth lives in Rome\n same\n{added}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["human  - Ruth lives in Rome", "human  + line 0"]
    assert lines[-1] == "human  … 2 more"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({}, "t()"), ({"x": "17*23"}, "t(17*23)"), ({"a": 1, "b": ["x\ny"]}, 't(a: 1, b: ["x\\ny"])')],
)
def test_a_call_in_one_line(arguments: Json, line: str) -> None:
    assert call_line("t", arguments) == line


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ('{"success":true,"message":"17*23 = 391","data":{"result":"391"}}', "391"),
        ('{"success":true,"message":"Appended 5 characters","data":{"chars":5}}', "Appended 5 characters"),
        ("plain\nwords", "plain words"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_a_result_in_one_line(content: str, shown: str) -> None:
    assert result_text(content) == shown


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("\x1b[A\x1b[1;5Dhello\x1bOP", "hello"),
        ("a\r\nb\rc\td", "a\nb\nc\td"),
        ("\x1b]0;title\x07x\x1b]0;t\x1b\\y", "xy"),
        ("be\x07ll \x9b31mred\x7f\x00", "bell 31mred"),
        ("Gr\u00fc\u00dfe \u2028", "Gr\u00fc\u00dfe \u2028"),
    ],
)
def test_no_control_character_of_what_is_typed_is_kept(typed: str, text: str) -> None:
    assert typed_text(typed) == text


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


class Interrupted(Output):
    """A screen at which a person presses Ctrl-C when the first words are there."""

    def words(self, text: str) -> None:
        """Press it."""
        raise KeyboardInterrupt


async def test_ctrl_c_stops_the_turn_of_a_single_message(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never = Paced(answer=says("All right."), between_s=math.inf)
    async with serving(config_for(alone), {"scripted": ScriptedProvider([never], slice_chars=3)}) as place:
        await place.constellation()
        async with api_at(place) as api:
            assert await Talk(Home(api, "home"), Interrupted(), "ada", None, None).say("Hello!") == 1
            [turn] = await Home(api, "home").pages("turns")
            *_, last = await place.events(f"/constellations/home/turns/{turn['turn_id']}/events")
    assert last["event"] == "turn.cancelled"
    assert capsys.readouterr().err == "Stopped.\n"


async def test_a_connection_that_breaks_is_made_again_without_loss_or_repetition(
    capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock
) -> None:
    """The first answer breaks off before the turn is known, the second in its middle; then the server is away."""
    asked: list[tuple[str, str | None, str | None]] = []

    def event(seq: int, name: str, **data: Any) -> str:
        return f"id: {seq}\nevent: {name}\ndata: {json.dumps({'turn_id': 'turn_1', **data})}\n\n"

    streams = [
        (200, ""),
        (200, event(4, "turn.queued") + event(5, "turn.started") + event(6, "text.delta", text="All ")),
        (503, '{"detail": "starting", "code": "unavailable"}'),
        (200, event(7, "text.delta", text="right.") + event(8, "turn.completed")),
    ]

    def answer(request: httpx2.Request) -> Answer:
        asked.append((request.method, request.headers.get("idempotency-key"), request.headers.get("last-event-id")))
        status, body = streams[len(asked) - 1]
        return status, {"content-type": "text/event-stream"}, body.encode()

    api = api_of(answer)
    api.streams = True
    talk = Talk(Home(api, "home"), Output(), "ada", None, None)
    talk.is_conversation = True
    assert await talk.say("Hello!") == 0
    assert capsys.readouterr().out == "All right.\n"
    (first, key, _), second, *resumed = asked
    assert first == "POST" and key and second == ("POST", key, None)
    assert resumed == [("GET", None, "6")] * 2


async def test_a_message_may_be_stopped_before_its_turn_is_known() -> None:
    asked: list[str] = []
    ends = 'id: 1\nevent: turn.cancelled\ndata: {"turn_id": "turn_1"}\n\n'

    def answer(request: httpx2.Request) -> Answer:
        asked.append(request.url.path.rpartition("/")[2])
        if asked == ["messages"]:
            talk.open[0].is_stopping = True  # Ctrl-C while the request is on its way
        return 200, {"content-type": "text/event-stream"}, ends.encode() if asked[-1] == "messages" else b"{}"

    api = api_of(answer)
    api.streams = True
    talk = Talk(Home(api, "home"), Output(), "ada", None, None)
    assert await talk.say("Hello!") == 1
    assert asked == ["messages", "cancel"]


async def test_a_question_that_could_not_be_put_is_put_after_the_connection_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begins = 'id: 1\nevent: turn.started\ndata: {"turn_id": "turn_1"}\n\n'
    waits = 'id: 2\nevent: turn.waiting\ndata: {"turn_id": "turn_1", "approvals": ["apr_1"]}\n\n'
    ends = 'id: 3\nevent: turn.completed\ndata: {"turn_id": "turn_1"}\n\n'
    question = {"status": "pending", "request": {"agent": "ada", "tool": "pay", "arguments": {}}}
    asked: list[str] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(f"{request.method} {request.url.path.rpartition('/')[2]} {request.headers.get('last-event-id')}")
        if request.url.path.endswith("apr_1"):
            return as_json(question) if len(asked) > 3 else as_json({"detail": "stopping"}, 503)
        is_first = request.url.path.endswith("messages")
        body = begins + waits if is_first else waits + ends
        return 200, {"content-type": "text/event-stream"}, body.encode()

    async def ask(question: str, default: str) -> str:
        return "a"

    api = api_of(answer)
    api.streams = True
    assert await Talk(Home(api, "home"), Output(), "ada", None, ask).say("Pay.") == 0
    assert asked == ["POST messages None", "GET apr_1 None", "GET events 1", "GET apr_1 None", "POST apr_1 None"]


async def test_a_server_that_stays_away_is_given_up(
    capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock
) -> None:
    api = api_of(lambda _: (200, {"content-type": "text/event-stream"}, b""))
    api.streams = True
    talk = Talk(Home(api, "home"), Output(), "ada", None, None)
    with pytest.raises(ServerUnreachable):
        await talk.say("Hello!")
    assert trio.current_time() == 0, "a single message is not waited for: there may be no server"
    talk.is_conversation = True
    await talk.read("Hello!")
    assert RECONNECT_S <= trio.current_time() < RECONNECT_S + 5
    assert "pattern history show -a ada -c home" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/memry", "There is no command /memry. Did you mean /memory? To send it as a message, write //memry"),
        ("/etc/hosts is empty", "/help lists the commands. To send it as a message, write //etc/hosts is empty"),
        ("/search", "Wrong arguments for /search. Usage: /search WORDS"),
        ("/model gpt", "Wrong arguments for /model. Usage: /model [PROVIDER/MODEL]"),
        ("/undo", "Nothing changed in this conversation. Name a block: /undo LABEL"),
    ],
)
async def test_a_command_that_is_none_is_an_error_and_never_a_message(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: httpx2.Request) -> Answer:
        raise AssertionError(f"{request.method} {request.url} was sent")

    talk = Talk(Home(api_of(answer), "home"), Output(), "ada", None, None)
    await talk.read(line)
    assert words in capsys.readouterr().err.replace("\n", ". ")


def test_commands_in_lines_and_a_message_that_begins_with_a_slash(
    home: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["Remember that Ruth likes figs.", "/memory human", "/undo human", "/memory", "/usage", "/why", "/model"]
    more = ["/search figs", "/approve", "/cancel", "/agent", "/agent nobody", "/help", "//help me", "/agent ada"]
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join([*typed, *more, "/quit", "never sent"])))
    capsys.readouterr()
    assert run(["chat", "-c", "home", "--plain", "--data-dir", str(data_dir)]) == 0
    out, err = capsys.readouterr()
    assert "ada: " in out and "Ruth likes figs." in out
    for words in ("human is at version 2", "embedded/rules-1.", "Nothing waits", "answer is in progress.", "the model"):
        assert words in out
    assert "nobody" in err
    messages = home("history", "show", "-c", "home", "-a", "ada", "--json").json
    assert [one["content"] for one in messages if one["role"] == "user"] == [typed[0], "/help me"]


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
    monkeypatch.setattr(sys, "stdin", Terminal(f"Remember that Ruth likes figs.\n{typed}{again}/quit\n"))
    capsys.readouterr()
    assert run(["chat", "-c", "home", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("ada wants to run block_edit: ") == 1 + is_asked_again
    assert ("waits for that" in shown.err) is is_asked_again
    content = home("memory", "show", "human", "-c", "home", "-a", "ada").out
    assert ("figs" in content) is is_kept
    assert ("Fig is a cat" in content) is not is_asked_again


EDIT = {"op": "append", "label": "human", "content": "Tea."}


def test_what_a_line_means() -> None:
    assert answer_of("Y") == answer_of("a") == answer_of("yes") == {"decision": "approve"}
    assert answer_of("same") == {"decision": "approve", "scope": "same"}
    assert answer_of("always") == {"decision": "approve", "scope": "always"}
    assert answer_of("no it is too late") == {"decision": "deny", "reason": "it is too late"}
    assert answer_of("n") == {"decision": "deny"}
    assert answer_of("later") is answer_of("") is None
    assert answer_of("perhaps") == {}


def test_what_is_asked_is_shown_whole() -> None:
    call = {"agent": "ada", "tool": "shell", "arguments": {"command": "ls\nrm x", "n": [1]}, "reason": "it writes"}
    assert [text for text, _ in question_lines(call)] == [
        "ada wants to run shell: it writes",
        "  command: ls\n    rm x",
        "  n: [1]",
    ]
    edit = {"edit": "ReplaceText", "old": "tea\nmilk", "new": "water", "mode": "all"}
    assert list(question_lines({"agent": "ada", "label": "human", "edit": edit}))[1:] == [
        ("  - tea", "red"),
        ("  - milk", "red"),
        ("  + water", "green"),
        ("  mode: all", ""),
    ]


def test_whose_question() -> None:
    requests: list[Json] = [{"turn_id": "t1"}, {"cause": {"turn": "t2"}}, {"cause": {}}]
    assert [turn_of(one) for one in requests] == ["t1", "t2", None]


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
            code = await Talk(home, output, "ada", None, _asker(output) if is_live else None).say("Remember tea.")
            content = (await home.get("agents", "ada", "memory", "human"))["content"]
    shown = capsys.readouterr()
    assert ("Tea." in content) is is_live
    assert code == (3 if kind == "call" and not is_live else 0)
    assert ("Done so." in shown.out) is (is_live or kind == "memory")
    assert ("[a]pprove" in shown.err) is is_live
    assert ("pattern approvals approve" in shown.err) is not is_live


async def test_an_answer_that_is_refused_is_shown_and_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["a", "d", "l"])
    refused = {"detail": "It was answered already.", "code": "conflict"}

    def answer(request: httpx2.Request) -> Answer:
        if request.method == "POST":
            return as_json(refused, 409)
        request_of_call = {"agent": "ada", "tool": "pay", "arguments": {}}
        return as_json(
            {"status": "pending", "request": request_of_call, "items": [{"id": "apr_1", "request": request_of_call}]}
        )

    async def ask(question: str, default: str) -> str:
        return next(lines)

    await Talk(Home(api_of(answer), "home"), Output(), "ada", None, ask).read("/approve")
    assert capsys.readouterr().err.count("Error: It was answered already\n") == 2
    assert next(lines, None) is None


def test_the_chat_begins_and_continues_sessions(
    home: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [
        "hello main",
        "/new A trip",
        "hello trip",
        "/sessions",
        "/agent ada",
        "and main",
        "/sessions ses_none",
        "/quit",
    ]
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(typed)))
    capsys.readouterr()
    assert run(["chat", "-c", "home", "--plain", "--data-dir", str(data_dir)]) == 0
    out, err = capsys.readouterr()
    assert "This is the session A trip." in out and "pattern chat" in out
    assert "no session 'ses_none'" in err

    def said(*words: str) -> list[str]:
        assert run(["history", "show", "-c", "home", "--json", "--data-dir", str(data_dir), *words]) == 0
        return [row["content"] for row in json.loads(capsys.readouterr().out) if row["role"] == "user"]

    assert run(["session", "list", "-c", "home", "--json", "--data-dir", str(data_dir)]) == 0
    [session] = json.loads(capsys.readouterr().out)
    assert said() == ["hello main", "hello trip", "and main"]
    assert said("--session", session["id"]) == ["hello trip"]
