"""`pattern demo`: it runs, its chapters hold, and it fails loudly when a claim does not hold."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pattern_core.errors import Unavailable
from pattern_server.cli import child, demo, run
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import Api, RunningServer, ServerEvent, connection
from pattern_server.cli.command import Home
from pattern_server.cli.demo import (
    DAYS,
    FACT,
    ClaimFailed,
    Demo,
    approve,
    check_survival,
    claim,
    copy,
    ended,
    merge,
    note,
    program,
    say,
    search,
    send_until_killed,
)
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json
from tests.pattern_server.place import DETERMINISTIC, Place, config_for, serving

Chapter = Callable[[Demo], Awaitable[None]]
LINES_MAX, COLUMNS_MAX = 8, 80


def chapters(shown: str) -> list[list[str]]:
    """The lines of each chapter, with its heading."""
    return [lines for part in shown.split("\n\n") if (lines := part.splitlines())[0][:1].isdigit()]


@pytest.mark.slow
def test_it_runs_in_short_chapters_and_leaves_its_files_in_the_given_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--data-dir", str(tmp_path / "demo")]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    parts = chapters(shown)
    assert [lines[0][:2] for lines in parts] == [f"{number}." for number in range(1, 8)]
    assert [lines for lines in parts if len(lines) > LINES_MAX] == []
    assert [line for lines in parts for line in lines if len(line) > COLUMNS_MAX] == []
    ending = shown.partition("Everything above was checked, in ")[2].splitlines()
    assert [line.split()[:2] for line in ending[1:4]] == [["pattern", command] for command in ("up", "chat", "why")]
    assert (tmp_path / "demo" / "home.db").exists()
    assert run(["demo", "--data-dir", str(tmp_path / "demo")]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.slow
def test_a_claim_that_does_not_hold_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "QUESTION", "Where is Atlantis?")
    assert run(["demo"]) == 1
    shown = capsys.readouterr()
    assert "Atlantis" in shown.err
    assert "Everything above was checked" not in shown.out


class Here(ServerProcess):
    """A child that is the test's own server."""

    def __init__(self, place: Place) -> None:
        self._server = RunningServer(pid=os.getpid(), url=place.url, started_at="", token=place.parts.local_token)

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        """The API of the test's server."""
        async with connection(self._server) as http:
            yield Api(http, streams=True)


@asynccontextmanager
async def begun(folder: Path, **embeddings: Any) -> AsyncIterator[Demo]:
    """A demo whose first chapter is over."""
    async with serving(config_for(folder, embeddings=embeddings or DETERMINISTIC)) as place:
        await place.constellation(model_provider="embedded", memory=[{"label": "human", "content": ""}])
        one = Demo(folder=folder, child=Here(place), output=Output())
        async with one.home() as home:
            await say(home, f"Remember that {FACT}")
        yield one


async def test_what_the_chapters_show(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "BY_MEANING", "the plumber in the cellar")  # this model knows only words
    async with begun(alone) as one:
        for chapter in (merge, search, approve, copy):
            await chapter(one)
    shown = capsys.readouterr().out
    for words in (
        "  ada  Ruth arrives on Friday.",
        "  you  The spare key",
        "    $  pattern search --mode meaning 'the plumber",
        "  ada  (asks for approval to remember: The code",
        "    ✓  the call ran after your approval",
        "       - Ruth is allergic to nuts. (memory block human)",
    ):
        assert words in shown, words


@pytest.mark.parametrize(
    ("name", "value", "chapter", "broken"),
    [
        ("FACT", "Ruth likes nuts.", merge, "the lines of both authors"),
        ("BY_WORDS", "frozen pond", search, "finds the note"),
        ("BY_MEANING", "submarines", search, "finds the note|with certainty"),
        ("SECRET", "", approve, "what was not approved"),
        ("QUESTION", "Where is Atlantis?", copy, "the answer to"),
    ],
)
async def test_a_chapter_that_does_not_hold_ends_the_demo(
    alone: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, chapter: Chapter, broken: str
) -> None:
    monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "WAIT_S", 2.0)  # the texts are embedded one second after the start
    with pytest.raises(ExceptionGroup) as failed:
        async with begun(alone) as one:
            await chapter(one)
    assert failed.group_contains(ClaimFailed, match=broken)


async def test_without_an_embedding_model_it_says_so(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with begun(alone, provider="none") as one:
        await search(one)
    assert "Search by meaning is off: " in capsys.readouterr().out


def test_claims() -> None:
    claim([1], "something is there")
    with pytest.raises(ClaimFailed, match="nothing is there"):
        claim([], "nothing is there")


def turn(*said: tuple[str, str], status: str = "completed") -> Answer:
    return as_json({"status": status, "messages": [{"role": role, "content": content} for role, content in said]})


async def test_an_answer_is_what_the_agent_said() -> None:
    said = [("user", "Hello."), ("assistant", ""), ("tool", "{}"), ("assistant", "Good day."), ("assistant", "Ada.")]
    assert await say(Home(api_of(lambda _: turn(*said)), "home"), "Hello.") == "Good day.\nAda."
    with pytest.raises(ClaimFailed, match="failed"):
        await say(Home(api_of(lambda _: turn(status="failed")), "home"), "Hello.")


def test_a_program_that_no_shell_would_find_is_named_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/pattern", "demo"])
    assert program() == ".venv/bin/pattern"
    (tmp_path / "pattern").touch(mode=0o755)
    assert program() == "pattern"
    monkeypatch.setattr(sys, "argv", ["/somewhere/pattern_server/__main__.py"])
    assert program() == "pattern"


NOTES = [note(day) for day in range(1, DAYS + 1)]
TURNS = [f"turn_{day}" for day in range(1, DAYS + 1)]
SEEN = list(range(1, DAYS + 1))


class Server(Home):
    """Stands for the API of a server that holds `notes`, in its history and in memory, and `events`."""

    def __init__(self, notes: list[str], written: list[str], events: list[int]) -> None:
        self.notes, self.written, self.numbers = notes, written, events

    async def pages(self, *_below: str, **_: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": text} for text in reversed(self.notes)]

    async def get(self, *_below: str, **_: object) -> dict[str, str]:
        return {"content": "\n".join(self.written)}

    def events(self, *below: str, after: int | None = None, **_: Any) -> Server:  # type: ignore[override]  # a stand-in
        assert (below, after) == (("events",), 0)
        self.left = iter(self.numbers)
        return self

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __aiter__(self) -> Server:
        return self

    async def __anext__(self) -> ServerEvent:
        for number in self.left:
            return event(number)
        raise StopAsyncIteration


def event(number: int) -> ServerEvent:
    return ServerEvent(seq=number, name="turn.completed", data={"turn_id": f"turn_{number}"})


async def check(folder: Path, server: Server, seen: list[int]) -> None:
    one = Demo(folder=folder, child=ServerProcess(folder), output=Output())
    await check_survival(one, server, [event(number) for number in seen], TURNS)


async def test_a_server_that_loses_nothing(tmp_path: Path) -> None:
    await check(tmp_path, Server(NOTES, NOTES, [*SEEN, DAYS + 1]), SEEN)  # what came later is not read


@pytest.mark.parametrize(
    ("notes", "written", "seen", "words"),
    [
        (NOTES[:-1], NOTES, SEEN, "each once, in order"),
        ([*NOTES, NOTES[0]], NOTES, SEEN, "each once, in order"),
        (NOTES[::-1], NOTES, SEEN, "each once, in order"),
        (NOTES, NOTES[1:], SEEN, "no tool ran twice"),
        (NOTES, [*NOTES, NOTES[3]], SEEN, "no tool ran twice"),
        (NOTES, NOTES, SEEN[:-1], "exactly one end"),
        (NOTES, NOTES, [1, *SEEN], "exactly one end"),
        (NOTES, NOTES, [0, *SEEN], "none missing or twice"),
    ],
)
async def test_a_server_that_does(
    tmp_path: Path, notes: list[str], written: list[str], seen: list[int], words: str
) -> None:
    with pytest.raises(ClaimFailed, match=words):
        await check(tmp_path, Server(notes, written, SEEN), seen)


async def test_a_server_that_is_not_ready_in_time_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "START_TIMEOUT_S", 0.0)
    server = child.ServerProcess(tmp_path)
    try:
        with pytest.raises(Unavailable, match="not ready within 0 s"):
            await server.start()
    finally:
        await server.kill()


def test_only_terminal_events_end_a_turn() -> None:
    begun = ServerEvent(seq=4, name="turn.started", data={"turn_id": "turn_4"})
    assert ended([begun, event(5), event(5)]) == ["turn_5", "turn_5"]


class Child(ServerProcess):
    """Stands for a server's process: it accepts every message, and notes how many it had when it was killed."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.kills: list[int] = []

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        yield Api(self, streams=True)  # type: ignore[arg-type]  # it is also the client that reaches it

    async def request(self, _method: str, _where: str, *, headers: dict[str, str], **_given: object) -> httpx2.Response:
        self.keys.append(headers["Idempotency-Key"])
        return httpx2.Response(202, json={"turn_id": f"turn_{self.keys[-1]}"})

    async def kill(self) -> None:
        self.kills.append(len(self.keys))


async def test_a_server_that_was_too_fast_is_killed_once_more(tmp_path: Path) -> None:
    process, accepted = Child(), dict[int, str]()
    for count in (3, 6):
        await send_until_killed(Demo(folder=tmp_path, child=process, output=Output()), accepted, count)
    assert process.keys == [f"demo-day-{day:02d}" for day in range(1, 8)], "nothing that was accepted is sent again"
    assert process.kills == [4, 7]
    assert sorted(accepted) == list(range(1, 8))
    assert max(demo.KILLED_AFTER) < DAYS
