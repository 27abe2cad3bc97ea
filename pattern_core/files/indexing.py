"""Keeping passages in step with files: directories are looked through now and then, changed files are read anew.

What a look cannot see is not gone: a directory that vanished, is empty all of a sudden (a disk that is not mounted) or
cannot be opened takes nothing away; the folder says that it is unavailable, and what is known of it is still found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from pattern_core.errors import Conflict, NotFound, Unavailable
from pattern_core.files import disk
from pattern_core.files.disk import DiskEntry, Skipped, UnreadableFile, Walk
from pattern_core.files.storing import Prepared, hash_of, prepare, put_of, refused, store
from pattern_core.ids import Clock, Ids, now_text
from pattern_db.database import Database
from pattern_db.enums import PathType
from pattern_db.errors import Conflict as RowConflict
from pattern_db.errors import NotFound as RowNotFound
from pattern_db.tables import files, folders
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderRow

INTERVAL_S = 60.0
DISK_THREADS_MAX = 2  # of one constellation; a directory on a slow network must not take all threads
SETTLED_MS = 2_000  # a file changed later than so long ago may change again within the same tick of the file system
SKIPPED_MAX = 1_000  # named in one report

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """What one look through a folder did, in files; `skipped` says what was not read, and why."""

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: list[Skipped] = field(default_factory=list)


class FolderIndexer:
    """Keeps the attached directories of one constellation in step, and indexes any folder when asked.

    `on_change` is called after passages were stored or removed; it must not raise or wait.
    """

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        ids: Ids,
        interval_s: float = INTERVAL_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._interval_s = interval_s
        self._on_change = on_change
        self._limiter = trio.CapacityLimiter(DISK_THREADS_MAX)
        self._one_at_a_time = trio.Lock()
        self._wanted = trio.Event()

    def wake(self) -> None:
        """Look through the attached directories soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Look through them every `interval_s` until cancelled; without any, only when `wake` is called."""
        while True:
            self._wanted = trio.Event()
            attached = await self._database.read(folders.attached_local)
            for folder in attached:
                try:
                    await self._index(folder, is_asked=False, again=False)
                except (Unavailable, NotFound):
                    continue  # noted on the folder, or the folder was deleted meanwhile
            with trio.move_on_after(self._interval_s if attached else math.inf):
                await self._wanted.wait()

    async def index_now(self, id_or_name: str, *, again: bool = False) -> IndexReport:
        """Look through one folder; with `again` also files that seem unchanged are read.

        An empty directory is believed here: whoever asks knows.

        Raises:
            NotFound: there is no such folder, or it was deleted meanwhile.
            Unavailable: its directory cannot be read now; nothing was removed.
        """
        try:
            folder = await self._database.read(folders.find, id_or_name)
        except RowNotFound as error:
            raise NotFound(error.message) from None
        return await self._index(folder, is_asked=True, again=again)

    async def _index(self, folder: FolderRow, *, is_asked: bool, again: bool) -> IndexReport:
        async with self._one_at_a_time:
            try:
                return await self._look_through(folder, is_asked=is_asked, again=again)
            except Unavailable as error:
                await self._database.write(folders.note_unavailable, folder.id, error.message)
                raise
            except (RowNotFound, RowConflict):
                raise NotFound(f"the folder {folder.name} was deleted while it was looked through") from None

    async def _look_through(self, folder: FolderRow, *, is_asked: bool, again: bool) -> IndexReport:
        known = {row.name: row for row in await self._database.read_aside(files.list_in, folder.id)}
        report = IndexReport()
        if folder.path_type is PathType.LOCAL:
            root = Path(folder.path_value or "")
            walk = await self._on_thread(partial(disk.walk, root))
            if not walk.entries and known and not walk.unseen and not is_asked:
                raise Unavailable(
                    f"the directory {root} is empty, and held {len(known)} files before; what was read stays."
                    " If that is right, index the folder by hand"
                )
            report.skipped = walk.skipped[:SKIPPED_MAX]
            await self._remove(_gone(known, walk), report)  # first, to make room for what is new
            for entry in walk.entries:
                await self._index_file(folder, root, entry, None if again else known.get(entry.name), report)
        else:
            for row in known.values():
                await self._index_stored(folder, row, report, again=again)
        await self._database.write(folders.note_indexed, folder.id, now_text(self._clock))
        return report

    async def _index_file(
        self, folder: FolderRow, root: Path, entry: DiskEntry, known: FileRow | None, report: IndexReport
    ) -> None:
        """Read a file of a directory if it changed: by its size and time, and if those differ by its bytes."""
        if known is not None and (known.size_bytes, known.mtime_ns) == (entry.size, entry.mtime_ns):
            _note_unchanged(known, report)
            return
        is_settled = entry.mtime_ns // 1_000_000 < self._clock.now_ms() - SETTLED_MS
        mtime_ns = entry.mtime_ns if is_settled else None
        try:
            data = (await self._on_thread(partial(disk.read_file, root, entry.name))).data
        except UnreadableFile as error:
            prepared = refused(entry.name, entry.size, error)
        except NotFound:
            return  # removed since the walk; the next one sees it
        else:
            if known is not None and known.content_hash == hash_of(data):
                if mtime_ns is not None:
                    await self._database.write(files.touch, known.id, mtime_ns)
                _note_unchanged(known, report)
                return
            prepared = await prepare(entry.name, data)
        await self._store(folder, prepared, report, mtime_ns=mtime_ns)

    async def _index_stored(self, folder: FolderRow, row: FileRow, report: IndexReport, *, again: bool) -> None:
        """Read a file of a virtual folder anew, if it never was or if that is wanted."""
        if not again and row.content_hash is not None:
            _note_unchanged(row, report)
            return
        data = await self._database.read_aside(files.content, row.id)
        prepared = await prepare(row.name, data)
        try:
            await self._store(folder, prepared, report, expected_hash=row.content_hash)
        except Conflict:
            report.unchanged += 1  # written meanwhile, and read in doing so

    async def _store(
        self,
        folder: FolderRow,
        prepared: Prepared,
        report: IndexReport,
        *,
        mtime_ns: int | None = None,
        expected_hash: bytes | None = None,
    ) -> None:
        put = put_of(
            prepared,
            folder_id=folder.id,
            ids=self._ids,
            now=now_text(self._clock),
            mtime_ns=mtime_ns,
            expected_hash=expected_hash,
        )
        await self._database.write(store, put)
        self._on_change()
        if prepared.error is None:
            report.indexed += 1
        else:
            report.skipped.append(Skipped(name=prepared.name, reason=prepared.error))

    async def _remove(self, gone: Sequence[FileRow], report: IndexReport) -> None:
        for row in gone:
            await self._database.write(files.delete, row.id)
            self._on_change()
            report.removed += 1

    async def _on_thread(self, call: Callable[[], T]) -> T:
        # Abandoned when cancelled: a dead network file system must not hold up the server's end.
        return await trio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)


def _note_unchanged(row: FileRow, report: IndexReport) -> None:
    if row.error is None:
        report.unchanged += 1
    else:
        report.skipped.append(Skipped(name=row.name, reason=row.error))


def _gone(known: dict[str, FileRow], walk: Walk) -> list[FileRow]:
    """Rows whose files are certainly not there any more."""
    if not walk.is_complete:
        return []
    there = {entry.name for entry in walk.entries}
    return [
        row
        for name, row in known.items()
        if name not in there
        and not any(not hidden or name == hidden or name.startswith(f"{hidden}/") for hidden in walk.unseen)
    ]
