"""What the mirror remembers of each block, one small file each, in `.pattern-sync/blocks`.

One file per block, because a step changes one block and is stored before it is taken: a single file of all texts would
be written anew with every step. A file that cannot be read counts as missing; the block's past tells what it said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pattern_core.errors import Conflict
from pattern_server.cli.mirror.plan import Known, Sent

_ENDING = ".json"


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
                known = _known(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, TypeError, KeyError):
                self.unreadable.append(file.name)
                continue
            self._known[known.block_id] = known

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    def get(self, block_id: str) -> Known | None:
        """What is known of a block; None if nothing is."""
        return self._known.get(block_id)

    def put(self, known: Known, *, is_durable: bool = False) -> None:
        """Remember a block's state. `is_durable`: on the disk before what follows, also if the power fails."""
        self._known[known.block_id] = known
        if self._is_dry:
            return
        target = self._file(known.block_id)
        fresh = target.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(asdict(known), file, ensure_ascii=False)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        fresh.replace(target)
        if is_durable:
            _flush_folder(self._folder)

    def forget(self, block_id: str) -> None:
        """Remember nothing of a block any more; again it does nothing."""
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
        raise Conflict(f"{file.parent.parent} mirrors another constellation ({found}); choose a folder of its own")


def _known(stored: Any) -> Known:
    sent, incoming = stored["sent"], stored["incoming"]
    return Known(
        block_id=str(stored["block_id"]),
        path=str(stored["path"]),
        version=int(stored["version"]),
        text=str(stored["text"]),
        sent=None if sent is None else Sent(text=sent["text"], version=int(sent["version"]), local=sent["local"]),
        incoming=None if incoming is None else (int(incoming[0]), str(incoming[1])),
    )


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
