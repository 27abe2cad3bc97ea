"""What a command prints, kept within a bound: how it began and how it ends."""

from __future__ import annotations

import re

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 24 * 1024
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Output:
    """Bytes as they come, of which the first `head_bytes` and the last `tail_bytes` are kept; `total` counts all."""

    def __init__(self, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self.total = 0
        self._head_max = head_bytes
        self._tail_max = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take bytes in."""
        self.total += len(data)
        room = self._head_max - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_max:  # cut rarely, since cutting copies
            del self._tail[: -self._tail_max]

    @property
    def left_out(self) -> int:
        """How many bytes in the middle are not shown."""
        return max(0, self.total - self._head_max - self._tail_max)

    def text(self) -> str:
        """What is kept, with a line in the place of what is not."""
        tail = bytes(self._tail[-self._tail_max :])
        if not self.left_out:
            return readable(bytes(self._head) + tail)
        return f"{readable(bytes(self._head))}\n[… {self.left_out} bytes left out …]\n{readable(tail)}"

    def since(self, position: int) -> tuple[str, int]:
        """What came after the first `position` bytes, as far as it is kept; and how many bytes of it are lost."""
        kept = bytes(self._head) + bytes(self._tail[-self._tail_max :])
        if not self.left_out:
            return readable(kept[position:]), 0
        tail_from = self.total - self._tail_max
        if position >= tail_from:
            return readable(kept[self._head_max + position - tail_from :]), 0
        return readable(kept[self._head_max :]), tail_from - position


def readable(data: bytes) -> str:
    """Bytes as text: what is no UTF-8 is replaced; colours and other commands to a terminal are taken out."""
    text = _TERMINAL.sub("", data.decode("utf-8", "replace"))
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
