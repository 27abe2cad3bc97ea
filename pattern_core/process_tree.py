"""A child process with all its descendants, even detached ones: waited for, counted and ended.

For the programs that supervise others (`shell/launcher.py`, `mcp_servers/guard.py`). They are started by `isolated` in
`children.py`, without site-packages, so this imports the standard library only.

Sources: prctl(2), proc(5).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

END_S = 2.0  # for killed processes to end
LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class ProcessTree:
    """The only child of this process, which runs `begin` and exits with its result, and all its descendants.

    Processes that the child leaves behind become children of this process. With `is_contained` the child is the first
    process of a namespace instead: it passes SIGTERM on, and ends all others when it ends.
    """

    def __init__(self, begin: Callable[[], int], *, is_contained: bool = False) -> None:
        self.code = 0  # the child's exit code, or 128 and the signal that ended it
        self._is_over = False
        self._is_contained = is_contained
        self._kill_at: float | None = None
        if not is_contained:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._wakes, waker = os.pipe()
        for end in (self._wakes, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._child = os.fork()
        if self._child == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD):  # Python ignores two
                signal.signal(number, signal.SIG_DFL)
            lead_session()
            os._exit(begin())

    def is_over(self) -> bool:
        """Return whether the child has ended, and reap everything that has."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._child:
                    self._is_over, self.code = True, code_of(found[1])
        return self._is_over

    def wait(self, seconds: float, *watched: int) -> Collection[int]:
        """Wait for a signal, for one of the `watched` descriptors, or for the time; return which descriptors are ready.

        Processes that were stopped and are overdue are killed.
        """
        waiting = select.poll()
        for descriptor in (self._wakes, *watched):
            waiting.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _event in waiting.poll(seconds * 1000)]
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)
        return ready

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to everything, and SIGKILL after `grace_s` (immediately if 0); later calls do nothing."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_s
            self._signal(signal.SIGTERM if grace_s else signal.SIGKILL)

    def end(self) -> None:
        """Kill what the child left behind, and wait until it has ended, `END_S` at most."""
        deadline = time.monotonic() + END_S
        while not self._is_contained and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            select.poll().poll(5)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            # The group first: one call ends most processes that multiply faster than they can be listed.
            (os.kill if self._is_contained else os.killpg)(self._child, number)
        for pid in () if self._is_contained else descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def descendants(root: int) -> list[int]:
    """Return all processes below `root`, from /proc; none if the system has no /proc.

    The time depends only on the number of processes, not on their depth: a program decides how many there are.
    """
    children: dict[int, list[int]] = {}
    for pid, fields in process_stats():
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(pid)
    below: list[int] = []
    waiting = [root]
    while waiting:
        found = children.pop(waiting.pop(), [])
        below += found
        waiting += found
    return below


def process_stats() -> Iterator[tuple[int, list[str]]]:
    """Yield every process that /proc shows, with the fields after its name: state, parent …"""
    with suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    stat = (entry / "stat").read_text("utf-8", "replace")
                    yield int(entry.name), stat.rpartition(")")[2].split()


def lead_session() -> None:
    """Make this process the leader of a session, killed when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


def prctl(option: int, value: int) -> None:
    """Call prctl(2), if the system has it."""
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def code_of(ended: int) -> int:
    """Return the exit code of an ended process, or 128 and the signal that ended it."""
    code = os.waitstatus_to_exitcode(ended)
    return code if code >= 0 else 128 - code
