"""The files of constellations under the data directory: made, opened under their lock, adopted from copies, removed."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

import trio

from pattern_core.ids import Ids, now_text
from pattern_core.runtime import Runtime
from pattern_db import backup, maintenance, template
from pattern_db.connection import Connection, open_connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import BackupInvalid, DatabaseError, DiskFull, RowNotFound, SchemaOutdated, translated
from pattern_db.files import DataDirLock
from pattern_db.journal import turns
from pattern_db.migrate import migrations_of
from pattern_db.tables import meta, schedules

DATABASE_NAME = backup.DATABASE_NAME
UNFINISHED_NAME = "unfinished"  # lies beside a database that was closed while turns were open


class ConstellationFiles:
    """One folder per constellation: `<data dir>/constellations/<id>/`."""

    def __init__(self, data_dir: Path, runtime: Runtime) -> None:
        self._data_dir = data_dir
        self._clock = runtime.clock
        self._ids = Ids(runtime.clock, runtime.randomness)

    def new_id(self) -> str:
        """Return an id for a constellation to be made."""
        return self._ids.new("con")

    def folder(self, constellation_id: str) -> Path:
        """Return the constellation's folder."""
        return self._data_dir / "constellations" / constellation_id

    def relative_path(self, constellation_id: str) -> str:
        """Return the database's path as the registry holds it, relative to the data directory."""
        return f"constellations/{constellation_id}/{DATABASE_NAME}"

    async def create(self, constellation_id: str) -> None:
        """Make an empty database; it is on disk when this returns.

        Raises:
            StorageFailed: the disk is full or failed.
        """
        path = self._data_dir / self.relative_path(constellation_id)
        now = now_text(self._clock)
        make = partial(template.create, path, migrations_of("constellation"), now=now)
        await trio.to_thread.run_sync(make)

    async def adopt(self, copy: Path, constellation_id: str, *, migrate: bool = False) -> None:
        """Make a database from a copy, verified before it counts, under a new id; `migrate` brings what was made from
        an older copy to this version, and leaves the copy as it is.

        Raises:
            RowNotFound: there is no such file.
            BackupInvalid: it is not a sound copy of a constellation.
            SchemaOutdated: it was made by an older server, and is not to be migrated.
            MigrationFailed: it cannot be migrated.
            StorageFailed: the disk is full or failed.
        """
        folder = self.folder(constellation_id)
        try:
            now = now_text(self._clock) if migrate else None
            await trio.to_thread.run_sync(_adopt, copy, folder, constellation_id, now)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.remove(constellation_id)
            raise

    @asynccontextmanager
    async def open(self, constellation_id: str, threads: DatabaseThreads) -> AsyncIterator[Database]:
        """Yield the constellation's database, ours alone within the block.

        Raises:
            RowNotFound: the file is missing.
            OwnedElsewhere: another process works on it.
            SchemaOutdated: it needs `pattern db migrate`.
            DatabaseError: it cannot be opened.
        """
        folder = self.folder(constellation_id)
        path = folder / DATABASE_NAME
        if not path.is_file():
            raise RowNotFound(f"the database {path} is missing; put it back, or restore a backup")
        with DataDirLock.acquire(folder):
            async with await Database.open(path, threads) as database:
                await database.read(migrations_of("constellation").check)
                try:
                    await database.claim(partial(self._claim, constellation_id))
                except DiskFull:  # the lock keeps others out meanwhile, and what is stored can be read
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
        """Leave a mark if turns are open, so that the next start continues them without waiting for a request."""
        mark = self.folder(constellation_id) / UNFINISHED_NAME
        try:
            has_work = bool(await database.read(turns.agents_with_work))
        except DatabaseError:
            has_work = True  # not known; looking once too often costs little
        with suppress(OSError):  # a full disk: the log that stays behind says the same
            if has_work:
                mark.touch()
            else:
                mark.unlink(missing_ok=True)

    async def unfinished(self, constellation_ids: Sequence[str]) -> list[str]:
        """Return those that were closed while turns were open, or never closed: a closed database leaves no log
        behind.
        """
        return await trio.to_thread.run_sync(lambda: [name for name in constellation_ids if self._is_unfinished(name)])

    def _is_unfinished(self, constellation_id: str) -> bool:
        folder = self.folder(constellation_id)
        return (folder / UNFINISHED_NAME).exists() or (folder / f"{DATABASE_NAME}-wal").exists()

    async def vacuum(self, constellation_id: str) -> int:
        """Write the database without gaps; return the bytes that were freed. Nothing may have it open.

        Raises:
            OwnedElsewhere: another process works on it.
            DatabaseError: it is damaged, outdated, or the disk is too small for the copy.
        """
        return await trio.to_thread.run_sync(_vacuum, self.folder(constellation_id))

    async def remove(self, constellation_id: str) -> None:
        """Delete the folder with everything in it. The caller keeps the constellation from being opened meanwhile.

        Raises:
            StorageFailed: the disk failed.
        """
        await trio.to_thread.run_sync(_remove, self.folder(constellation_id))


def _adopt(copy: Path, folder: Path, constellation_id: str, migrated_at: str | None) -> None:
    if backup.verify(copy).constellation_id is None:
        raise BackupInvalid(f"{copy} is not a copy of a constellation; `pattern backup` makes them")
    backup.restore(copy, folder)
    path, migrations = folder / DATABASE_NAME, migrations_of("constellation")
    if migrated_at is not None:
        migrations.migrate(path, backup_to=None, now=migrated_at)
    with closing(open_connection(path)) as connection:
        if migrations.plan(connection):
            raise SchemaOutdated(
                f"{copy} was made by an older version: --migrate (`migrate`) brings what is restored to this one"
            )
        with translated(), connection:
            meta.put(connection, meta.CONSTELLATION_ID, constellation_id)
            # The original may live: what it continues must not happen a second time here.
            turns.request_cancel_all(connection, "restored_as_a_copy")
            schedules.pause_all(connection)


def _vacuum(folder: Path) -> int:
    with DataDirLock.acquire(folder), closing(open_connection(folder / DATABASE_NAME)) as connection, translated():
        migrations_of("constellation").check(connection)
        return maintenance.vacuum(connection)


def _remove(folder: Path) -> None:
    with translated():
        # First out of sight: a folder half deleted must not look like a constellation.
        gone = folder.with_name(f".removed-{folder.name}")
        if folder.exists():
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
