"""Increments: files with the pages of a copy that an earlier copy does not have; with that, they are the whole copy.

`hot_backup` copies page by page, so a page that was not written since is the same bytes at the same place. The file:
`MAGIC`, a line of JSON (`Head`), and a frame of zstd with the number of each page (4 bytes, big-endian) and its bytes,
in order. An increment may build on another one; the last one is a whole copy. All are found by their paths, and checked
by their SHA-256.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from pattern_db import files
from pattern_db.connection import PAGE_BYTES
from pattern_db.errors import BackupInvalid, translated

MAGIC = b"pattern increment 1\n"
HEAD_BYTES_MAX = 64 * 1024
CHAIN_MAX = 400  # increments of one another
_NUMBER_BYTES = 4
_PAGES_AT_ONCE = 512
_COPIED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What an increment says of itself: the path of the copy before it, relative to its own folder, with the SHA-256
    of that; and SHA-256 and size of the copy that it makes.
    """

    base: str
    base_sha256: str
    sha256: str
    size: int


def head_of(file: Path) -> Head | None:
    """Return what an increment says of itself; None if the file is none.

    Raises:
        BackupInvalid: it is a damaged one.
        StorageFailed: it cannot be read.
    """
    with translated(), file.open("rb") as source:
        return _head(source, file)


def _head(source: BinaryIO, file: Path) -> Head | None:
    if source.read(len(MAGIC)) != MAGIC:
        return None
    try:
        found = json.loads(source.readline(HEAD_BYTES_MAX))
        texts = {name: str(found[name]) for name in ("base", "base_sha256", "sha256")}
        return Head(**texts, size=int(found["size"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BackupInvalid(f"the head of the increment {file} is damaged") from error


def write(whole: Path, since: Path, since_whole: Path, target: Path) -> int:
    """Write the increment `target` of the copy `whole` since another one, which is the file `since`, and whole at
    `since_whole`; return the number of pages in it.

    Raises:
        StorageFailed: the disk is full or failed.
    """
    count = 0
    base = os.path.relpath(since.absolute(), target.absolute().parent)
    with translated(), files.written(target) as new, whole.open("rb") as now, since_whole.open("rb") as before:
        head = Head(
            base=base,
            base_sha256=files.sha256_of(since_whole),
            sha256=files.sha256_of(whole),
            size=whole.stat().st_size,
        )
        with files.created(new) as out:
            out.write(MAGIC + json.dumps(asdict(head)).encode() + b"\n")
            with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as frame:
                for number, page in _pages(now, before):
                    frame.write(number.to_bytes(_NUMBER_BYTES) + page)
                    count += 1
    return count


def _pages(now: BinaryIO, before: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the pages that are not the same in both files, with their numbers from 0."""
    first = 0
    while data := now.read(PAGE_BYTES * _PAGES_AT_ONCE):
        old = before.read(len(data))
        if data != old:
            for at in range(0, len(data), PAGE_BYTES):
                if (page := data[at : at + PAGE_BYTES]) != old[at : at + PAGE_BYTES]:
                    yield first + at // PAGE_BYTES, page
        first += _PAGES_AT_ONCE


def assemble(base: Path, chain: Sequence[Path], target: Path) -> None:
    """Write the whole copy that the first of a chain of increments is of to `target`: each builds on the next one, and
    the last one on the whole copy `base`.

    Raises:
        BackupInvalid: one of them is damaged, or another one than it was.
        StorageFailed: the disk is full or failed.
    """
    wanted = ""
    with translated(), files.written(target) as new:
        with base.open("rb") as whole, files.created(new) as out:
            shutil.copyfileobj(whole, out, _COPIED_BYTES)
        for increment in reversed(chain):
            with increment.open("rb") as source:
                head = _head(source, increment)
                if head is None or files.sha256_of(new) != head.base_sha256:
                    raise BackupInvalid(f"{increment} builds on another {base.name} than the one that is there")
                _apply(increment, source, head, new)
            base, wanted = increment, head.sha256
        if chain and files.sha256_of(new) != wanted:
            raise BackupInvalid(f"{chain[0]} is damaged: it makes another copy than it was made of")


def _apply(increment: Path, source: BinaryIO, head: Head, whole: Path) -> None:
    """Change a copy into the next one, in place."""
    with whole.open("r+b") as out:
        try:
            with zstandard.ZstdDecompressor().stream_reader(source) as frame:
                while number := frame.read(_NUMBER_BYTES):
                    start = int.from_bytes(number) * PAGE_BYTES
                    page = frame.read(min(PAGE_BYTES, max(0, head.size - start)))
                    if not page or start > out.seek(0, os.SEEK_END):
                        raise BackupInvalid(f"{increment} is damaged: it has pages beyond the end of its copy")
                    out.seek(start)
                    out.write(page)
        except zstandard.ZstdError as error:
            raise BackupInvalid(f"{increment} is damaged: {error}") from error
        if head.size > out.seek(0, os.SEEK_END):
            raise BackupInvalid(f"{increment} is damaged: pages are missing at its end")
        out.truncate(head.size)
