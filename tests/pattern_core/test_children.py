"""Work in a child process: its answer, or the reason of its failure, and nothing left behind; trees of processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core import child, children
from pattern_core.children import ChildFailed, ChildRefused, isolated, run_child, run_command
from pattern_core.errors import InvalidInput
from pattern_core.patterns import PATTERN_CHARS_MAX, first_match, matching_lines
from pattern_core.process_tree import code_of, descendants, lead_session, prctl, process_stats

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


async def test_of_a_command_the_end_of_its_errors_is_kept_whatever_it_prints() -> None:
    talk = "[out.write('x' * 2**20) for out in (sys.stdout, sys.stderr) for _ in range(100)]; exit('\\nfull')"
    tracemalloc.start()
    try:
        with pytest.raises(ChildFailed, match="ended with exit code 1: full") as failed:
            await run_command([sys.executable, "-c", f"import sys; {talk}"], 120.0)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
    assert len(failed.value.output) <= children.ERRORS_BYTES_MAX
    with pytest.raises(ChildFailed, match=r"exit code 3$"):  # ours alone say by it that they refuse
        await run_command(["sh", "-c", "exit 3"], 60.0)


async def test_a_command_ends_with_all_that_it_started_and_in_time(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with trio.fail_after(60):
        for ending, seconds in (("", 50.0), ("; wait", 1.0)):
            note.unlink(missing_ok=True)
            with pytest.raises(ChildFailed, match="within 1 s") if ending else nullcontext():
                await run_command(["sh", "-c", f'sleep 600 & echo $! > "$0"{ending}', str(note)], seconds)
            while note.exists() and is_running(int(note.read_text())):
                await trio.sleep(0.01)
        await run_command(["cat"], 50.0)  # there is nothing to read


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


# Trees of processes

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")

# Runs a command, stops it when it was given a grace, and ends what it leaves behind.
PROGRAM = """
import json, os, signal, sys
from pattern_core.process_tree import ProcessTree, descendants

command, grace_s = sys.argv[1], json.loads(sys.argv[2])
source, sink = os.pipe()
os.set_inheritable(sink, True)
tree = ProcessTree(lambda: os.execvp("sh", ["sh", "-c", f"exec 3>&{sink}; {command}"]))
os.close(sink)
assert source in tree.wait(60, source)
left = int(os.read(source, 100))
seen = left in descendants(os.getpid())
while not tree.is_over():
    if grace_s is not None:
        tree.stop(grace_s)
    tree.wait(0.05)
tree.end()
print(json.dumps([tree.code, seen, descendants(os.getpid())]))
"""


@pytest.mark.parametrize(
    ("command", "grace_s", "code"),
    [
        ("setsid sleep 600 & echo $! >&3; sleep 0.2; exit 3", None, 3),
        ("setsid sleep 600 & echo $! >&3; sleep 0.2; kill -9 $$", None, 128 + 9),
        ("trap 'sleep 0.2; exit 4' TERM; sleep 600 & echo $! >&3; while true; do sleep 0.01; done", 60, 4),
        ("trap '' TERM; setsid sleep 600 & echo $! >&3; while true; do sleep 0.01; done", 0.2, 128 + 9),
        ("trap 'exit 4' TERM; sleep 600 & echo $! >&3; while true; do sleep 0.01; done", 0, 128 + 9),
    ],
)
def test_a_child_ends_with_all_that_it_started(command: str, grace_s: float | None, code: int) -> None:
    run = [sys.executable, "-c", PROGRAM, command, json.dumps(grace_s)]
    found = subprocess.run(run, capture_output=True, check=True, timeout=60)
    assert json.loads(found.stdout) == [code, True, []]


@needs_proc
def test_descendants_are_found() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 5 & echo started; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        below = descendants(shell.pid)
        assert len(below) == 1
        assert {shell.pid, *below} <= set(descendants(os.getpid()))
        assert dict(process_stats())[below[0]][1] == str(shell.pid)
        os.kill(below[0], 9)
    assert descendants(shell.pid) == []


def in_child(work: Callable[[], None], holds: Callable[[], bool]) -> int:
    """What a child process ends with that did the work: 0 if what should hold then does."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(not holds())
    return code_of(os.waitpid(child, 0)[1])


@needs_proc
def test_a_process_changes_itself() -> None:
    assert in_child(lead_session, lambda: os.getsid(0) == os.getpid()) == 0
    forbid_new_rights = partial(prctl, 38, 1)
    assert in_child(forbid_new_rights, lambda: "NoNewPrivs:\t1" in Path("/proc/self/status").read_text()) == 0
    assert in_child(lambda: os.kill(os.getpid(), 9), lambda: True) == 128 + 9
