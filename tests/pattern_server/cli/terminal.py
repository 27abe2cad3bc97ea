"""A program in a pseudo-terminal, as a person sees it: an emulator draws what it prints, and keys are typed."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import pyte
import trio

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0
PATTERN = (sys.executable, "-m", "pattern_server")
UP, LEFT, ALT_ENTER, CTRL_C, CTRL_D, ENTER = "\x1b[A", "\x1b[D", "\x1b\r", "\x03", "\x04", "\r"


class Terminal:
    """The screen of a running program with its scrollback, and its keyboard."""

    def __init__(self, process: trio.Process, fd: int, columns: int, rows: int) -> None:
        self.process = process
        self.raw = b""
        self._fd = fd
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._gone: list[str] = []  # lines that scrolled off

    @property
    def text(self) -> str:
        """All lines, those that scrolled off first, without the spaces at their ends."""
        width, top = range(self._screen.columns), self._screen.history.top
        if len(top) < len(self._gone):
            self._gone.clear()
        new = islice(top, len(self._gone), None)
        self._gone += ["".join(line[column].data for column in width).rstrip() for line in new]
        return "\n".join((*self._gone, *(line.rstrip() for line in self._screen.display))).rstrip()

    @property
    def colours(self) -> set[str]:
        """The colours on the screen."""
        cells = (cell for line in self._screen.buffer.values() for cell in line.values())
        return {colour for cell in cells for colour in (cell.fg, cell.bg)} - {"default"}

    async def type(self, keys: str) -> None:
        """Press keys."""
        await trio.lowlevel.wait_writable(self._fd)
        os.write(self._fd, keys.encode())

    async def until(self, condition: str | Callable[[str], bool]) -> str:
        """Wait until the screen has a text, or is as a function says; return it."""
        holds = (lambda text: condition in text) if isinstance(condition, str) else condition
        with trio.move_on_after(PATIENCE_S):
            while not holds(self.text):
                if not await self._read():
                    break
        assert holds(self.text), f"never seen: {condition!r}; the screen is\n{self.text}"
        return self.text

    async def ended(self) -> int:
        """Wait for the program's end; return its exit code."""
        with trio.fail_after(PATIENCE_S):
            while await self._read():
                pass
            return await self.process.wait()

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def _read(self) -> bool:
        await trio.lowlevel.wait_readable(self._fd)
        try:
            data = os.read(self._fd, 65_536)
        except OSError:  # the other side was closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


@asynccontextmanager
async def terminal(
    *arguments: str, program: Sequence[str] = PATTERN, columns: int = 80, rows: int = 24, **environment: str
) -> AsyncIterator[Terminal]:
    """Run `pattern`, or another program, in a terminal within the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    given = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment}
    # The usual umask, since a server in the test's own process sets a private one.
    attached = partial(os.login_tty, theirs)
    process = await trio.lowlevel.open_process([*program, *arguments], env=given, preexec_fn=attached, umask=0o022)
    os.close(theirs)
    try:
        yield Terminal(process, ours, columns, rows)
    finally:
        os.close(ours)
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
