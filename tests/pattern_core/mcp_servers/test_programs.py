"""Programs that misbehave on their pipes, and their end; and the guard beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from pattern_core.children import isolated
from pattern_core.errors import Unavailable
from pattern_core.mcp_servers import guard
from tests.pattern_core.mcp_servers.rig import is_alive, owned, program

STUBBORN = "trap '' TERM; setsid sleep 600 & echo {} $!; while true; do sleep 0.1; done"
LINE_BYTES_MAX = 100_000


async def test_it_finds_the_environment_that_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "noisy")}) as it:  # words between messages are passed over
        found = json.loads(str(await it.call("x__environment")))
    found.pop("LC_CTYPE", None)  # Python sets it by itself
    assert found == {"PATH": "/usr/bin:/bin", "COLOUR": "blue"}


async def test_a_line_without_an_end_costs_the_connection(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        with pytest.raises(Unavailable, match="it sent a message that is too long"):
            await it.call("x__flood")
        assert await it.call("x__echo", text="b") == "b"


async def test_half_a_pair_of_surrogates_costs_a_sign(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        assert await it.call("x__halves") == "a \ufffd b \U0001f600 c \\ud800 d \ufffdA"


async def test_an_answer_that_is_nested_too_deep_costs_the_connection_and_no_time(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        with trio.fail_after(20), pytest.raises(Unavailable, match="nested too deep"):
            await it.call("x__deep")  # it may take a minute
        assert await it.call("x__echo", text="b") == "b"


@pytest.mark.parametrize("habits", [(), ("rude",)])
async def test_nothing_that_it_started_survives_it(habits: Sequence[str], tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", *habits)}) as it:
        child = int(str(await it.call("x__leave_child")))
        assert is_alive(child)
        began = trio.current_time()
    assert trio.current_time() - began < 30
    assert not is_alive(child)


async def test_one_that_stops_reading_is_left_in_time(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "mute")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        it.give("x", call_timeout_s=0.2)
        with pytest.raises(Unavailable, match="did not answer"):
            await it.call("x__echo", text="b" * 1_000_000)  # more than the pipe holds


def start(script: str, *, before: Sequence[str] = (), **names: str) -> subprocess.Popen[bytes]:
    """A shell script beside the guard, whose environment is that of the tests and `names`, without HIDDEN."""
    command = ["/bin/sh", "-c", script] if " " in script else [script]
    plan = {"command": command, "hidden": ["HIDDEN"], "line_bytes_max": LINE_BYTES_MAX, "grace_s": 0.2}
    return subprocess.Popen(
        [*before, *isolated(guard.__name__, json.dumps(plan))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **names},
    )


def test_the_program_has_its_streams_and_its_environment_and_its_code_is_passed_on() -> None:
    process = start("read line; echo '{}' $line; echo noise; echo $HIDDEN$A >&2; exit 7", A="1", HIDDEN="2")
    out, err = process.communicate(b"words\n", timeout=60)
    assert (out, err, process.returncode) == (b"{} words\n", b"1\n", 7)


def test_messages_pass_whole_up_to_a_length() -> None:
    long = LINE_BYTES_MAX - 10
    script = f"printf '{{%0{long}d}}\\n' 1; printf '  {{2}}\\n{{3'; printf '}}\\n[4]\\n\\n{{5}}\\n';"
    script += f"printf '%0{2 * long}d' 1; sleep 60"
    out, err = start(script).communicate(timeout=60)
    assert [len(line) for line in out.splitlines()] == [long + 2, 5, 3, 3]
    assert err == b"\nstopped: it sent a message that is too long"


def test_who_talks_too_much_waits() -> None:
    process = start("yes '{}' | head -n 1000; echo last >&2")
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began > 1000 / guard.UNITS_PER_S
    assert (len(out), err) == (3_000, b"last\n")


# It starts its arguments, says nothing, and dies when its standard input closes.
SERVER = "import os, subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read(); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize("end", ["by itself", "stopped", "server dead"])
async def test_nothing_is_left_also_of_what_detached_itself(end: str) -> None:
    before = [sys.executable, "-c", SERVER] if end == "server dead" else []
    process = start("setsid sleep 600 & echo {} $!" if end == "by itself" else STUBBORN, before=before)
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline().split()[1])
    if end == "stopped":
        process.terminate()
    process.stdin.close()
    with trio.fail_after(60):
        assert await trio.to_thread.run_sync(process.stdout.read) == b""  # the guard has ended
    was_left = is_alive(child)
    if was_left:
        os.kill(child, signal.SIGKILL)
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert not was_left
    assert process.wait(60) == {"by itself": 0, "stopped": 128 + 9, "server dead": -9}[end]
