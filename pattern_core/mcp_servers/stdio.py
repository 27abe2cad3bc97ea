"""A program that is spoken to over its standard streams, a line of JSON for each message; and its end.

The library brings a transport of its own, which keeps lines of any length in memory, hands on the server's own
environment, and leaves behind whatever detached itself from the program; hence this one.

Source: the transport `stdio` of the Model Context Protocol, 2025-11-25.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import trio

from pattern_core.errors import Unavailable
from pattern_core.mcp_servers.settings import Stdio

LINE_BYTES_MAX = 4 * 1024 * 1024  # of one message: a picture as text, and still read in some hundredths of a second
UNITS_PER_S = 500  # a line costs one unit, and one more for each UNIT_BYTES of it
UNIT_BYTES = 64 * 1024
TAIL_BYTES = 4096  # of standard error, where the last words are looked for
PIECE_BYTES = 64 * 1024
GARBAGE_MAX = 100  # lines on standard output that are no message, before the program counts as none
POLITE_S = 1.0  # for a program to end when nobody speaks to it any more
GRACE_S = 1.0  # then, between SIGTERM and SIGKILL
PATIENCE_S = 3.0  # with a guard that should have ended everything
_GUARD = Path(__file__).with_name("guard.py")

M = TypeVar("M")


class McpLink:
    """What is known of a connection while it lasts, whatever its transport.

    Whoever notices first that it is of no use says why; `lost` is set then. `hang_up` is called when the connection is
    about to be left: whoever still waits to send need not wait longer.
    """

    def __init__(self) -> None:
        self.lost = trio.Event()
        self.reason = ""
        self.hang_up: Callable[[], None] = lambda: None

    def lose(self, reason: str) -> None:
        """Note that the connection is lost; the first reason counts."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()


class LineTooLong(Exception):
    """More came than a line may hold."""


class Lines:
    """Puts pieces together to lines."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def add(self, piece: bytes) -> None:
        """Take what came next.

        Raises:
            LineTooLong: the line under way is longer than `LINE_BYTES_MAX`.
        """
        first, *others = piece.split(b"\n")
        self._begin(first)
        for other in others:
            self._waiting.append(b"".join(self._begun))
            self._begun, self._begun_bytes = [], 0
            self._begin(other)

    def next(self) -> bytes | None:
        """The next whole line without its end, empty ones left out; None if there is none yet."""
        while self._waiting:
            line = self._waiting.popleft().strip()
            if line:
                return line
        return None

    def _begin(self, piece: bytes) -> None:
        self._begun_bytes += len(piece)
        if self._begun_bytes > LINE_BYTES_MAX:
            raise LineTooLong
        self._begun.append(piece)


class Pace:
    """Lets through `UNITS_PER_S`: who sends faster waits, since nobody reads the pipe meanwhile."""

    def __init__(self) -> None:
        self._since = trio.current_time()
        self._spent = 0

    async def take(self, size: int) -> None:
        """Wait until a line of so many bytes may be read."""
        now = trio.current_time()
        if now - self._since >= 1:
            self._since, self._spent = now, 0
        self._spent += 1 + size // UNIT_BYTES
        if self._spent > UNITS_PER_S:
            await trio.sleep(self._since + 1 - now)
        else:
            await trio.lowlevel.checkpoint()


class Tail:
    """The last words that a program wrote to its standard error."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, piece: bytes) -> None:
        """Take what came next; what is older than `TAIL_BYTES` is forgotten."""
        self._kept = (self._kept + piece)[-TAIL_BYTES:]

    @property
    def last_line(self) -> str:
        """The last line that is not empty, for people; empty if there is none."""
        lines = [line.strip() for line in self._kept.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")


class _Stream:
    """What the library wants of a stream besides sending or receiving."""

    async def aclose(self) -> None:
        """Close it."""
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> _Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_Stream, Generic[M]):
    """The program's messages. Its end is the connection's; lines that are none are passed over, up to a number."""

    def __init__(self, pipe: trio.abc.ReceiveStream, read: Callable[[bytes], M], link: McpLink) -> None:
        self._pipe = pipe
        self._read = read
        self._link = link
        self._lines = Lines()
        self._pace = Pace()
        self._garbage = 0

    def __aiter__(self) -> Incoming[M]:
        return self

    async def __anext__(self) -> M:
        """The next message."""
        while True:
            line = self._lines.next()
            if line is None:
                await self._more()
                continue
            await self._pace.take(len(line))
            try:
                return self._read(line)
            except ValueError:
                self._garbage += 1
            if self._garbage > GARBAGE_MAX:
                self._over("it writes to its standard output what is no message; it should log to standard error")

    async def receive(self) -> M:
        """The next message.

        Raises:
            EndOfChannel: no more will come.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    async def _more(self) -> None:
        try:
            piece = await self._pipe.receive_some(PIECE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            piece = b""
        if not piece:
            self._over("its program ended")
        try:
            self._lines.add(bytes(piece))
        except LineTooLong:
            self._over("it sent a message that is too long")

    def _over(self, reason: str) -> None:
        self._link.lose(reason)
        raise StopAsyncIteration


class Outgoing(_Stream, Generic[M]):
    """Messages to the program. What is sent after the connection was lost goes nowhere: its end is told elsewhere."""

    def __init__(self, send: trio.MemorySendChannel[M]) -> None:
        self._send = send

    async def send(self, item: M) -> None:
        """Hand the message to the task that writes; whole or, if cancelled before, not at all."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._send.send(item)

    async def aclose(self) -> None:
        """Close it."""
        await self._send.aclose()


@asynccontextmanager
async def started(
    settings: Stdio, link: McpLink, read: Callable[[bytes], M], write: Callable[[M], bytes]
) -> AsyncIterator[tuple[Incoming[M], Outgoing[M]]]:
    """Start the program; nothing of it survives the block.

    `read` makes a message of a line and raises ValueError if it is none; `write` makes a line of a message.

    Raises:
        Unavailable: there are no processes to be had.
    """
    process, lifeline = await _open(settings)
    assert process.stdout is not None  # it was opened with pipes
    assert process.stderr is not None
    send, receive = trio.open_memory_channel[M](0)
    link.hang_up = receive.close
    tail = Tail()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process, receive, write, link)
            nursery.start_soon(_listen, process.stderr, tail)
            try:
                yield Incoming(process.stdout, read, link), Outgoing(send)
            finally:
                receive.close()
                send.close()
                with trio.CancelScope(shield=True):
                    await _end(process, lifeline)
                nursery.cancel_scope.cancel()
    finally:
        if tail.last_line and link.lost.is_set():
            link.reason = f"{link.reason}; its last words: {tail.last_line[:300]}"


async def _open(settings: Stdio) -> tuple[trio.Process, int]:
    """The running program, and the descriptor whose closing ends it."""
    lifeline, kept = os.pipe()
    try:
        plan = {"command": [settings.command, *settings.args], "lifeline": lifeline, "grace_s": GRACE_S}
        process = await trio.lowlevel.open_process(
            # Isolated and without site-packages: it needs the standard library only, and starts in a third of the time.
            [sys.executable, "-I", "-S", str(_GUARD), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(lifeline,),
            start_new_session=True,
            cwd=settings.cwd,
            env={name: value.reveal() for name, value in settings.environment.items()},
        )
    except OSError as error:
        os.close(kept)
        raise Unavailable(f"it cannot be started in {settings.cwd}: {error.strerror}") from error
    except BaseException:
        os.close(kept)
        raise
    finally:
        os.close(lifeline)
    return process, kept


async def _write(
    process: trio.Process, messages: trio.MemoryReceiveChannel[M], write: Callable[[M], bytes], link: McpLink
) -> None:
    """Write whole lines, one after the other: who asked for one may have left meanwhile."""
    assert process.stdin is not None  # it was opened with pipes
    with messages, suppress(trio.ClosedResourceError):  # closed in the end, so that nobody waits to send
        async for message in messages:
            try:
                await process.stdin.send_all(write(message) + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                link.lose("its program takes no more input")
                return


async def _listen(pipe: trio.abc.ReceiveStream, tail: Tail) -> None:
    """Read what it logs, so that it is kept waiting only when it logs without end."""
    pace = Pace()
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while piece := await pipe.receive_some(PIECE_BYTES):
            tail.add(bytes(piece))
            await pace.take(len(piece))


async def _end(process: trio.Process, lifeline: int) -> None:
    """Say goodbye, then insist, and be sure that nothing is left."""
    if process.stdin is not None:
        await process.stdin.aclose()
    with trio.move_on_after(POLITE_S):
        await process.wait()
    os.close(lifeline)
    with trio.move_on_after(GRACE_S + PATIENCE_S if process.returncode is None else math.inf):
        await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()
