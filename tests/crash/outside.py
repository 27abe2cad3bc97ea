"""The world outside: append-only files that no crash of the server undoes, and what they say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class Log:
    """A file of JSON lines. Each line is one write at the end: once `append` returns, no crash takes it back.

    With `is_synced` it is on the disk by then. Lines that were read once are remembered: files only grow.
    """

    def __init__(self, path: Path, *, is_synced: bool = False) -> None:
        self.path = path
        self._is_synced = is_synced
        self._lines: list[dict[str, object]] = []
        self._read_bytes = 0

    def append(self, line: Mapping[str, object]) -> None:
        """Add a line."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # The newline comes first: a line that a kill cut off spoils no other.
            os.write(descriptor, b"\n" + json.dumps(line, ensure_ascii=False).encode())
            if self._is_synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lines(self) -> list[dict[str, object]]:
        """All lines, oldest first."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                fresh = file.read()
            for line in fresh.splitlines():
                with suppress(json.JSONDecodeError):  # blank, or cut off by a kill within a write
                    self._lines.append(json.loads(line))
            self._read_bytes += len(fresh)
        return self._lines


@dataclass(frozen=True, slots=True)
class Execution:
    """A tool that really ran: its name, the idempotency key that it was given, and the words that name the wish."""

    tool: str
    key: str
    words: str


class World:
    """One folder with a constellation's file and everything outside of it that must agree with it.

    `ledger`: what tools really did, `{"tool", "key", "words"}`. `wishes`: what the client wants to send, noted before
    it sends it, `{"n", "agent", "key", "content"}`. `acks`: what the client knows to be accepted, logged after the
    answer, `{"n", "agent", "turn", "is_replay"}`. `seen`: what a subscriber saw over all lives; `announced`:
    every event right after its commit; both `{"seq", "name", "turn", "data"}`. `pieces`: streamed pieces that the
    file held after a death without being announced, `{"seq"}`. `steered`: messages that a death left waiting to join a
    turn under way, `{"message", "turn"}`, both ids of turns. `unflushed`: model calls before their steps were on disk,
    `{"cursor"}`. `troubles` is the standard error of the lives: empty, or
    something is wrong.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pattern.db"
        self.ledger = Log(folder / "ledger", is_synced=True)
        self.wishes = Log(folder / "wishes")
        self.acks = Log(folder / "acks", is_synced=True)
        self.seen = Log(folder / "seen")
        self.announced = Log(folder / "announced")
        self.pieces = Log(folder / "pieces")
        self.steered = Log(folder / "steered")
        self.unflushed = Log(folder / "unflushed")
        self.troubles = folder / "troubles"

    def executions(self) -> list[Execution]:
        """The ledger's lines."""
        return [Execution(str(line["tool"]), str(line["key"]), str(line["words"])) for line in self.ledger.lines()]
