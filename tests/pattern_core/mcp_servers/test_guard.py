"""The guard: what it guards ends with the lifeline, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest
import trio

from pattern_core.mcp_servers import guard
from tests.pattern_core.mcp_servers.rig import is_alive

STUBBORN = "trap '' TERM; setsid sleep 600 & echo $!; while true; do sleep 0.1; done"


def start(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    lifeline, kept = os.pipe()
    plan = json.dumps({"command": command, "lifeline": lifeline, "grace_s": 0.2})
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(guard.__file__), plan],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(lifeline,),
    )
    os.close(lifeline)
    return process, kept


def test_the_program_has_the_streams_and_its_code_is_told() -> None:
    process, kept = start(["/bin/sh", "-c", "read line; echo got $line; echo logged >&2; exit 7"])
    out, err = process.communicate(b"words\n", timeout=60)
    os.close(kept)
    assert (out, err, process.returncode) == (b"got words\n", b"logged\n", 7)


def test_a_program_that_does_not_exist() -> None:
    process, kept = start(["no-such-program"])
    _out, err = process.communicate(timeout=60)
    os.close(kept)
    assert (process.returncode, err) == (127, b"no-such-program cannot be started: No such file or directory\n")


@pytest.mark.parametrize("ends_by_itself", [False, True])
async def test_nothing_is_left_also_of_what_detached_itself(ends_by_itself: bool) -> None:
    script = "setsid sleep 600 & echo $!" if ends_by_itself else STUBBORN
    process, kept = start(["/bin/sh", "-c", script])
    assert process.stdout is not None
    child = int(process.stdout.readline())
    if not ends_by_itself:
        assert is_alive(child)
        os.close(kept)  # as when the server dies
    with trio.fail_after(60):
        code = await trio.to_thread.run_sync(process.wait)
    if ends_by_itself:
        os.close(kept)
    was_left = is_alive(child)
    if was_left:
        os.kill(child, signal.SIGKILL)
    process.communicate(timeout=60)
    assert code == (0 if ends_by_itself else 128 + 9)
    assert not was_left
