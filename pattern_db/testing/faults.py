"""A disk that fails when it is told to: errors at the n-th call of a kind, or no space beyond a size; and heals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import apsw

from pattern_db.testing.watched import Call, Op, WatchedDisk


class Trouble(StrEnum):
    """What the operating system says: an error of the device (EIO), or no space (ENOSPC)."""

    IO = "io"
    FULL = "full"


@dataclass(slots=True, kw_only=True)
class _Fault:
    op: Op
    trouble: Trouble
    skip: int
    left: float


class FaultyDisk(WatchedDisk):
    """A disk that works until told otherwise. A write that fails leaves its first half behind, as real ones may.

    `calls` counts the calls by kind, `failed` those that were made to fail. `is_default` as in `WatchedDisk`.
    """

    def __init__(self, *, is_default: bool = False) -> None:
        super().__init__(is_default=is_default)
        self._folder: Path | None = None
        self.calls: Counter[Op] = Counter()
        self.failed: Counter[Op] = Counter()
        self._faults: list[_Fault] = []
        self._capacity: int | None = None
        self._sizes: dict[str, int] = {}

    def fail(self, op: Op, *, nth: int = 1, count: float = 1, trouble: Trouble = Trouble.IO) -> None:
        """Make the `nth` call of this kind from now on fail, and the ones after it until `count` have failed.

        `count=math.inf` goes on until `heal`.
        """
        self._faults.append(_Fault(op=op, trouble=trouble, skip=nth - 1, left=count))

    def limit(self, capacity: int) -> None:
        """Let the files that were opened here grow to `capacity` bytes together from now on."""
        self._capacity = capacity

    def within(self, folder: Path) -> None:
        """Let only what lies in `folder` fail and count from now on."""
        self._folder = folder

    def heal(self) -> None:
        """Work again."""
        self._faults.clear()
        self._capacity = None

    @property
    def used(self) -> int:
        """Bytes of all files that were opened here and not deleted."""
        return sum(self._sizes.values())

    def before(self, call: Call) -> None:
        """Count the call; raise if it is one that shall fail."""
        if self._folder is not None and self._folder not in Path(call.path).parents:
            return
        self.calls[call.op] += 1
        trouble = self._trouble(call)
        if trouble is None:
            return
        self.failed[call.op] += 1
        if trouble is Trouble.FULL:
            raise apsw.FullError(f"the test's disk is full: {call.op} of {call.path}")
        if call.op is Op.OPEN:
            raise apsw.CantOpenError(f"the test's disk fails: {call.op} of {call.path}")
        raise apsw.IOError(f"the test's disk fails: {call.op} of {call.path}")

    def kept(self, call: Call) -> int:
        """The first half of a refused write."""
        return call.size // 2

    def done(self, call: Call) -> None:
        """Keep account of the sizes."""
        if self._folder is not None and self._folder not in Path(call.path).parents:
            return
        match call.op:
            case Op.WRITE:
                self._sizes[call.path] = max(self._sizes.get(call.path, 0), call.offset + call.size)
            case Op.TRUNCATE | Op.OPEN:
                self._sizes[call.path] = call.size
            case Op.DELETE:
                self._sizes.pop(call.path, None)

    def _trouble(self, call: Call) -> Trouble | None:
        for fault in self._faults:
            if fault.op is not call.op or fault.left <= 0:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.left -= 1
            return fault.trouble
        if self._capacity is not None and call.op is Op.WRITE:
            grown = call.offset + call.size - self._sizes.get(call.path, 0)
            if grown > 0 and self.used + grown > self._capacity:
                return Trouble.FULL
        return None
