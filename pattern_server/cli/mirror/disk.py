"""The mirrored folder: files read and replaced so that a person who saves at the same moment loses nothing.

Symbolic links are not followed. The mirror keeps its own files in `.pattern-sync`. Texts that could not be stored are
written next to their file as `NAME.yours.txt`, the reasons as `NAME.error.txt`; neither is mirrored.

What the mirror remembers of each block is one small file each, in `.pattern-sync/blocks`: a step changes one block and
is stored before it is carried out, and a single file of all texts would be rewritten with each. A file that cannot be
read counts as missing; the block's past has what it said.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from pydantic import TypeAdapter

from pattern_core.errors import Conflict
from pattern_db import files as durable
from pattern_server.cli.mirror.content import FILE_BYTES_MAX, Form, Unreadable, read, to_bytes
from pattern_server.cli.mirror.plan import Known, Local

OWN = ".pattern-sync"
REASON_HEAD = "This file did not go into memory"
_TEMPORARY = ".pattern-sync-new"
_ENDINGS = tuple(f".{form.value}" for form in Form)
_READ_ONLY, _WRITABLE = 0o444, 0o644


# What changes when a file is saved: its inode, size in bytes and time in ns. As cheap to get as a look at the folder.
Signature: TypeAlias = tuple[int, int, int]


class Disk:
    """The files below one folder, named by paths such as `ada/human.md`.

    Raises (all methods):
        OSError: the disk failed, or does not allow it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self) -> Iterator[str]:
        """Yield all paths that could be a block's, in order; hidden, linked and unknown ones are passed over."""
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if folder.name.startswith(".") or folder.is_symlink() or not folder.is_dir():
                continue
            for file in sorted(folder.iterdir()):
                is_plain = not file.name.startswith((".", "#")) and not file.is_symlink() and file.is_file()
                if is_plain and file.name.endswith(_ENDINGS):
                    yield f"{folder.name}/{file.name}"

    def signature(self, path: str) -> Signature | None:
        """Return the file's signature; None if there is none."""
        try:
            found = (self.root / path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def read(self, path: str) -> Local:
        """Return the file at a path, as far as it is a block's text."""
        target = self.root / path
        if target.parent.is_symlink() or target.is_symlink():
            return Local(problem="it is a symbolic link, which is not followed; put a plain file there")
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return Local()
        except OSError as error:
            return Local(problem=f"it cannot be read: {error.strerror}")
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return Local(problem="it is not a plain file; put one there")
            if found.st_size > FILE_BYTES_MAX:
                return Local(problem=f"it is larger than any block can be ({found.st_size:,} bytes); make it shorter")
            raw = file.read(FILE_BYTES_MAX + 1)
        try:
            return Local(text=read(raw, form_at(path)))
        except Unreadable as error:
            return Local(problem=str(error))

    def write(self, path: str, text: str, *, expected: Local, is_locked: bool = False) -> bool:
        """Put `text` into a file if it still is as `expected`; False, and nothing is changed, if it is not.

        The new file takes the old one's place at once. The old one is held for a moment longer: what an editor wrote
        into it between our last look and the exchange is kept as `NAME.yours.txt`.
        """
        target = self.root / path
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_name(f"{_TEMPORARY}-{target.name}"[:200])
        _store(fresh, to_bytes(text), mode=_READ_ONLY if is_locked else _WRITABLE)
        try:
            if self.read(path) != expected:
                return False
            held = self._held(target)
            os.replace(fresh, target)  # noqa: PTH105 - one of three calls that are read side by side
        finally:
            fresh.unlink(missing_ok=True)
        if held is not None:
            self._keep_late_words(path, held, expected)
        return True

    def _held(self, target: Path) -> Path | None:
        """Return a second name for the file that is about to be replaced; None without one, or where disks have no
        links.
        """
        held = self.own("replaced") / target.name[:200]
        held.unlink(missing_ok=True)
        try:
            os.link(target, held, follow_symlinks=False)
        except OSError:
            return None
        return held

    def _keep_late_words(self, path: str, held: Path, expected: Local) -> None:
        late = held.read_bytes()
        try:
            is_late = read(late, form_at(path)) != (expected.text or "")
        except Unreadable:
            is_late = True
        if is_late and late.strip():
            _store(self._free(path), late, mode=_WRITABLE)
        held.unlink()

    def set_aside(self, path: str) -> str | None:
        """Rename a file to `NAME.yours.txt`, or the next free such name; the new name, None if there was none."""
        target = self.root / path
        kept = self._free(path)
        try:
            target.rename(kept)
        except FileNotFoundError:
            return None
        return kept.name

    def _free(self, path: str) -> Path:
        target = self.root / path
        kept, number = target.with_name(f"{target.name}.yours.txt"), 1
        while kept.exists() or kept.is_symlink():
            number += 1
            kept = target.with_name(f"{target.name}.yours-{number}.txt")
        return kept

    def retire(self, path: str) -> None:
        """Move the file of a block that is gone out of sight, into `.pattern-sync/removed`."""
        folder = self.own("removed")
        name, number = path.replace("/", "%2F"), 1
        while (folder / name).exists():
            number += 1
            name = f"{path.replace('/', '%2F')}.{number}"
        self._rename(path, folder / name)

    def move(self, path: str, to: str) -> bool:
        """Rename a file; False, and nothing is changed, if that name exists already."""
        target = self.root / to
        target.parent.mkdir(exist_ok=True)
        if target.exists() or target.is_symlink():
            return False
        self._rename(path, target)
        return True

    def _rename(self, path: str, target: Path) -> None:
        self.explain(path, None)
        with suppress(FileNotFoundError):
            (self.root / path).rename(target)
        with suppress(OSError):  # not empty, most often
            (self.root / path).parent.rmdir()

    def explain(self, path: str, reason: str | None) -> None:
        """Write next to a file why it was refused, or remove that note."""
        target = self.root / f"{path}.error.txt"
        if reason is not None:
            target.parent.mkdir(exist_ok=True)
            _store(target, f"{REASON_HEAD}: {reason}\nThis note goes away by itself.\n".encode(), mode=_WRITABLE)
            return
        try:
            is_ours = target.read_text(encoding="utf-8", errors="replace").startswith(REASON_HEAD)
        except (FileNotFoundError, NotADirectoryError):
            return
        if is_ours:
            target.unlink(missing_ok=True)

    def own(self, *parts: str) -> Path:
        """Return a folder of the mirror's own, made if it is missing."""
        folder = self.root.joinpath(OWN, *parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def clean(self) -> None:
        """Remove what a killed run left half written."""
        for folder in (entry for entry in self.root.iterdir() if entry.is_dir() and not entry.is_symlink()):
            for leftover in folder.glob(f"{_TEMPORARY}-*"):
                leftover.unlink(missing_ok=True)


def form_at(path: str) -> Form:
    """Return the form that a file's ending says."""
    return Form(path.rpartition(".")[2])


def _store(target: Path, raw: bytes, *, mode: int) -> None:
    """Write a whole file and see it on the disk."""
    target.unlink(missing_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(descriptor)


_ENDING = ".json"
_KNOWN = TypeAdapter(Known)


class States:
    """The states of one mirrored folder, in memory and on disk.

    Raises (methods that store):
        OSError: the disk failed.
    """

    def __init__(self, folder: Path, *, is_dry: bool = False) -> None:
        self._folder = folder
        self._is_dry = is_dry  # nothing is written, and what would be is known until the end
        self._known: dict[str, Known] = {}
        self.unreadable: list[str] = []  # names of files that were passed over
        for file in sorted(folder.glob(f"*{_ENDING}")):
            try:
                known = _KNOWN.validate_json(file.read_bytes())
            except ValueError:
                self.unreadable.append(file.name)
                continue
            self._known[known.block_id] = known

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    def get(self, block_id: str) -> Known | None:
        """Return what is known of a block; None if nothing is."""
        return self._known.get(block_id)

    def put(self, known: Known, *, is_durable: bool = False) -> None:
        """Remember a block's state. `is_durable`: on the disk before what follows, also if the power fails."""
        self._known[known.block_id] = known
        if self._is_dry:
            return
        target = self._file(known.block_id)
        fresh = target.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(known), ensure_ascii=False), encoding="utf-8")
        if is_durable:
            durable.replace(fresh, target)
        else:
            fresh.replace(target)

    def forget(self, block_id: str) -> None:
        """Forget a block; safe to repeat."""
        self._known.pop(block_id, None)
        if not self._is_dry:
            self._file(block_id).unlink(missing_ok=True)

    def _file(self, block_id: str) -> Path:
        return self._folder / f"{quote(block_id, safe='')}{_ENDING}"


def claim(file: Path, constellation: str) -> None:
    """Let a folder mirror one constellation (an id) and never another.

    Raises:
        Conflict: it mirrors another one.
    """
    try:
        found = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        file.write_text(constellation + "\n", encoding="utf-8")
        return
    if found != constellation:
        raise Conflict(f"{file.parent.parent} mirrors another constellation ({found}); choose another folder")
