"""global.db while the server runs: opened again after disk errors, so that no restart is needed once a full disk has
free space.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import trio

from pattern_db import maintenance, template
from pattern_db.backup import Report, hot_backup
from pattern_db.connection import Connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import DiskFull, StorageFailed
from pattern_db.migrate import migrations_of

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("pattern.global")


class GlobalDatabase:
    """Runs functions of a connection to global.db. Made by `open_global`."""

    def __init__(self, path: Path, threads: DatabaseThreads) -> None:
        self._path = path
        self._threads = threads
        self._database: Database | None = None
        self._opening = trio.Lock()

    async def read(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn`, which only reads.

        Raises:
            DatabaseError: storage refused; after `StorageFailed` the next call opens the file again.
        """
        async with self._reopened_after_trouble() as database:
            return await database.read(fn, *args, **kwargs)

    async def write(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in a transaction; its changes are on disk when this returns.

        Raises:
            DatabaseError: storage refused; after `StorageFailed` the next call opens the file again.
        """
        async with self._reopened_after_trouble() as database:
            return await database.write(fn, *args, **kwargs)

    async def check(self) -> None:
        """Open the file if it is not open, and read its schema's version.

        Raises:
            SchemaOutdated: it needs `pattern db migrate`.
            DatabaseError: it cannot be opened or read.
        """
        await self.read(migrations_of("global").check)

    async def copy(self, target: Path) -> Report:
        """Copy the file, while it is in use, to `target`, and verify the copy.

        Raises:
            DatabaseError: as `backup.hot_backup`.
        """
        database = await self._opened()
        return await database.read_aside(hot_backup, target)

    async def vacuum(self) -> int:
        """Vacuum the file; return the number of freed bytes.

        Raises:
            DatabaseError: storage refused, or the disk is too small for the copy.
        """
        database = await self._opened()
        return await database.run_alone(maintenance.vacuum)

    async def aclose(self) -> None:
        """Close the file. Safe to call twice."""
        database, self._database = self._database, None
        if database is not None:
            await database.aclose()

    async def _opened(self) -> Database:
        if self._database is None:
            async with self._opening:
                if self._database is None:
                    self._database = await self._open()
        return self._database

    async def _open(self) -> Database:
        database = await Database.open(self._path, self._threads)
        try:
            await database.read(migrations_of("global").check)
        except BaseException:
            await database.aclose()
            raise
        return database

    @asynccontextmanager
    async def _reopened_after_trouble(self) -> AsyncIterator[Database]:
        database = await self._opened()
        try:
            yield database
        except DiskFull:
            raise  # the file is intact, and can be read
        except StorageFailed as error:
            if self._database is database:
                self._database = None
                _log.error(
                    "the global database failed and is being opened again; retry the request", {"reason": error.message}
                )
            await database.aclose()
            raise


@asynccontextmanager
async def open_global(path: Path, threads: DatabaseThreads, *, now: str) -> AsyncIterator[GlobalDatabase]:
    """Yield the global database at `path`, created if missing; closed at the end of the block.

    Raises:
        SchemaOutdated: it needs `pattern db migrate`.
        DatabaseError: it cannot be opened.
    """
    if not await trio.Path(path).exists():
        await trio.to_thread.run_sync(partial(template.create, path, migrations_of("global"), now=now))
    database = GlobalDatabase(path, threads)
    try:
        await database.check()  # so that a failure ends the start
        yield database
    finally:
        await database.aclose()
