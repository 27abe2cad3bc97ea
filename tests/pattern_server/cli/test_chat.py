"""Talking to an agent, and answering what it asks in the middle."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pattern_core.testing.model import ScriptedProvider, calls, says
from pattern_server.cli import run
from pattern_server.cli.chat import Questions, Screen, Talk, answer_of, ended, turn_of
from pattern_server.cli.client import Api, Json, RunningServer, ServerEvent, connection, path
from pattern_server.cli.client import RunningServer as Running
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Pattern
from tests.pattern_server.place import config_for, serving


def test_one_message(home: Pattern) -> None:
    told = home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
    assert told.code == 0, told.err
    assert told.out.strip()
    asked = home("chat", "-c", "home", "--agent", "ada", "What do you know about Ruth?")
    assert "Lisbon" in asked.out


def test_a_pipe_is_one_message(home: Pattern) -> None:
    assert home("chat", "-c", "home", stdin="Remember that the boiler was serviced in March.\n").code == 0
    assert "March" in home("chat", "-c", "home", stdin="What do you know about the boiler?").out


def test_json_is_the_turn(home: Pattern) -> None:
    turn = home("chat", "-c", "home", "--json", "Hello!").json
    assert turn["status"] == "completed"
    assert turn["turn_id"]
    assert turn["messages"]


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


def test_which_agent(home: Pattern) -> None:
    assert home("agent", "create", "flora", "-c", "home").code == 0
    several = home("chat", "-c", "home", "Hello!")
    assert several.code == 1
    assert "ada, flora" in several.err
    home("agent", "archive", "flora", "-c", "home")
    assert home("chat", "-c", "home", "Hello!").code == 0
    home("agent", "archive", "ada", "-c", "home")
    assert "pattern agent create" in home("chat", "-c", "home", "Hello!").err
    assert home("chat", "-c", "home", "--agent", "nobody", "Hello!").code == 1
    assert home("chat", "-c", "home", "--agent", "ada", "  ").code == 1


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


def test_a_step_that_is_begun_again_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(
        capsys,
        ("text.delta", {"text": "Lis"}),
        ("step.superseded", {}),
        ("text.delta", {"text": "Lisbon."}),
        ("turn.completed", {}),
    )
    assert out == "Lis\nLisbon.\n"
    assert "once more" in err


def test_what_went_wrong_is_told(capsys: pytest.CaptureFixture[str]) -> None:
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
            "The turn was stopped: somebody cancelled it",
        ),
        ("cancelled", {"code": "cancelled", "message": "cancelled: new"}, "The turn was stopped: new"),
        ("cancelled", None, "The turn was stopped"),
        ("limit", {"code": "limit_reached", "message": "50 steps"}, "The turn ended as limit: 50 steps"),
        ("parked", {}, "The turn ended as parked"),
    ],
)
def test_how_a_turn_ended(status: str, error: Json | None, words: str) -> None:
    assert ended(status, error) == words


class Leaving(Output):
    """A screen before which somebody presses Ctrl-C when the first words are there."""

    def words(self, text: str) -> None:
        """Leave."""
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Async generator 'httpcore2:ResourceWarning")
async def test_leaving_in_the_middle_tells_how_to_stop_the_turn(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(config_for(alone), {"scripted": ScriptedProvider(otherwise=says("All right."))}) as place:
        await place.constellation()
        server = RunningServer(pid=1, url=place.url, started_at="", token=place.parts.local_token)
        async with connection(server) as http:
            api, output = Api(http, streams=True), Leaving()
            questions = Questions(Home(api, "home"), output, is_live=False)
            with pytest.raises(KeyboardInterrupt):
                await Talk(Home(api, "home"), output, "ada", None, questions).say("Hello!")
    told = capsys.readouterr().err
    assert "pattern turn cancel turn_" in told
    assert told.endswith(" -c home\n")


def asks_for_consent(home: Pattern) -> None:
    rule = '[{"tool": "block_edit", "type": "requires_consent"}]'
    assert home("agent", "edit", "ada", "-c", "home", "--rules", rule).code == 0


def test_without_a_terminal_one_is_told_how_to_answer(home: Pattern) -> None:
    asks_for_consent(home)
    told = home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
    assert told.code == 3, told.err
    assert "block_edit" in told.err
    (asked,) = home("approvals", "list", "-c", "home", "--json").json
    assert f"pattern approvals approve {asked['id']} -c home" in told.err
    assert home("approvals", "approve", asked["id"], "-c", "home").code == 0
    assert "Lisbon" in home("chat", "-c", "home", "What do you know about Ruth?").out


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


def test_what_becomes_of_a_message_can_be_said(home: Pattern) -> None:
    assert home("chat", "-c", "home", "--policy", "steer", "Hello!").code == 0
    wrong = home("chat", "-c", "home", "--policy", "push", "Hello!")
    assert wrong.code == 2
    assert "rollback" in wrong.err


pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpcore2:ResourceWarning"),
]

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
async def test_a_stream_asks_and_goes_on(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, is_live: bool
) -> None:
    provider = ScriptedProvider([calls("block_edit", EDIT), says("Done so.")], otherwise=says("All right."))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    permission = "human" if kind == "memory" else "read_write"
    rules = None if kind == "memory" else [{"tool": "block_edit", "type": "requires_consent"}]
    async with serving(config_for(alone), {"scripted": provider}) as place:
        block = {"label": "human", "content": "", "permission": permission}
        await place.constellation(memory=[block], tool_rules=rules)
        server = Running(pid=1, url=place.url, started_at="", token=place.parts.local_token)
        async with connection(server) as http:
            api, output = Api(http, streams=True), Output()
            where = path("constellations", "home", "agents", "ada")
            questions = Questions(Home(api, "home"), output, is_live=is_live)
            code = await Talk(Home(api, "home"), output, "ada", None, questions).say("Remember tea.")
            content = (await api.get(f"{where}/memory/human"))["content"]
    shown = capsys.readouterr()
    assert ("Tea." in content) is is_live
    assert code == (3 if kind == "call" and not is_live else 0)
    assert ("Done so." in shown.out) is (is_live or kind == "memory")
    assert ("Agree?" in shown.err) is is_live
    assert ("pattern approvals approve" in shown.err) is not is_live


async def test_an_answer_that_is_refused_is_told(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(config_for(alone)) as place:
        await place.constellation()
        server = Running(pid=1, url=place.url, started_at="", token=place.parts.local_token)
        async with connection(server) as http:
            questions = Questions(Home(Api(http, streams=True), "home"), Output(), is_live=True)
            assert not await questions._answer("apr_none", {"decision": "approve"})
    assert "apr_none" in capsys.readouterr().err
