"""One-shot child processes: work on bytes that may be malicious, and commands of the operator.

The work is a function of ours from bytes to bytes, called in the child (`child.py`). Input that exhausts memory or
time, crashes a parser or aborts a library ends only that process. A child leads its own session: everything that it
starts is killed with it, when it ends, at the time-out and when the caller is cancelled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import trio
from trio.abc import ReceiveStream, SendStream

from pattern_core.child import REFUSED

OUTPUT_BYTES_MAX = 32 * 1024 * 1024
ERRORS_BYTES_MAX = 2_000  # of standard error: its end, with Python's error message
_PROGRAM = "pattern_core.child"
_ROOT = Path(__file__).resolve().parents[1]  # where `-m` finds our packages, in a checkout and in site-packages

Work = Callable[..., bytes | Iterator[bytes]]
"""A function of a module, called with the input and any number of texts; its results are written piece by piece. If it
raises a `PatternError`, the input is refused.
"""


class ChildFailed(Exception):
    """The child did not do its work. `reason` says how it ended, as in "the child {reason}"; `output` came before."""

    def __init__(self, reason: str, output: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.output = output


class ChildRefused(ChildFailed):
    """The work refused its input; `reason` is the message of its `PatternError`."""


def isolated(program: str, argument: str) -> list[str]:
    """Return the command that runs a program of ours (`pattern_core.…`) with one argument.

    For programs that need only the standard library: without site-packages they start in a third of the time. They
    import nothing from their working directory, and ignore environment variables.
    """
    start = f"import runpy, sys; sys.path.append({str(_ROOT)!r}); runpy.run_module({program!r}, run_name='__main__')"
    return [sys.executable, "-I", "-S", "-c", start, argument]


async def run_child(work: Work, data: bytes, *arguments: str, timeout_s: float, cpu_s: int, memory_bytes: int) -> bytes:
    """Return `work(data, *arguments)`, called in a process of its own. It writes no files, and at most
    `OUTPUT_BYTES_MAX` of output; memory is bounded if the system supports it.

    Raises:
        ChildRefused: the work refused its input.
        ChildFailed: the process died, could not be started, ran too long or wrote too much.
    """
    bounds = [str(memory_bytes), str(cpu_s)]
    command = [sys.executable, "-m", _PROGRAM, *bounds, work.__module__, work.__qualname__, *arguments]
    return await _run(command, data, timeout_s, is_ours=True)


async def run_command(command: Sequence[str], timeout_s: float) -> None:
    """Run a program of the operator's, found by `PATH`. Nothing that it prints is kept but the end of its errors.

    Raises:
        ChildFailed: its exit code was not 0, it could not be started, or ran too long.
    """
    await _run(command, b"", timeout_s, is_ours=False)


async def _run(command: Sequence[str], data: bytes, timeout_s: float, *, is_ours: bool) -> bytes:
    """Run a command; of one that `is_ours`, keep the output and know what a refusal is."""
    pipe = subprocess.PIPE
    cwd, take = (_ROOT, _gather) if is_ours else (None, _keep_end)
    try:
        process = await trio.lowlevel.open_process(
            command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, start_new_session=True
        )
    except OSError as error:
        raise ChildFailed(f"could not be started: {error}") from error
    assert process.stdin and process.stdout and process.stderr
    output, errors = bytearray(), bytearray()
    try:
        with trio.move_on_after(timeout_s) as deadline:
            async with process.stdin, process.stdout, process.stderr, trio.open_nursery() as nursery:
                nursery.start_soon(_feed, process.stdin, data)
                nursery.start_soon(take, process.stdout, output, nursery.cancel_scope)
                nursery.start_soon(_keep_end, process.stderr, errors, nursery.cancel_scope)
                await process.wait()
                _kill(process)  # processes that it started hold its pipes open
    finally:
        _kill(process)
        with trio.CancelScope(shield=True):
            await process.wait()
    if len(output) > OUTPUT_BYTES_MAX:
        raise ChildFailed(f"wrote more than {OUTPUT_BYTES_MAX} bytes")
    if deadline.cancelled_caught:
        raise ChildFailed(f"did not finish within {timeout_s:g} s", bytes(output))
    said = errors.decode(errors="replace")
    if is_ours and process.returncode == REFUSED:
        raise ChildRefused(said)
    if process.returncode:
        raise ChildFailed(_death(process.returncode, said), bytes(output))
    return bytes(output)


async def _feed(stream: SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # it may end before it has read everything
        await stream.send_all(data)
    await stream.aclose()


async def _gather(stream: ReceiveStream, output: bytearray, scope: trio.CancelScope) -> None:
    async for piece in stream:
        output += piece
        if len(output) > OUTPUT_BYTES_MAX:
            scope.cancel()


async def _keep_end(stream: ReceiveStream, kept: bytearray, _scope: trio.CancelScope) -> None:
    async for piece in stream:
        kept += piece
        del kept[:-ERRORS_BYTES_MAX]


def _kill(process: trio.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS forbids it if only a zombie is left
        os.killpg(process.pid, signal.SIGKILL)


def _death(code: int, said: str) -> str:
    how = f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"
    lines = said.strip().splitlines()
    return f"{how}: {lines[-1][:200]}" if lines else how
