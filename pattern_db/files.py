"""Files that appear whole or not at all, also across a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk.

    Raises:
        OSError: the disk failed.
    """
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Wait until the names in the directory are on the disk.

    Raises:
        OSError: the disk failed.
    """
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def replace(source: Path, target: Path) -> None:
    """Move the complete file `source` to `target` in one step that lasts; both must be on one file system.

    Raises:
        OSError: the disk failed.
    """
    sync_file(source)
    source.replace(target)
    sync_directory(target.parent)


@contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """A name beside `target` to write to first. Nothing is left of it (nor of SQLite's files beside it) afterwards.

    Raises:
        OSError: the disk failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.{os.getpid()}.new")
    _remove(path)
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
