from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pattern_core.process_tree import code_of, descendants, lead_session, prctl, process_stats

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
