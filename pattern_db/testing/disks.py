"""Stand-ins for disks: disks that fail on demand and disks that lose power; part of the product, and tested.

They are VFSs that pass every call to the operating system and notify a subclass before and after; tests make others
(one that hangs, one that kills the process in the middle of a commit). Open a database on one with
`Database.open(path, threads, vfs=disk.name)` or `open_connection(path, vfs=disk.name)`.

`PowerLossDisk` records, in addition to the real files, what a power cut could leave: per file the content as of its
last sync and the writes since, per folder the entries as of its last sync. The model: a sync makes a file's content and
size durable; a folder's entries (a file made or deleted) are durable when the folder was synced, which SQLite does with
the first sync of a new journal. Unsynced writes reach the platter in any order, each sector of 512 bytes by itself:
new, old, or (while it is being written) garbage. Sectors that were not written to stay as they are, which is what
SQLite calls powersafe overwrite and assumes of all disks.

Source: "The SQLite OS Interface or VFS", sqlite.org/vfs.html; apsw's documentation, "Virtual File System (VFS)";
"Atomic Commit In SQLite", sqlite.org/atomiccommit.html, section 2; "Powersafe Overwrite", sqlite.org/psow.html.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import apsw

_numbers = itertools.count(1)
_OPEN_CREATE = apsw.SQLITE_OPEN_CREATE
_NEW_SYNCS_FOLDER = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class Op(StrEnum):
    """What SQLite asks of a file, or of its folder (open, delete)."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call. `size` is in bytes: of what is read or written, of the file after a truncation or an open.

    `data` is what is written. `is_new` means that an open creates the file; `syncs_folder` that a delete, or the sync
    of a journal created by this opening, also makes the folder's entries durable.
    """

    op: Op
    path: str
    offset: int = 0
    size: int = 0
    data: bytes = b""
    is_new: bool = False
    syncs_folder: bool = False


class WatchedDisk(apsw.VFS):
    """The operating system's files as a VFS with its own name; one per test.

    With `is_default`, whatever is opened in this process is on it, until `unregister`; that is for whole servers.
    `unregister` it when every connection on it is closed. Temporary files without a name are not watched.
    """

    def __init__(self, *, is_default: bool = False) -> None:
        self.name = f"{type(self).__name__}-{next(_numbers)}"
        self.base = apsw.vfs_names()[0]
        super().__init__(self.name, base=self.base, makedefault=is_default)

    def before(self, call: Call) -> None:
        """Act before the operating system is called; SQLite gets the `apsw.Error` that it raises."""

    def kept(self, call: Call) -> int:
        """Return how many bytes of a write that `before` refused are written anyway."""
        return 0

    def done(self, call: Call) -> None:
        """Act after the call of the operating system. Must not raise."""

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
        """Open a file, watched if it has a name."""
        if name is None:
            return apsw.VFSFile(self.base, name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        is_new = bool(flags[0] & _OPEN_CREATE) and not Path(path).exists()
        call = Call(op=Op.OPEN, path=path, is_new=is_new)
        self.before(call)
        file = _WatchedFile(self, path, name, flags, folder_due=is_new and bool(flags[0] & _NEW_SYNCS_FOLDER))
        self.done(replace(call, size=file.xFileSize()))
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - apsw's name
        """Delete a file."""
        call = Call(op=Op.DELETE, path=filename, syncs_folder=syncdir)
        self.before(call)
        super().xDelete(filename, syncdir)
        self.done(call)


class _WatchedFile(apsw.VFSFile):
    def __init__(
        self, disk: WatchedDisk, path: str, name: str | apsw.URIFilename, flags: list[int], *, folder_due: bool
    ) -> None:
        super().__init__(disk.base, name, flags)
        self._disk = disk
        self._path = path
        self._folder_due = folder_due

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - apsw's name
        call = Call(op=Op.READ, path=self._path, offset=offset, size=amount)
        self._disk.before(call)
        data = super().xRead(amount, offset)
        self._disk.done(call)
        return data

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - apsw's name
        content = bytes(data)
        call = Call(op=Op.WRITE, path=self._path, offset=offset, size=len(content), data=content)
        try:
            self._disk.before(call)
        except apsw.Error:
            kept = self._disk.kept(call)
            if kept:
                super().xWrite(content[:kept], offset)
            raise
        super().xWrite(content, offset)
        self._disk.done(call)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - apsw's name
        call = Call(op=Op.TRUNCATE, path=self._path, size=newsize)
        self._disk.before(call)
        super().xTruncate(newsize)
        self._disk.done(call)

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
        call = Call(op=Op.SYNC, path=self._path, syncs_folder=self._folder_due)
        self._disk.before(call)
        super().xSync(flags)
        self._folder_due = False
        self._disk.done(call)


class Trouble(StrEnum):
    """The operating system's error: a device error (EIO), or no space (ENOSPC)."""

    IO = "io"
    FULL = "full"


@dataclass(slots=True, kw_only=True)
class _Fault:
    op: Op
    trouble: Trouble
    skip: int
    left: float


class FaultyDisk(WatchedDisk):
    """A disk that works until a failure is set. A write that fails leaves its first half behind, as real ones may.

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

        `count=math.inf` lasts until `heal`.
        """
        self._faults.append(_Fault(op=op, trouble=trouble, skip=nth - 1, left=count))

    def limit(self, capacity: int) -> None:
        """Limit the files that were opened here to `capacity` bytes together from now on."""
        self._capacity = capacity

    def within(self, folder: Path) -> None:
        """Fail and count only calls in `folder` from now on."""
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
        """Count the call; raise if it must fail."""
        if self._folder is not None and self._folder not in Path(call.path).parents:
            return
        self.calls[call.op] += 1
        trouble = self._trouble(call)
        # What moves a log into its file has room here: SQLite passes over a full disk then, but apsw would raise it.
        if trouble is None or (trouble is Trouble.FULL and f"{call.path}-wal" in self._sizes):
            return
        self.failed[call.op] += 1
        if trouble is Trouble.FULL:
            raise apsw.FullError(f"the test's disk is full: {call.op} of {call.path}")
        if call.op is Op.OPEN:
            raise apsw.CantOpenError(f"the test's disk fails: {call.op} of {call.path}")
        raise apsw.IOError(f"the test's disk fails: {call.op} of {call.path}")

    def kept(self, call: Call) -> int:
        """Return the first half of a refused write."""
        return call.size // 2

    def done(self, call: Call) -> None:
        """Update the sizes."""
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


SECTOR_BYTES = 512
_CHANGES = frozenset({Op.WRITE, Op.SYNC, Op.TRUNCATE, Op.DELETE})


class Chance(Protocol):
    """A source of random bits: a `random.Random` or the core's `Randomness`."""

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of `k` random bits."""
        ...


class Left(StrEnum):
    """What a power cut leaves of unsynced writes: nothing, everything (as a killed process does), or a random part."""

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
        """Return the content with each unsynced write present, missing or partial; truncations present or missing."""
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
    """A disk with power that can be cut at the n-th change, or at any moment.

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
        """Cut the power at the `change`-th change of a file, counted as `changes`; the current write is unsynced."""
        self._cut_at = change

    def cut(self) -> None:
        """Cut the power now: all later writes are lost."""
        self.is_off = True

    def before(self, call: Call) -> None:
        """Cut the power if it is due; refuse everything after that."""
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
        """Update what is durable."""
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
        """Write to the real files what the power cut left. Close every connection first.

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
        """Return the target of the folder's entry `path`."""
        if left is Left.NOTHING or (left is Left.CHANCE and chance.getrandbits(1)):
            return self._durable_names.get(path)
        return self._names.get(path)

    def _inode(self, path: str) -> _Inode:
        """Return the file at `path`; one that this disk did not create existed before, and is durable."""
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
