"""What is asked in the middle of a conversation: on a real stream, and what typed lines mean."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pattern_core.testing.model import ScriptedProvider, calls, says
from pattern_server.cli.chat import Talk
from pattern_server.cli.chat_questions import Questions, answer_of, turn_of
from pattern_server.cli.client import Api, connection, path
from pattern_server.cli.client import RunningServer as Running
from pattern_server.cli.output import Output
from tests.pattern_server.place import config_for, serving

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
            questions = Questions(api, output, "home", is_live=is_live)
            code = await Talk(api, output, "home", "ada", policy=None, questions=questions).say("Remember tea.")
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
            questions = Questions(Api(http, streams=True), Output(), "home", is_live=True)
            assert not await questions._answer("apr_none", {"decision": "approve"})
    assert "apr_none" in capsys.readouterr().err
