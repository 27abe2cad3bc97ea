"""A VFS that passes every call on to the operating system and tells a subclass before and after.

The stand-ins beside it are made of it: `PowerLossDisk`, `FaultyDisk`; tests make others (one that hangs, one that
kills the process in the middle of a commit). Open a database on one with `Database.open(path, threads, vfs=disk.name)`
or `open_connection(path, vfs=disk.name)`.

Source: "The SQLite OS Interface or VFS", sqlite.org/vfs.html; apsw's documentation, "Virtual File System (VFS)".
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

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

    `data` is what is written. `is_new` tells that an open makes the file; `syncs_folder` that a delete, or the sync
    of a journal that was made by this opening, also makes the folder's entries durable.
    """

    op: Op
    path: str
    offset: int = 0
    size: int = 0
    data: bytes = b""
    is_new: bool = False
    syncs_folder: bool = False


class WatchedDisk(apsw.VFS):
    """The operating system's files under a name of their own; one per test.

    With `is_default`, whatever is opened in this process is on it, until `unregister`; that is for whole servers.
    `unregister` it when every connection on it is closed. Temporary files without a name are not watched.
    """

    def __init__(self, *, is_default: bool = False) -> None:
        self.name = f"{type(self).__name__}-{next(_numbers)}"
        self.base = apsw.vfs_names()[0]
        super().__init__(self.name, base=self.base, makedefault=is_default)

    def before(self, call: Call) -> None:
        """Called before the operating system is; what it raises (an `apsw.Error`) is what SQLite gets."""

    def kept(self, call: Call) -> int:
        """How many bytes of a write that `before` refused reach the file all the same."""
        return 0

    def done(self, call: Call) -> None:
        """Called after the operating system did it. Must not raise."""

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
