"""Files with one table of words, and a request that keeps their thread busy while others gather."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from pattern_db import template
from pattern_db.connection import Connection, fetch_all, open_connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import RowConflict, StorageFailed
from pattern_db.migrate import migrations_of

PATIENCE_S = 60.0


def make(path: Path) -> Path:
    """Add a table of words to a file, which may be new."""
    connection = open_connection(path, create=True)
    connection.execute("CREATE TABLE word (word TEXT NOT NULL UNIQUE)").fetchall()
    connection.close()
    return path


def make_constellation(path: Path) -> Path:
    """A file that has an ownership epoch, and a table of words."""
    template.create(path, migrations_of("constellation"), now="2026-11-21T22:24:40.123Z")
    return make(path)


def add(connection: Connection, word: str) -> str:
    connection.execute("INSERT INTO word (word) VALUES (?)", (word,))
    return word


def words(connection: Connection) -> list[str]:
    return [word for (word,) in fetch_all(connection, "SELECT word FROM word ORDER BY rowid")]


def add_and_fail(connection: Connection, word: str) -> str:
    add(connection, word)
    raise ValueError(word)


class Hold:
    """A request that keeps its thread until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self._entered = threading.Event()

    def __call__(self, connection: Connection) -> list[str]:
        self._entered.set()
        assert self.let_go.wait(PATIENCE_S)
        return words(connection)

    async def entered(self) -> None:
        await trio.to_thread.run_sync(self._entered.wait, PATIENCE_S)


@asynccontextmanager
async def held(database: Database) -> AsyncIterator[trio.Nursery]:
    """Within the block requests only gather; the nursery's tasks have all come to rest when they are let go."""
    hold = Hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.read, hold)
        await hold.entered()
        try:
            yield nursery
            await wait_all_tasks_blocked()
        finally:
            hold.let_go.set()


async def count_commits(database: Database) -> list[None]:
    """A list that grows by one with every commit."""
    commits: list[None] = []

    def hook() -> bool:
        commits.append(None)
        return False

    await database.run_alone(lambda connection: connection.set_commit_hook(hook))
    return commits


async def fails(errors: list[BaseException], fn: Callable[[Connection], object], database: Database) -> None:
    """Write, and note what it raised."""
    try:
        await database.write(fn)
    except (StorageFailed, ValueError, RowConflict) as error:
        errors.append(error)


@asynccontextmanager
async def on_file(folder: Path) -> AsyncIterator[Database]:
    """A database with threads of its own."""
    with DatabaseThreads() as threads:
        async with await Database.open(make(folder / "words.db"), threads) as database:
            yield database


@asynccontextmanager
async def inline() -> AsyncIterator[Database]:
    """A database in memory."""
    async with Database.in_memory() as database:
        await database.write(lambda connection: connection.execute("CREATE TABLE word (word TEXT UNIQUE)").fetchall())
        yield database
