"""The process between the server and an MCP server's program: `python -I -S guard.py PLAN`, PLAN in JSON.

It takes no part in the conversation: the program has the guard's own standard streams. It is there for the end, when
nothing may survive: it adopts whatever the program leaves behind, however that detached itself. The descriptor
`lifeline` closes when the server wants the end or is dead itself; then everything gets SIGTERM, and SIGKILL after
`grace_s`. When the program ends by itself, what it started ends with it.

Run by its path, without our packages and without site-packages, so it imports the standard library only.

Sources: prctl(2), proc(5).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

END_S = 2.0  # for killed processes to be gone
CANNOT_START = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(arguments: Sequence[str]) -> int:
    """Run the plan's command; returns its exit code, or 128 and the signal that ended it."""
    plan = json.loads(arguments[0])
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_CHILD_SUBREAPER, 1)
    waker, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        os._exit(_become(libc, plan))
    # The conversation ends when the program ends, not when this process does.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    code = _until_over(child, int(plan["lifeline"]), waker, float(plan["grace_s"]))
    _end_the_rest(child)
    return code


def _become(libc: ctypes.CDLL, plan: Mapping[str, object]) -> int:
    command = plan["command"]
    assert isinstance(command, list)
    os.close(int(str(plan["lifeline"])))
    os.setsid()
    _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    return CANNOT_START


def _until_over(child: int, lifeline: int, waker: int, grace_s: float) -> int:
    watched = select.poll()
    watched.register(lifeline, select.POLLIN | select.POLLHUP)
    watched.register(waker, select.POLLIN)
    kill_at: float | None = None
    while (code := _reaped(child)) is None:
        wait_s = None if kill_at is None else max(kill_at - time.monotonic(), 0) + 0.05
        events = dict(watched.poll(None if wait_s is None else wait_s * 1000))
        if waker in events:
            os.read(waker, 4096)
        if lifeline in events:
            watched.unregister(lifeline)
            kill_at = time.monotonic() + grace_s
            _signal_all(child, signal.SIGTERM)
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal_all(child, signal.SIGKILL)
    return code


def _reaped(child: int) -> int | None:
    """The program's exit code once it has ended; takes note of all that ended."""
    code = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                ended = os.waitstatus_to_exitcode(found[1])
                code = ended if ended >= 0 else 128 - ended
    return code


def _end_the_rest(child: int) -> None:
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        _signal_all(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.poll().poll(5)


def _signal_all(child: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)  # all there is where there is no /proc
    for pid in list(_below(os.getpid())):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(pid: int) -> Iterator[int]:
    """All that a process started, and what that started, however long the chain."""
    waiting = [pid]
    while waiting:
        tasks = Path(f"/proc/{waiting.pop()}/task")
        with suppress(OSError):
            for task in tasks.iterdir():
                found = [int(child) for child in (task / "children").read_text().split()]
                yield from found
                waiting += found


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if hasattr(libc, "prctl"):
        libc.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
