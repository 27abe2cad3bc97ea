"""Bytes of a pipe as lines, and how fast they are taken: a program that talks too much must only harm itself."""

from __future__ import annotations

from collections import deque

import trio

LINE_BYTES_MAX = 4 * 1024 * 1024  # of one message: a picture as text, and still read in some hundredths of a second
UNITS_PER_S = 500  # a line costs one unit, and one more for each UNIT_BYTES of it
UNIT_BYTES = 64 * 1024
TAIL_BYTES = 4096


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
