"""A file of decisions that other programs write at the same time, as pi-lodestone does.

Before a write the directory `.lock` is made next to the file; one older than 30 s was left behind. Ours has an
owner in it, so that no lock of another process is removed, and a write is given up if the lock was lost. What is new is
appended on a line of its own; another change replaces the whole file by one that is complete. A line that cannot be
read stays as it is.

Source of the formats: pi-lodestone 0.2 (the class `DecisionStore`), and the project's seed 001.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import trio

from pattern_core.decision_files import Record, record_of, split_lines
from pattern_core.decisions import sanitized
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.ids import Clock, Randomness, now_text
from pattern_db.columns import to_json
from pattern_db.files import written

LOCK_STALE_MS = 30_000
RETRY_MS, MORE_MS = 25, 50  # between two tries to get the lock; more by chance
DURABLE = frozenset({"decision", "preference", "workflow", "do-not-repeat", "agent-kb", "extracted-decision"})  # tags
_COUNTED = {"retrieved": ("retrievalCount", "lastRetrievedAt"), "injected": ("injectionCount", "lastInjectedAt")}
_NO_SETTINGS = b'{\n  "disabledProjects": []\n}'

T = TypeVar("T")


class StoreLine(NamedTuple):
    """A line of the file with its line end; its record, None if it has none that can be read."""

    line: bytes
    record: Record | None


class _LockLost(Exception):
    """Another process removed our lock, because we were too slow."""


class DecisionStore:
    """One file, and `settings.json` next to it. Every operation makes what is missing. All of one process use one."""

    def __init__(self, file: Path, clock: Clock, randomness: Randomness, *, stale_ms: int = LOCK_STALE_MS) -> None:
        self.file, self.settings = Path(os.path.realpath(file)), file.with_name("settings.json")
        self._lock = file.with_name(".lock")
        self._clock, self._randomness, self._stale_ms = clock, randomness, stale_ms
        self._owner = f"pattern-{os.getpid()}-{randomness.getrandbits(64):x}"
        self._queue = trio.Lock()
        self._lines: list[StoreLine] = []
        self._mark: tuple[int, ...] = ()

    async def ensure(self) -> None:
        """Make the folder, an empty file and the settings, where they are missing."""
        await trio.to_thread.run_sync(self._read)

    async def lines(self) -> list[StoreLine]:
        """Return all lines in their order."""
        return [*await trio.to_thread.run_sync(self._read)]

    async def all(self) -> list[Record]:
        """Return all records in their order."""
        return [line.record for line in await self.lines() if line.record is not None]

    async def by_id(self, record_id: str) -> Record | None:
        """Return the first record with this id."""
        return next((record for record in await self.all() if record["id"] == record_id), None)

    async def add(self, record: Record) -> None:
        """Append a record.

        Raises:
            InvalidInput: it has no id.
            Conflict: there is one with its id.
        """
        record_of(line := _line(record))

        def work() -> None:
            if any(one.record is not None and one.record["id"] == record["id"] for one in self._read()):
                raise Conflict(f"the file has a decision {record['id']} already")
            self._append([line])

        await self._mutate(work)

    async def patch(self, record_id: str, changes: Record) -> Record | None:
        """Change keys of a record, None removes one, and `updatedAt`; return it, None if there is none."""
        now = now_text(self._clock)

        def change(record: Record) -> Record:
            made = {**record, **changes, "id": record_id, "updatedAt": now}
            return {key: value for key, value in made.items() if value is not None or key not in changes}

        return next(iter(await self._mutate(lambda: self._change([record_id], change))), None)

    async def replace_all(self, records: Sequence[Record]) -> None:
        """Replace all records; lines that cannot be read follow them."""
        made = [StoreLine(_line(record), record) for record in records]
        await self._mutate(lambda: self._rewrite([*made, *(one for one in self._read() if one.record is None)]))

    async def bump_use(self, ids: Collection[str], usage: Literal["retrieved", "injected"]) -> None:
        """Count that records were used."""
        count, last = _COUNTED[usage]
        now = now_text(self._clock)

        def change(record: Record) -> Record:
            before = record.get(count)
            return {**record, count: before + 1 if isinstance(before, int) else 1, last: now, "updatedAt": now}

        if ids:
            await self._mutate(lambda: self._change(ids, change))

    async def exchange(self, seen: Mapping[str, bytes], outgoing: Sequence[bytes]) -> int:
        """Write lines, given without line ends: in place of the one with the same id if that is still as it was `seen`,
        else, if none was seen, behind all others. Return how many were written.
        """

        def work() -> int:
            left = {record_of(content)["id"]: content for content in outgoing}
            lines, count = [*self._read()], 0
            for at, (line, record) in enumerate(lines):
                content = None if record is None else left.pop(record["id"], None)
                if record is not None and content and line.rstrip(b"\r\n") == seen.get(record["id"]):
                    lines[at] = StoreLine(content + line[len(line.rstrip(b"\r\n")) :], record_of(content))
                    count += 1
            if count:
                self._rewrite(lines)
            if new := [content + b"\n" for one, content in left.items() if one not in seen]:
                self._append(new)
            return count + len(new)

        return await self._mutate(work)

    async def read_settings(self) -> dict[str, Any]:
        """Return the settings; those of a new store, if they cannot be read."""
        await self.ensure()
        with suppress(OSError, InvalidInput):
            return await trio.to_thread.run_sync(self._settings)
        return {"disabledProjects": []}

    async def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        await self._mutate(lambda: self._write(self.settings, _pretty(settings)))

    async def disable(self, hidden: Mapping[str, Sequence[str]]) -> None:
        """Add folders and ids, as they are, to the settings' lists of projects that programs keep out of prompts.

        Raises:
            InvalidInput: the settings cannot be read; they stay as they are.
        """

        def work() -> None:
            settings = dict(before := self._settings())
            for key, names in hidden.items():
                listed = before.get(key, [])
                if not isinstance(listed, list):
                    raise InvalidInput(f"`{key}` in {self.settings} is not a list; change it, then try again")
                if new := [one for one in names if one not in listed]:
                    settings[key] = sorted([*listed, *new], key=str)
            if settings != before:
                self._write(self.settings, _pretty(settings))

        await self._mutate(work)

    async def migrate_legacy(self, *, is_dry: bool = False) -> dict[str, Any]:
        """Take over what is worth keeping of `observations.jsonl` and `index.json` next to the file, and rename these.
        Return the counts `scanned`, `imported` and `skipped`, the ids `kept`, and the `unread` lines, by number.
        """
        stamp = now_text(self._clock).replace(":", "-").replace(".", "-")
        paths = [self._lock.with_name(name) for name in ("observations.jsonl", "index.json")]

        def work() -> dict[str, Any]:
            given, index = (path.read_bytes() if path.is_file() else b"" for path in paths)
            lines = _lines_of(self.file.read_bytes() if self.file.is_file() else b"")
            known = {line.record["id"] for line in lines if line.record is not None}
            made, report = _migrated(given, index, known)
            if is_dry:
                return report
            if made:
                records = [line for line in lines if line.record is not None]
                records += [StoreLine(_line(record), record) for record in made]
                records.sort(key=lambda line: str((line.record or {}).get("createdAt", "")))
                self._rewrite([*records, *(line for line in lines if line.record is None)])
            for path in filter(Path.is_file, paths):
                path.rename(path.with_name(f"{path.name}.legacy-{stamp}"))
            return report

        return await (trio.to_thread.run_sync(work) if is_dry else self._mutate(work))

    async def _mutate(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread under the lock; again if the lock was lost before it wrote."""
        async with self._queue:
            while True:
                done = await trio.to_thread.run_sync(self._attempt, work)
                if done is not None:
                    return done[0]
                await trio.sleep((RETRY_MS + self._randomness.getrandbits(16) % MORE_MS) / 1000)

    def _attempt(self, work: Callable[[], T]) -> tuple[T] | None:
        self._ensure()
        try:
            self._lock.mkdir()
            (self._lock / self._owner).touch()
        except (FileExistsError, FileNotFoundError):  # it is there, or another one removed ours
            self._break_stale()
            return None
        try:
            return (work(),)
        except _LockLost:
            return None
        finally:
            # Without its owner it is as old as this moment, so that no one takes it for a stale one.
            with suppress(OSError):
                (self._lock / self._owner).unlink()
                self._lock.rmdir()

    def _break_stale(self) -> None:
        folder = os.open(self._lock.parent, os.O_RDONLY)
        with suppress(OSError):  # another one looks, or it is gone
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ours look one after another
            if self._clock.now_ms() - self._lock.stat().st_mtime_ns // 1_000_000 > self._stale_ms:
                gone = self._lock.with_name(f".lock.{self._owner}.stale")
                self._lock.rename(gone)
                shutil.rmtree(gone)
        os.close(folder)

    def _ensure(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        for path, content in ((self.file, b""), (self.settings, _NO_SETTINGS)):
            with suppress(FileExistsError), path.open("xb") as file:
                file.write(content)

    def _settings(self) -> dict[str, Any]:
        try:
            found = json.loads(self.settings.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"{self.settings} is not JSON ({error}); change it, then try again") from None
        if not isinstance(found, dict):
            raise InvalidInput(f"{self.settings} is not an object; change it, then try again")
        return found

    def _read(self) -> list[StoreLine]:
        self._ensure()
        with self.file.open("rb") as file:
            stat = os.fstat(file.fileno())
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark != self._mark:
                self._lines, self._mark = _lines_of(file.read()), mark
        return self._lines

    def _change(self, ids: Collection[str], change: Callable[[Record], Record]) -> list[Record]:
        """Change the first record with each of the ids; return them as they are then."""
        lines, left, made = [*self._read()], set(ids), list[Record]()
        for at, (line, record) in enumerate(lines):
            if record is not None and record["id"] in left:
                left.remove(record["id"])
                made.append(change(record))
                lines[at] = StoreLine(_line(made[-1], line), made[-1])
        if made:
            self._rewrite(lines)
        return made

    def _append(self, lines: Sequence[bytes]) -> None:
        with self.file.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            is_whole = not size or os.pread(file.fileno(), 1, size - 1) == b"\n"
            self._check_owner()
            left = b"".join(lines) if is_whole else b"\n" + b"".join(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())

    def _rewrite(self, lines: Sequence[StoreLine]) -> None:
        whole = [line if line.endswith(b"\n") else line + b"\n" for line, _record in lines[:-1]]
        self._write(self.file, b"".join([*whole, *(line for line, _record in lines[-1:])]))

    def _write(self, path: Path, content: bytes) -> None:
        with written(path) as beside:
            beside.write_bytes(content)
            shutil.copymode(path, beside)
            self._check_owner()

    def _check_owner(self) -> None:
        # With two names in it, one of us was stopped after it had made the directory, and continued in another one's.
        if [*self._lock.glob("*")] != [self._lock / self._owner]:
            raise _LockLost


def _pretty(settings: Mapping[str, Any]) -> bytes:
    return json.dumps(settings, ensure_ascii=False, indent=2).encode(errors="backslashreplace")


def _lines_of(data: bytes) -> list[StoreLine]:
    made = []
    for line in split_lines(data):
        record: Record | None = None
        with suppress(InvalidInput):
            record = record_of(line)
        made.append(StoreLine(line, record))
    return made


def _line(record: Record, instead_of: bytes = b"\n") -> bytes:
    end = instead_of[len(instead_of.rstrip(b"\r\n")) :] or b"\n"
    return to_json(dict(record)).encode(errors="backslashreplace") + end


def _migrated(observations: bytes, index: bytes, known: Collection[str]) -> tuple[list[Record], dict[str, Any]]:
    """Return the records to make of the two files, and the report."""
    states: Mapping[str, Any] = {}
    with suppress(ValueError, AttributeError):
        states = json.loads(index or b"{}").get("memories", {})
    made = dict[str, Record]()
    report: dict[str, Any] = {"scanned": 0, "imported": 0, "skipped": 0, "kept": [], "unread": []}
    for number, (line, given) in enumerate(_lines_of(observations), start=1):
        if given is None:
            report["unread"] += [number] * bool(line.strip())
            continue
        report["scanned"] += 1
        if given["id"] in known or given["id"] in made:
            continue
        state = states.get(given["id"]) if isinstance(states, dict) else None
        record = _decided(given, state if isinstance(state, dict) else {})
        if record is None:
            report["skipped"] += 1
        else:
            made[given["id"]] = record
    report |= {"imported": len(made), "kept": [*made]}
    return [*made.values()], report


def _decided(given: Record, state: Record) -> Record | None:
    """Return the record for an observation with its state; None if it is not worth keeping."""
    tags = [str(tag) for one in (given, state) if isinstance(one.get("tags"), list) for tag in one["tags"]]
    counts = {name: state[name] if isinstance(state.get(name), int) else 0 for name, _last in _COUNTED.values()}
    is_manual = given.get("kind") == "note" or given.get("source") == "manual"
    is_turn, is_worth = given.get("kind") == "turn", state.get("state") == "promoted" or not DURABLE.isdisjoint(tags)
    if not (is_manual or is_worth or (is_turn and sum(counts.values()) > 0)):
        return None
    created = state.get("createdAt") or given.get("timestamp") or ""
    made: dict[str, Any] = {"id": given["id"], "createdAt": created, "updatedAt": state.get("updatedAt") or created}
    made |= {name: given.get(name) or "" for name in ("cwd", "project")}
    made["source"] = "manual" if is_manual else "turn" if is_turn else "extracted"
    made |= {name: sanitized(str(given.get(name) or "")) for name in ("title", "text")}
    made |= {"tags": sorted({sanitized(tag) for tag in tags}), "important": is_worth}
    made |= {"archived": state.get("state") == "archived", "kbPath": state.get("kbPath")}
    made |= {"sourceTurnId": given["id"] if made["source"] == "turn" else None, **counts}
    made |= {name: state.get(name) for _count, name in _COUNTED.values()}
    return {name: value for name, value in made.items() if value is not None}
