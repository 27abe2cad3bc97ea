"""The files of constellations below the data directory: create, open under their lock, restore from backups, delete."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from os.path import exists
from pathlib import Path

import trio

from pattern_core.ids import Ids, now_text
from pattern_core.runtime import Runtime
from pattern_db import backup, maintenance, template
from pattern_db.connection import Connection, opened_at
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import BackupInvalid, DatabaseError, DiskFull, RowNotFound, SchemaOutdated, translated
from pattern_db.files import DataDirLock, emptied
from pattern_db.journal import turns
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, calendars, meta, outbox, schedules, sources, tasks

DATABASE_NAME = backup.DATABASE_NAME
_CREATING, _REMOVED = ".creating-", ".removed-"  # beginnings of names next to the folders, before the id
UNFINISHED_NAME = "unfinished"  # next to a database that was closed while turns were open


class ConstellationFiles:
    """One folder per constellation: `<data dir>/constellations/<id>/`."""

    def __init__(self, data_dir: Path, runtime: Runtime) -> None:
        self.data_dir = data_dir
        self._clock = runtime.clock
        self._ids = Ids(runtime.clock, runtime.randomness)

    def new_id(self, prefix: str = "con") -> str:
        """Return an id for a new constellation, or something else."""
        return self._ids.new(prefix)

    def folder(self, constellation_id: str) -> Path:
        """Return the constellation's folder."""
        return self.data_dir / "constellations" / constellation_id

    def relative_path(self, constellation_id: str) -> str:
        """Return the database's path as the registry stores it, relative to the data directory."""
        return f"constellations/{constellation_id}/{DATABASE_NAME}"

    async def create(self, constellation_id: str) -> None:
        """Create an empty database; it is on disk when this returns. `keep` it, or else the next start deletes it.

        Raises:
            StorageFailed: the disk is full or failed.
        """
        path = self.data_dir / self.relative_path(constellation_id)
        now = now_text(self._clock)
        await trio.to_thread.run_sync(self._mark, constellation_id)
        make = partial(template.create, path, migrations_of("constellation"), now=now)
        await trio.to_thread.run_sync(make)

    def _mark(self, constellation_id: str) -> None:
        mark = self.folder(constellation_id).with_name(_CREATING + constellation_id)
        with translated():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def keep(self, constellation_id: str) -> None:
        """Note that a new database is registered."""
        with suppress(OSError):  # the next start tries again
            self.folder(constellation_id).with_name(_CREATING + constellation_id).unlink(missing_ok=True)

    def interrupted(self) -> list[str]:
        """Return the ids of constellations that a killed process was creating or deleting."""
        with suppress(FileNotFoundError):
            names = [path.name for path in (self.data_dir / "constellations").iterdir()]
            return [name.partition("-")[2] for name in names if name.startswith((_CREATING, _REMOVED))]
        return []

    async def adopt(self, copy: Path, constellation_id: str, *, migrate: bool = False) -> None:
        """Create a database from a verified backup under a new id, to `keep` as in `create`. With `migrate`, a database
        of an older version is migrated; the backup stays unchanged.

        Raises:
            RowNotFound: there is no such file.
            BackupInvalid: it is not a sound copy of a constellation.
            SchemaOutdated: it was made by an older server, and `migrate` is False.
            MigrationFailed: it cannot be migrated.
            StorageFailed: the disk is full or failed.
        """
        folder = self.folder(constellation_id)
        try:
            now = now_text(self._clock) if migrate else None
            await trio.to_thread.run_sync(self._mark, constellation_id)
            await trio.to_thread.run_sync(_adopt, copy, folder, constellation_id, now)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.remove(constellation_id)
            raise

    async def put_back(self, copy: Path, constellation_id: str) -> None:
        """Replace the database, which must not be open, by a verified backup, migrated to this version; the file that
        was there stays next to it, see `backup.restore`.

        Raises:
            As `adopt`; and OwnedElsewhere: another process uses it.
        """
        await trio.to_thread.run_sync(
            _put_back, copy, self.folder(constellation_id), constellation_id, now_text(self._clock)
        )

    def closed_as(self, constellation_id: str) -> list[int] | None:
        """Return the time of the last change and the size of a database that was closed completely; None if it has a
        log.
        """
        path = self.data_dir / self.relative_path(constellation_id)
        if not path.is_file() or path.with_name(f"{path.name}-wal").exists():
            return None
        state = path.stat()
        return [state.st_mtime_ns, state.st_size]

    async def copy(self, constellation_id: str, target: Path) -> backup.Report:
        """Copy a database that this process does not have open, and verify the copy. It may be opened at the same time.

        Raises:
            DatabaseError: as `backup.hot_backup`.
        """
        return await trio.to_thread.run_sync(_copy, self.data_dir / self.relative_path(constellation_id), target)

    @asynccontextmanager
    async def open(self, constellation_id: str, threads: DatabaseThreads) -> AsyncIterator[Database]:
        """Yield the constellation's database, locked for this process within the block.

        Raises:
            RowNotFound: the file is missing.
            OwnedElsewhere: another process uses it.
            SchemaOutdated: it needs `pattern db migrate`.
            DatabaseError: it cannot be opened.
        """
        folder = self.folder(constellation_id)
        path = folder / DATABASE_NAME
        if not path.is_file():
            raise RowNotFound(f"the database {path} is missing; move it back, or restore a backup")
        with DataDirLock.acquire(folder):
            async with await Database.open(path, threads) as database:
                await database.read(migrations_of("constellation").check)
                try:
                    await database.claim(partial(self._claim, constellation_id))
                except DiskFull:  # the lock keeps other processes out, and stored data can be read
                    await database.claim(meta.epoch, stores=False)
                try:
                    yield database
                finally:
                    with trio.CancelScope(shield=True):
                        await self._note_work(database, constellation_id)

    def _claim(self, constellation_id: str, connection: Connection) -> int:
        meta.initialise(connection, constellation_id, now_text(self._clock))
        return meta.next_epoch(connection)

    async def _note_work(self, database: Database, constellation_id: str) -> None:
        """Store a mark if turns are open, so that the next start continues them without waiting for a request."""
        mark = self.folder(constellation_id) / UNFINISHED_NAME
        try:
            has_work = bool(await database.read(turns.agents_with_work))
        except DatabaseError:
            has_work = True  # not known; an unnecessary check costs little
        with suppress(OSError):  # a full disk: the log that stays behind says the same
            if has_work:
                mark.touch()
            else:
                mark.unlink(missing_ok=True)

    async def unfinished(self, constellation_ids: Sequence[str]) -> list[str]:
        """Return the constellations that were closed while turns were open, or never closed: closing a database deletes
        its log.
        """
        return await trio.to_thread.run_sync(lambda: [name for name in constellation_ids if self._is_unfinished(name)])

    def _is_unfinished(self, constellation_id: str) -> bool:
        marks = (f"{self.folder(constellation_id)}/{name}" for name in (UNFINISHED_NAME, f"{DATABASE_NAME}-wal"))
        return any(map(exists, marks))  # every start asks for each constellation: as paths, 10,000 take 0.1 s more

    async def vacuum(self, constellation_id: str, *, if_much_free: bool = False) -> int:
        """Vacuum the database, unless little of it is free; return the number of freed bytes. It must not be open.

        Raises:
            OwnedElsewhere: another process uses it.
            DatabaseError: it is damaged, outdated, or the disk is too small for the copy.
        """
        return await trio.to_thread.run_sync(_vacuum, self.folder(constellation_id), if_much_free)

    async def remove(self, constellation_id: str) -> None:
        """Delete the folder with everything in it. The caller must prevent the constellation from being opened. It may
        be deleted in part already.

        Raises:
            StorageFailed: the disk failed.
        """
        await trio.to_thread.run_sync(_remove, self.folder(constellation_id))
        self.keep(constellation_id)


def _adopt(copy: Path, folder: Path, constellation_id: str, migrated_at: str | None) -> None:
    if "agents" not in backup.verify(copy).rows:
        raise BackupInvalid(f"{copy} is not a backup of a constellation; create one with `pattern backup`")
    path, migrations = folder / DATABASE_NAME, migrations_of("constellation")
    backup.restore(copy, path)
    if migrated_at is not None:
        migrations.migrate(path, backup_to=None, now=migrated_at)
    with opened_at(path) as connection:
        if migrations.plan(connection):
            raise SchemaOutdated(
                f"{copy} was made by an older version; migrate the restored constellation with --migrate (`migrate`)"
            )
        with connection:
            meta.put(connection, meta.CONSTELLATION_ID, constellation_id)
            # The original may still run: what it continues must not happen twice.
            turns.request_cancel_all(connection, "restored_as_a_copy")
            pause(connection)
            agents.expect_rest(connection)  # no timers come with an archive
            outbox.pause_all(connection, "the constellation was restored from a backup")


def _put_back(copy: Path, folder: Path, constellation_id: str, now: str) -> None:
    # Complete, with its turns cancelled, before it takes the place of the other.
    with DataDirLock.acquire(folder), emptied(folder / ".restore") as beside:
        _adopt(copy, beside, constellation_id, now)
        backup.restore(beside / DATABASE_NAME, folder / DATABASE_NAME)


def _copy(path: Path, target: Path) -> backup.Report:
    with opened_at(path, readonly=True) as connection:
        return backup.hot_backup(connection, target)


def pause(connection: Connection) -> None:
    """Let nothing start by itself in a copy, until a person says so."""
    schedules.pause_all(connection)
    tasks.block_starts(connection, "restored as a copy: set it to pending if it is to start here, too")
    calendars.pause_reminders(connection)
    sources.pause_all(connection)


def _vacuum(folder: Path, if_much_free: bool) -> int:
    with DataDirLock.acquire(folder), opened_at(folder / DATABASE_NAME) as connection:
        migrations_of("constellation").check(connection)
        return 0 if if_much_free and not maintenance.much_free(connection) else maintenance.vacuum(connection)


def _remove(folder: Path) -> None:
    with translated():
        # Rename it first: a partly deleted folder must not look like a constellation.
        gone = folder.with_name(_REMOVED + folder.name)
        if folder.exists():
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
