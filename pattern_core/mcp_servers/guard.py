"""The process between the library's transport and an MCP server's program: `python -I -S guard.py PLAN`, PLAN in JSON.

The library starts it in the program's place, and it adds what the library does not do:

- The program does not find the environment variables in `hidden`, which the library adds to what is configured. It
  reads the guard's standard input.
- Of its standard output, lines that are objects are handed on: whole, within `line_bytes_max`, and no faster than a
  server may read them. A longer line ends the program.
- Of its standard error, the last words are kept. When the guard ends it writes there why, with these words.
- Nothing survives. The guard adopts whatever the program leaves behind, however that detached itself. When it gets
  SIGTERM, or the server is dead, everything gets SIGTERM, and SIGKILL after `grace_s`; so does what a program leaves.

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
from threading import Thread
from typing import Any

LOOK_S = 0.5  # between two looks whether the server is there
END_S = 2.0  # for killed processes to be gone
UNITS_PER_S = 500  # a line costs one unit, and one more for each PIECE_BYTES of it
PIECE_BYTES = 64 * 1024
TAIL_BYTES = 4096  # of standard error, where the last words are looked for
WORDS_CHARS_MAX = 300
CANNOT_START = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(arguments: Sequence[str]) -> int:
    """Run the plan's command until it ends or has to; returns its exit code, or 128 and the signal that ended it."""
    plan, server = json.loads(arguments[0]), os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_CHILD_SUBREAPER, 1)
    signals = _Signals()
    (output, program_output), (errors, program_errors) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_become(libc, plan, program_output, program_errors))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the conversation is the program's
    os.close(program_output)
    os.close(program_errors)
    told: list[str] = []
    tail = bytearray()
    threads = (
        Thread(target=_hand_on, args=(output, int(plan["line_bytes_max"]), told), daemon=True),
        Thread(target=_keep_tail, args=(errors, tail), daemon=True),
    )
    for thread in threads:
        thread.start()
    code, was_stopped = _until_over(child, server, float(plan["grace_s"]), signals)
    _end_the_rest(child)
    for thread in threads:
        thread.join(END_S)
    if told or not was_stopped:
        lines = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
        reason = told[0] if told else "its program ended"
        os.write(2, "; its last words: ".join([reason, *lines[-1:]])[:WORDS_CHARS_MAX].encode())
    return code


def _become(libc: ctypes.CDLL, plan: Mapping[str, Any], output: int, errors: int) -> int:
    command = plan["command"]
    os.setsid()
    _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):  # Python ignores the first two
        signal.signal(number, signal.SIG_DFL)
    try:
        for name in plan["hidden"]:
            os.unsetenv(name)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    return CANNOT_START


def _hand_on(source: int, line_bytes_max: int, told: list[str]) -> None:
    """Write whole messages to standard output, where nothing else writes; what is no message is left out."""
    waiting = bytearray()
    with suppress(BrokenPipeError):
        while len(waiting) <= line_bytes_max and (piece := os.read(source, PIECE_BYTES)):
            waiting += piece
            end = waiting.rfind(b"\n", len(waiting) - len(piece)) + 1
            lines = [line for line in bytes(waiting[:end]).split(b"\n") if line.lstrip().startswith(b"{")]
            del waiting[:end]
            if lines:
                sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
                sys.stdout.buffer.flush()
            _pause((len(lines) + sum(map(len, lines)) // PIECE_BYTES) / UNITS_PER_S)
    if len(waiting) > line_bytes_max:
        told.append("it sent a message that is too long")
        os.kill(os.getpid(), signal.SIGTERM)


def _keep_tail(source: int, tail: bytearray) -> None:
    while piece := os.read(source, PIECE_BYTES):
        tail += piece
        del tail[:-TAIL_BYTES]
        _pause(1 / UNITS_PER_S)


class _Signals:
    """Wakes whoever waits when a child has ended or this process shall end; `is_asked_to_end` says the latter."""

    def __init__(self) -> None:
        self.is_asked_to_end = False
        self._wakes, waker = os.pipe()
        for end in (self._wakes, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, _number: int, _frame: object) -> None:
        self.is_asked_to_end = True

    def wait(self, seconds: float) -> None:
        """Return after the next signal, or the time."""
        waiting = select.poll()
        waiting.register(self._wakes, select.POLLIN)
        if waiting.poll(seconds * 1000):
            os.read(self._wakes, 4096)


def _until_over(child: int, server: int, grace_s: float, signals: _Signals) -> tuple[int, bool]:
    """Return the program's exit code, and whether it was stopped."""
    kill_at: float | None = None
    while (code := _reaped(child)) is None:
        signals.wait(LOOK_S)
        is_due = os.getppid() != server or signals.is_asked_to_end
        if is_due and kill_at is None:
            kill_at = time.monotonic() + grace_s
            _signal_all(child, signal.SIGTERM)
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal_all(child, signal.SIGKILL)
    return code, kill_at is not None


def _reaped(child: int) -> int | None:
    """Return the program's exit code once it has ended; takes note of all that ended."""
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
        _pause(0.005)


def _signal_all(child: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)  # all there is where there is no /proc
    for pid in list(_below(os.getpid())):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(pid: int) -> Iterator[int]:
    """Yield all that a process started, and what that started, however long the chain."""
    waiting = [pid]
    while waiting:
        tasks = Path(f"/proc/{waiting.pop()}/task")
        with suppress(OSError):
            for task in tasks.iterdir():
                found = [int(child) for child in (task / "children").read_text().split()]
                yield from found
                waiting += found


def _pause(seconds: float) -> None:
    select.poll().poll(seconds * 1000)  # this process has no event loop to wait in


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if hasattr(libc, "prctl"):
        libc.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # a thread may wait for somebody who reads no more
