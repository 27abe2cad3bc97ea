"""`pattern demo`: it runs, its stations hold, and it fails loudly when a promise does not hold."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pattern_core.errors import Unavailable
from pattern_server.cli import child, demo, demo_kill, run
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import Api, RunningServer, ServerEvent, connection
from pattern_server.cli.command import Home
from pattern_server.cli.demo import (
    Tour,
    answer_of,
    ask_for_consent,
    consent_at_last,
    explain,
    find,
    keep_limits,
    say,
)
from pattern_server.cli.demo_kill import DAYS, ClaimFailed, Watch, claim
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json
from tests.pattern_server.place import DETERMINISTIC, Place, config_for, serving

Station = Callable[[Tour], Awaitable[None]]


class Here(ServerProcess):
    """A child that is the test's own server."""

    def __init__(self, place: Place) -> None:
        self._server = RunningServer(pid=os.getpid(), url=place.url, started_at="", token=place.parts.local_token)

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        """The API of the test's server."""
        async with connection(self._server) as http:
            yield Api(http, streams=True)


def turn(*said: tuple[str, str], status: str = "completed") -> Answer:
    return as_json({"status": status, "messages": [{"role": role, "content": content} for role, content in said]})


def test_claims() -> None:
    claim([1], "something is there")
    with pytest.raises(ClaimFailed, match="nothing is there"):
        claim([], "nothing is there")


def test_an_answer_is_what_the_agent_said() -> None:
    said = [("user", "Hello."), ("assistant", ""), ("tool", "{}"), ("assistant", "Good day."), ("assistant", "Ada.")]
    assert answer_of({"messages": [{"role": role, "content": content} for role, content in said]}) == "Good day.\nAda."


async def test_a_turn_that_does_not_complete_ends_the_tour() -> None:
    with pytest.raises(ClaimFailed, match="failed"):
        await say(Home(api_of(lambda _: turn(status="failed")), "home"), "Hello.")


@asynccontextmanager
async def touring(folder: Path, **embeddings: Any) -> AsyncIterator[Tour]:
    """A tour in a constellation with the agent ada."""
    async with serving(config_for(folder, embeddings=embeddings or DETERMINISTIC)) as place:
        block = {"label": "human", "content": "Ruth is allergic to walnuts.\n"}
        await place.constellation(model_provider="embedded", memory=[block])
        yield Tour(folder=folder, child=Here(place), output=Output())


async def test_what_the_stations_show(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "BY_MEANING", "plumber in the cellar")  # this model knows only words
    async with touring(alone) as tour:
        for station in (explain, find, ask_for_consent, consent_at_last, keep_limits):
            await station(tour)
    shown = capsys.readouterr().out
    for words in (
        "by user   Undid version 1",
        "   ada> ",
        "(file boiler.md)",
        "and by meaning (",
        "what cleo asked is still open: cleo wants to run block_edit(",
        "is too low for this call",
        "│ core human",
    ):
        assert words in shown, words


@pytest.mark.parametrize(
    ("name", "value", "stations", "broken"),
    [
        ("BY_MEANING", "walnuts", [find], "burst pipe"),
        ("BUDGET_TOKENS", 1_000_000, [ask_for_consent, keep_limits], "might pass a budget"),
    ],
)
async def test_a_station_that_does_not_hold_ends_the_tour(
    alone: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, stations: list[Station], broken: str
) -> None:
    monkeypatch.setattr(demo, name, value)
    with pytest.raises(ExceptionGroup) as failed:
        async with touring(alone) as tour:
            for station in stations:
                await station(tour)
    assert failed.group_contains(ClaimFailed, match=broken)


async def test_without_a_model_it_says_so(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with touring(alone, provider="none") as tour:
        await find(tour)
    assert "by words alone, since there is no model for meaning here" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tour_runs_and_leaves_its_files_in_the_given_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--data-dir", str(tmp_path / "tour")]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "All of it held" in shown
    assert "Lisbon" in shown
    assert [f"\n{number}. " in shown for number in range(1, 10)] == [True] * 8 + [False]
    assert (tmp_path / "tour" / "home.db").exists()
    assert run(["demo", "--data-dir", str(tmp_path / "tour")]) == 1
    assert "not empty" in capsys.readouterr().err


@pytest.mark.slow
def test_a_promise_that_does_not_hold_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "none")  # the tour ends before it would find anything
    monkeypatch.setattr(demo, "ASKED", (("What do you know about Ruth?", ("Timbuktu",)),))
    assert run(["demo"]) == 1
    shown = capsys.readouterr()
    assert "Timbuktu" in shown.err
    assert "All of it held" not in shown.out


NOTES = [demo_kill._note(day) for day in range(1, DAYS + 1)]


class Server:
    """Stands for the API of a server that holds `notes`, in its history and in memory, and `events`."""

    def __init__(self, notes: list[str], written: list[str], events: list[int]) -> None:
        self.notes, self.written, self.numbers = notes, written, events

    async def pages(self, _where: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": note} for note in reversed(self.notes)]

    async def get(self, _where: str) -> dict[str, str]:
        return {"content": "\n".join(self.written)}

    def events(self, _where: str, *, after: int) -> Server:
        assert after == 0
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


async def check(server: Server, seen: list[int]) -> None:
    watch = Watch(seen=[event(number) for number in seen])
    await demo_kill._check(server, Output(), watch)  # type: ignore[arg-type]  # a stand-in for the API


async def test_a_server_that_keeps_its_word() -> None:
    await check(Server(NOTES, NOTES, [1, 2, 3, 4]), [1, 2, 3])  # what came later is not read


@pytest.mark.parametrize(
    ("notes", "written", "seen", "words"),
    [
        (NOTES[:-1], NOTES, [1, 2, 3], "stored once"),
        ([*NOTES, NOTES[0]], NOTES, [1, 2, 3], "stored once"),
        (NOTES[::-1], NOTES, [1, 2, 3], "in order"),
        (NOTES, NOTES[1:], [1, 2, 3], "exactly once"),
        (NOTES, [*NOTES, NOTES[3]], [1, 2, 3], "exactly once"),
        (NOTES, NOTES, [1, 3], "missed"),
        (NOTES, NOTES, [1, 2, 2, 3], "repeated nothing"),
    ],
)
async def test_a_server_that_does_not(notes: list[str], written: list[str], seen: list[int], words: str) -> None:
    with pytest.raises(ClaimFailed, match=words):
        await check(Server(notes, written, [1, 2, 3]), seen)


async def test_a_server_that_is_not_ready_in_time_ends_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "START_TIMEOUT_S", 0.0)
    server = child.ServerProcess(tmp_path)
    try:
        with pytest.raises(Unavailable, match="not ready within 0 s"):
            await server.start()
    finally:
        await server.kill()


def test_a_watch_knows_where_it_is() -> None:
    assert Watch().latest == 0
    assert Watch(seen=[event(4), event(7)]).latest == 7
    assert Watch(seen=[event(4)]).ended() == ["turn_4"]


class Child:
    """Stands for a server's process: it takes every message, and notes how many it had when it was killed."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.kills: list[int] = []

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Child]:
        yield self

    async def call(self, _method: str, _where: str, *, headers: dict[str, str], **_given: object) -> dict[str, str]:
        self.keys.append(headers["Idempotency-Key"])
        return {"turn_id": f"turn_{self.keys[-1]}"}

    async def kill(self) -> None:
        self.kills.append(len(self.keys))


async def test_a_server_that_was_too_fast_is_killed_once_more() -> None:
    child, accepted = Child(), dict[int, str]()
    for count in (3, 6):
        await demo_kill._send_until_killed(child, accepted, count)  # type: ignore[arg-type]  # a stand-in
    assert child.keys == [f"demo-day-{day:02d}" for day in range(1, 8)], "nothing that was accepted is sent again"
    assert child.kills == [4, 7]
    assert sorted(accepted) == list(range(1, 8))
    assert max(demo_kill.KILLED_AFTER) < DAYS
