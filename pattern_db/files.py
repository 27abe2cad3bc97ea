"""Locks on folders (one process at a time), and files that appear in them completely or not at all.

The lock is on a separate file. A lock on the database file would be lost as soon as this process opened and closed that
file a second time (POSIX locks belong to the process), and two owners would overwrite each other.

Source: fcntl(2), "Record locking and signals"; flock(2).
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from pattern_db.errors import DiskFull, OwnedElsewhere, translated

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOCK_NAME = "lock"
TRIES = 20
RETRY_S = 0.001
FREED_BYTES = 16 * 1024 * 1024  # of a file at once
SYNCED_BYTES = 4 * 1024 * 1024  # of a file that is being written, at a time: commits of others wait for it
_UNFINISHED = ".pattern-new"  # end of the names of files that are being written


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The holder of a lock: the process, and its URL if it serves (None: unknown)."""

    pid: int | None
    url: str | None


def shipped(name: str) -> Path:
    """Return the path of a file or folder of the program: in the installed package, else in its checkout.

    Raises:
        FileNotFoundError: it is in neither; the installation is incomplete.
    """
    package = Path(__file__).parent
    for place in (package / "_shipped" / name, package.parent / name):
        if place.exists():
            return place
    raise FileNotFoundError(f"{name} is missing; reinstall pattern-server")


class DataDirLock:
    """A held lock on a folder: a whole data directory, or one constellation's.

    The lock file names its holder: JSON with `pid` and `url`. It is for messages only; the file stays
    when the lock is released, because removing it would let two processes lock two files of one name.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, directory: Path) -> DataDirLock:
        """Lock `<directory>/lock`, creating both if they are missing, without waiting for its release.

        Raises:
            OwnedElsewhere: it is held; the message names the process.
            StorageFailed: the disk failed.
        """
        path = directory / LOCK_NAME
        with translated():
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                for remaining in reversed(range(TRIES)):  # `holder_of` in another process has it for a moment
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if not remaining:
                            raise _owned_elsewhere(directory) from None
                        time.sleep(RETRY_S)
            except BaseException:
                os.close(descriptor)
                raise
            lock = cls(path, descriptor)
            lock.announce(None)
        return lock

    def announce(self, url: str | None) -> None:
        """Write the holder of the lock and its URL; on a full disk the file may stay empty.

        Raises:
            StorageFailed: the disk failed.
        """
        if self._descriptor is None:
            return
        content = json.dumps({"pid": os.getpid(), "url": url}).encode()
        with suppress(DiskFull), translated():
            os.pwrite(self._descriptor, content, 0)  # over the old content, so that it needs no additional space
            os.ftruncate(self._descriptor, len(content))

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.ftruncate(descriptor, 0)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # not only closed: a child process may have a copy until it executes
            os.close(descriptor)

    def __enter__(self) -> DataDirLock:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.release()


def holder_of(directory: Path) -> Holder | None:
    """Return the current holder of the folder's lock; None if it is free."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(path)
    finally:
        os.close(descriptor)
    return None


def _owned_elsewhere(directory: Path) -> OwnedElsewhere:
    holder = _read(directory / LOCK_NAME)
    who = "another process" if holder.pid is None else f"process {holder.pid}"
    where = "" if holder.url is None else f", which serves at {holder.url}"
    return OwnedElsewhere(
        f"{directory} is in use by {who}{where}; use that server, or stop it first", pid=holder.pid, url=holder.url
    )


def _read(path: Path) -> Holder:
    try:
        content = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError):
        content = {}  # it is being written; the lock itself is what counts
    pid, url = content.get("pid"), content.get("url")
    return Holder(pid=pid if isinstance(pid, int) else None, url=url if isinstance(url, str) else None)


def sync(path: Path) -> None:
    """Sync a file's bytes, or the names in a directory, to the disk.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """Move the complete file `source` to `target` atomically and durably; both must be on one file system.

    Raises:
        OSError: the disk failed.
    """
    sync(source)
    source.replace(target)
    sync(target.parent)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """Return how many bytes are free on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(next(one for one in (folder, *folder.absolute().parents) if one.exists())).free


@contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """Yield a name next to `target` to write to first. It is deleted afterwards, with SQLite's files next to it; so is,
    before, what killed processes left in the folder.

    Raises:
        OSError: the disk failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.{os.getpid()}{_UNFINISHED}")
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        # All that write here share a lock on the folder. Some file systems have none on folders.
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in target.parent.glob(f".*{_UNFINISHED}"):
                _remove(left)
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_SH)
        _remove(path)
        yield path
    finally:
        _remove(path)
        os.close(folder)


@contextmanager
def written(target: Path) -> Iterator[Path]:
    """Yield a name next to `target` to write to; without an error, the file is `target` then, as after `replace`.

    Raises:
        OSError: the disk failed.
    """
    with temporary(target) as path:
        yield path
        replace(path, target)


def created(path: Path) -> BinaryIO:
    """Create or empty a file, to write to it. It is synced a little at a time: commits of others wait for all of it.

    Raises:
        OSError: the disk failed.
    """
    return io.BufferedWriter(_SteadyFile(path, "wb"))


class _SteadyFile(io.FileIO):
    """A file that is synced after every few megabytes."""

    _unsynced = 0

    def write(self, data: ReadableBuffer) -> int:
        count = super().write(data)
        self._unsynced += count
        if self._unsynced >= SYNCED_BYTES:
            os.fsync(self.fileno())
            self._unsynced = 0
        return count


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """Yield a folder that is empty before, even if the process was killed in it, and deleted afterwards. The caller
    makes sure that no other process uses it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def discard(path: Path) -> None:
    """Delete a file if it exists; a large one in pieces, because the commits of others wait while its space is freed.

    Raises:
        OSError: the disk failed.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}{_UNFINISHED}")  # found later, if this is cut off
    with suppress(FileNotFoundError):
        if path.stat().st_size > FREED_BYTES and path.stat().st_nlink == 1:
            path = path.replace(hidden)
            for size in range(path.stat().st_size - FREED_BYTES, 0, -FREED_BYTES):
                os.truncate(path, size)
        path.unlink()


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        discard(path.with_name(path.name + suffix))
