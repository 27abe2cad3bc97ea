"""A disk that loses its power: what was not synced may be gone, half written, or garbage.

It keeps beside the real files what a power cut could leave: per file the content as of its last sync and the writes
since, per folder the entries as of its last sync. After `cut` nothing works any more; `restore` writes to the real
files what a power cut left, in the worst case or by chance.

The model: a sync makes a file's content and size durable; a folder's entries (a file made or deleted) are durable
when the folder was synced, which SQLite does with the first sync of a new journal. Unsynced writes reach the platter
in any order, each sector of 512 bytes by itself: new, old, or (while it is being written) garbage. Sectors that
nobody wrote to stay as they are, which is what SQLite calls powersafe overwrite and assumes of all disks.

Source: "Atomic Commit In SQLite", sqlite.org/atomiccommit.html, section 2; "Powersafe Overwrite", sqlite.org/psow.html.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import apsw

from pattern_db.testing.watched import Call, Op, WatchedDisk

SECTOR_BYTES = 512
_CHANGES = frozenset({Op.WRITE, Op.SYNC, Op.TRUNCATE, Op.DELETE})


class Chance(Protocol):
    """Where random bits come from; a `random.Random` or the core's `Randomness`."""

    def getrandbits(self, k: int, /) -> int:
        """An integer of `k` random bits."""
        ...


class Left(StrEnum):
    """What a power cut leaves of unsynced work: nothing, everything (as a killed process does), or some by chance."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    CHANCE = "chance"


@dataclass(slots=True, eq=False)
class _Inode:
    """One file's content: as of its last sync, and the writes and truncations since, in order."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Call] = field(default_factory=list)

    def sync(self) -> None:
        for call in self.pending:
            _apply(self.durable, call)
        self.pending.clear()

    def now(self) -> bytearray:
        content = bytearray(self.durable)
        for call in self.pending:
            _apply(content, call)
        return content

    def torn(self, chance: Chance) -> bytearray:
        """The content with each unsynced write there, not there, or there in part; truncations there or not."""
        content = bytearray(self.durable)
        for call in self.pending:
            fate = chance.getrandbits(2)
            if fate == 0:
                continue
            if fate == 1 and call.op is Op.WRITE:
                _tear(content, call, chance)
            else:
                _apply(content, call)
        return content


class PowerLossDisk(WatchedDisk):
    """A disk whose power can be cut at the n-th change, or at any moment.

    `changes` counts the writes, syncs, truncations and deletions, `syncs` the syncs that were completed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_off = False
        self.changes = 0
        self.syncs = 0
        self._cut_at: int | None = None
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}

    def cut_at(self, change: int) -> None:
        """Cut the power at the `change`-th change of a file, counted as `changes` is; a write at hand is unsynced."""
        self._cut_at = change

    def cut(self) -> None:
        """Cut the power now: nothing that is written from here on exists."""
        self.is_off = True

    def before(self, call: Call) -> None:
        """Cut the power if it is time; refuse everything once it is cut."""
        if self.is_off:
            raise _off(call)
        if call.op in _CHANGES:
            self.changes += 1
            if self._cut_at is not None and self.changes >= self._cut_at:
                if call.op in (Op.WRITE, Op.TRUNCATE):
                    self._inode(call.path).pending.append(call)
                self.cut()
                raise _off(call)

    def done(self, call: Call) -> None:
        """Keep account of what is durable."""
        match call.op:
            case Op.OPEN if call.is_new:
                self._names[call.path] = _Inode()
            case Op.OPEN:
                self._inode(call.path)
            case Op.WRITE | Op.TRUNCATE:
                self._inode(call.path).pending.append(call)
            case Op.SYNC:
                self.syncs += 1
                self._inode(call.path).sync()
                if call.syncs_folder:
                    self._sync_folder(call.path)
            case Op.DELETE:
                self._names.pop(call.path, None)
                if call.syncs_folder:
                    self._sync_folder(call.path)

    def restore(self, left: Left, chance: Chance) -> None:
        """Write to the real files what the power cut left. Close every connection before.

        Raises:
            OSError: the real disk refused.
        """
        self.cut()
        for path in sorted({*self._names, *self._durable_names}):
            inode = self._entry(path, left, chance)
            if inode is None:
                Path(path).unlink(missing_ok=True)
            else:
                Path(path).write_bytes(_content(inode, left, chance))
            Path(path + "-shm").unlink(missing_ok=True)  # shared memory, gone with the machine

    def _entry(self, path: str, left: Left, chance: Chance) -> _Inode | None:
        """What the folder's entry `path` leads to."""
        if left is Left.NOTHING or (left is Left.CHANCE and chance.getrandbits(1)):
            return self._durable_names.get(path)
        return self._names.get(path)

    def _inode(self, path: str) -> _Inode:
        """The file at `path`; one that this disk did not make was there before, and is durable as it is."""
        inode = self._names.get(path)
        if inode is None:
            inode = self._names[path] = self._durable_names[path] = _Inode(bytearray(Path(path).read_bytes()))
        return inode

    def _sync_folder(self, path: str) -> None:
        folder = Path(path).parent
        for known in {*self._names, *self._durable_names}:
            if Path(known).parent != folder:
                continue
            if known in self._names:
                self._durable_names[known] = self._names[known]
            else:
                del self._durable_names[known]


def _content(inode: _Inode, left: Left, chance: Chance) -> bytearray:
    match left:
        case Left.NOTHING:
            return inode.durable
        case Left.EVERYTHING:
            return inode.now()
        case Left.CHANCE:
            return inode.torn(chance)


def _apply(content: bytearray, call: Call) -> None:
    if call.op is Op.TRUNCATE:
        del content[call.size :]
        content.extend(bytes(max(0, call.size - len(content))))
        return
    content.extend(bytes(max(0, call.offset - len(content))))
    content[call.offset : call.offset + call.size] = call.data


def _tear(content: bytearray, call: Call, chance: Chance) -> None:
    """Write some of the call's sectors: each is new, old, or garbage."""
    content.extend(bytes(max(0, call.offset + call.size - len(content))))
    at = call.offset
    while at < call.offset + call.size:
        end = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, call.offset + call.size)
        fate = chance.getrandbits(3)
        if fate == 0:
            content[at:end] = bytes(chance.getrandbits(8) for _ in range(end - at))
        elif fate < 5:
            content[at:end] = call.data[at - call.offset : end - call.offset]
        at = end


def _off(call: Call) -> apsw.IOError:
    return apsw.IOError(f"the test's disk has no power: {call.op} of {call.path}")
