"""Work in a child process: its answer, or the reason of its failure, and nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core import child, children
from pattern_core.children import ChildFailed, ChildRefused, isolated, run_child
from pattern_core.errors import InvalidInput
from pattern_core.patterns import PATTERN_CHARS_MAX, first_match, matching_lines

run = partial(run_child, timeout_s=60.0, cpu_s=5, memory_bytes=512 * 2**20)


def echo(data: bytes, *arguments: str) -> bytes:
    return data + " ".join(arguments).encode()


def refuse(_data: bytes) -> bytes:
    raise InvalidInput("it does not fit")


def die(data: bytes) -> Iterator[bytes]:
    yield data
    os.kill(os.getpid(), signal.SIGABRT)


def stumble(_data: bytes) -> bytes:
    raise ValueError("not like this")


def spin(_data: bytes) -> bytes:
    while True:
        pass


def sleep(data: bytes) -> Iterator[bytes]:
    yield data
    time.sleep(600)


def swell(_data: bytes) -> bytes:
    return bytes(2**30)


def flood(_data: bytes) -> Iterator[bytes]:
    while True:
        yield bytes(2**20)


def write(data: bytes) -> bytes:
    Path(os.fsdecode(data)).write_text("words")
    return b"written"


def leave_one(_data: bytes) -> bytes:
    """Start a process that holds our pipes and outlives us; its id."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return str(started.pid).encode()


def limits_here(_data: bytes) -> bytes:
    return repr([resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_CORE)]).encode()


async def test_the_answer_is_what_the_function_returns() -> None:
    assert await run(echo, b"tea ", "and", "owls") == b"tea and owls"
    assert await run(echo, bytes(3_000_000)) == bytes(3_000_000)  # more than any pipe holds
    assert await run(limits_here, b"") == b"[(5, 5), (0, 0)]"


async def test_what_the_work_refuses_comes_with_its_reason() -> None:
    with pytest.raises(ChildRefused, match="it does not fit"):
        await run(refuse, b"")


async def test_a_death_has_its_reason_and_what_came_before_it() -> None:
    with pytest.raises(ChildFailed, match="ended with signal 6") as failed:
        await run(die, b"one")
    assert failed.value.output == b"one"
    with pytest.raises(ChildFailed, match="exit code 1: ValueError: not like this"):
        await run(stumble, bytes(3_000_000))


async def test_time_memory_output_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChildFailed, match="ended with signal"):
        await run(spin, b"", cpu_s=1)
    with pytest.raises(ChildFailed, match="within 2 s") as failed:
        await run(sleep, b"one", timeout_s=2.0)
    assert failed.value.output in (b"one", b"")  # nothing where the machine took that long to start it
    if sys.platform == "linux":
        with pytest.raises(ChildFailed, match="MemoryError"):
            await run(swell, b"")
    with pytest.raises(ChildFailed, match=r"File too large|signal"):
        await run(write, os.fsencode(tmp_path / "a"))
    monkeypatch.setattr(children, "OUTPUT_BYTES_MAX", 2**20)
    with trio.fail_after(60), pytest.raises(ChildFailed, match="more than 1048576 bytes"):
        await run(flood, b"")


async def test_what_it_started_ends_with_it() -> None:
    with trio.fail_after(60):
        left = int(await run(leave_one, b""))
        while is_running(left):
            await trio.sleep(0.01)


async def test_cancelling_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[trio.Process] = []
    open_process = trio.lowlevel.open_process

    async def noted(command: Sequence[str], **options: Any) -> trio.Process:
        started.append(await open_process(command, **options))
        return started[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", noted)
    with trio.move_on_after(0.5) as scope:
        await run(sleep, b"")
    assert scope.cancelled_caught
    assert all(process.returncode == -signal.SIGKILL for process in started)


async def test_what_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildFailed, match="could not be started"):
        await run(echo, b"")


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return not Path("/proc").exists()
    return False


def test_an_isolated_program_imports_nothing_from_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('found me')")
    plan = {"command": ["echo", "{}"], "hidden": [], "line_bytes_max": 100, "grace_s": 1}
    command = isolated("pattern_core.mcp_servers.guard", json.dumps(plan))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=60)
    assert found.stdout == b"{}\n"


def match(pattern: str, template: str, text: str) -> object:
    return json.loads(child.first_match(json.dumps({"pattern": pattern, "template": template, "text": text}).encode()))


async def test_the_first_match_with_its_groups() -> None:
    assert match("é\\x00", "🌍", "aé\x00") == [1, 3, "🌍"]
    assert match("z", "x", "abbc") is None
    for pattern, template in (("(" * 5000 + ")" * 5000, ""), ("a{99999999999999999999}", "")):
        with pytest.raises(InvalidInput):
            match(pattern, template, "a")
    found = await first_match(r"(b\w+) (\w+)", r"\2 \1", "a big 🌍 blue sky")
    assert found == (8, 16, "sky blue")
    assert await first_match("x", "y", "abc") is None
    for pattern, template in (("(", ""), ("a", r"\9"), ("a", r"\g<none>")):
        with pytest.raises(InvalidInput):
            match(pattern, template, "a")
        with pytest.raises(InvalidInput, match="malformed"):
            await first_match(pattern, template, "a")


async def test_lines_are_matched_one_by_one() -> None:
    texts = [[(3, "a beet\nno\nA bean")], [(1, "bean"), (7, "beak")]]
    lines = [(0, 3, "a beet"), (0, 5, "A bean"), (1, 1, "bean"), (1, 7, "beak")]
    assert await matching_lines("be.", texts, limit=10, ignore_case=False) == lines
    assert await matching_lines("^a", texts, limit=10, ignore_case=True) == lines[:2]
    question = {"pattern": "^b", "texts": [[(3, "a\nB")], *texts[1:]], "limit": 2, "ignore_case": True}
    assert json.loads(child.matching_lines(json.dumps(question).encode())) == [[0, 4, "B"], [1, 1, "bean"]]
    with pytest.raises(InvalidInput):
        child.matching_lines(json.dumps({**question, "pattern": "("}).encode())
    with pytest.raises(InvalidInput, match="malformed"):
        await matching_lines("(", [], limit=1, ignore_case=False)


async def test_a_pattern_without_end_is_given_up() -> None:
    with pytest.raises(InvalidInput, match="too long to match; make it simpler or replace plain text"):
        await first_match(r"(a|a)*b", "", "a" * 60)
    with pytest.raises(InvalidInput, match="too long to match; make it simpler, or name one file"):
        await matching_lines("(a|a)*b", [[(1, "a" * 60)]], limit=1, ignore_case=False)


async def test_a_long_pattern_is_refused_and_one_at_the_bound_is_not() -> None:
    assert await first_match("a" * PATTERN_CHARS_MAX, "b", "a") is None
    with pytest.raises(InvalidInput, match="at most 1000"):
        await first_match("a" * (PATTERN_CHARS_MAX + 1), "b", "a")
