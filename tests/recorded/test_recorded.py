"""The server and the command line answer what is recorded; the recordings reach every route and show what changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trio.testing import MockClock

from pattern_server.cli import COMMANDS
from pattern_server.http.app import api_routes
from tests.recorded.__main__ import HERE, answers, differences, recordings
from tests.recorded.player import MISSING, patient_clock
from tests.recorded.script import Step, read, write

REQUESTS_MIN, COMMANDS_MIN = 200, 60
BYTES_MAX = 1_500_000
# What runs until it is stopped, what describes the machine, and what waits for input at a terminal.
NOT_RECORDED = {"acp", "serve", "demo", "doctor", "up", "down", "status"}


@pytest.fixture
def clock() -> MockClock:
    """The clock of these tests, which pytest-trio finds by its type."""
    return patient_clock()


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.relative_to(HERE).with_suffix("").as_posix())
async def test_the_answers_are_the_recorded_ones(path: Path, clock: MockClock) -> None:
    steps = read(path.read_text(encoding="utf-8"))
    found = list(differences(steps, await answers(steps)))
    assert not found, "\n\n".join(
        [*found, "If that is meant: python -m tests.recorded --write, and look at the change."]
    )


def test_every_route_and_command_is_recorded() -> None:
    steps = [step for path in recordings() for step in read(path.read_text(encoding="utf-8"))]
    requests = [step for step in steps if step.method]
    commands = [step.command.split()[0] for step in steps if step.command]
    assert len(requests) >= REQUESTS_MIN
    assert len(commands) >= COMMANDS_MIN
    asked_for = ((step.method, step.path.partition("?")[0]) for step in requests)
    paths = {(method, path[1:] if path.startswith("//") else f"/api/v1{path}") for method, path in asked_for}
    unasked = [
        f"{method} {route.path}"
        for route in api_routes()
        for method in route.methods or ()
        if not any(asked == method and route.path_regex.match(where) for asked, where in paths)
    ]
    unasked += [f"$ {command}" for command in sorted(set(COMMANDS) - NOT_RECORDED - set(commands))]
    assert not unasked, f"add steps for {unasked} to a script in tests/recorded, then python -m tests.recorded --write"


def test_the_recordings_hold_nothing_of_a_machine() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in recordings()}
    assert sum(len(text.encode()) for text in texts.values()) < BYTES_MAX
    for path, text in texts.items():
        assert not re.search(r"(?<!\w)/(tmp|home|root|Users|var)/|localhost|127\.0\.0\.1", text), path
        assert f"| {MISSING} " not in text, f"{path}: a step wants to keep what is not in its answer"


SCRIPT = """# Somebody reads.
GET /me as ben:read
Accept: text/plain
| 200
| {
|  "name": "ben"
| }

clock 5
$ memory list -c home
< words
| exit 0"""


def test_a_script_is_read_and_written_as_it_was() -> None:
    first, second = steps = read(SCRIPT)
    assert (first.name, first.who, first.headers) == ("GET /me", "ben:read", {"Accept": "text/plain"})
    assert (second.command, second.stdin, second.clock_s) == ("memory list -c home", "words\n", 5)
    assert write(steps, [step.recorded for step in steps]) == SCRIPT + "\n"


def test_another_answer_is_found_with_its_step() -> None:
    steps: list[Step] = read(SCRIPT)
    assert list(differences(steps, [step.recorded for step in steps])) == []
    (found,) = differences(steps, [["| 200", "| {", '|  "username": "ben"', "| }"], ["| exit 0"]])
    assert found.startswith("step 1: GET /me")
    assert '-|  "name": "ben"\n+|  "username": "ben"' in found


def test_a_line_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="no part of a step: 'GOT /me'"):
        read("GOT /me")
