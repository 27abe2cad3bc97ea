"""Whole functions on a file when things go wrong: cancelled callers, a full disk, a disk that hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from pattern_db.connection import Connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import DiskFull, IOFailed, StorageFailed
from pattern_db.tables import meta
from tests.pattern_db.word_files import (
    PATIENCE_S,
    Hold,
    add,
    add_and_fail,
    fails,
    held,
    make,
    make_constellation,
    words,
)


def fill_disk(connection: Connection) -> None:
    connection.execute("PRAGMA max_page_count = 1").fetchall()  # SQLite takes the present size for the bound
    connection.execute("INSERT INTO word (word) SELECT hex(randomblob(20000))")


def make_room(connection: Connection) -> None:
    connection.execute("PRAGMA max_page_count = 1000000").fetchall()


def break_disk(_connection: Connection) -> None:
    raise apsw.IOError("the disk is broken")


async def test_a_cancelled_request_that_waits_is_withdrawn(database: Database) -> None:
    async with held(database) as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(trio.sleep, 0)
            scope.cancel()
            await database.write(add, "never asked")
        assert scope.cancelled_caught
        with trio.move_on_after(0.01) as scope:
            await database.write(add, "withdrawn")
        assert scope.cancelled_caught  # though the thread is still busy
        nursery.start_soon(database.write, add, "stays")
    assert await database.read(words) == ["stays"]


async def test_a_cancelled_request_that_runs_is_waited_for(database: Database) -> None:
    hold = Hold()
    values: list[list[str]] = []
    done = trio.Event()

    async def write() -> None:
        with scope:
            values.append(await database.write(lambda connection: (add(connection, "a"), hold(connection))[1]))
            await trio.lowlevel.checkpoint()
        done.set()

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(write)
        await hold.entered()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert not done.is_set()
        hold.let_go.set()
    assert values == [["a"]]
    assert scope.cancelled_caught
    assert await database.read(words) == ["a"]


async def test_a_caller_already_cancelled_still_keeps_what_must_be_kept(either: Database) -> None:
    announced: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await either.write_and_announce(lambda connection: add(connection, "kept"), announced.append)
    with trio.CancelScope() as scope:
        scope.cancel()
        await either.write(add, "not kept")
    assert announced == ["kept"] == await either.read(words)


async def test_storage_trouble_fails_all_requests_until_the_file_is_opened_again(
    database: Database, threads: DatabaseThreads
) -> None:
    errors: list[BaseException] = []
    await database.write(add, "before")
    async with held(database) as nursery:
        await wait_all_tasks_blocked()
        for fn in (lambda connection: add(connection, "a"), break_disk, lambda connection: add(connection, "b")):
            nursery.start_soon(fails, errors, fn, database)
    with pytest.raises(IOFailed) as later:
        await database.read(words)
    assert len(errors) == 3
    assert all(type(error) is IOFailed for error in errors)
    assert len({id(error) for error in (*errors, later.value)}) == 4  # tracebacks grow on the way up
    assert errors[0].__cause__ is not None
    assert database.path is not None
    async with await Database.open(database.path, threads) as again:
        await again.write(add, "after")
        assert await again.read(words) == ["before", "after"]


async def test_a_full_disk_refuses_what_shares_the_commit_and_nothing_else(database: Database) -> None:
    errors: list[BaseException] = []
    found: list[object] = []

    async def look() -> None:
        found.append(await database.read(words))

    await database.write(add, "before")
    async with held(database) as nursery:
        await wait_all_tasks_blocked()
        nursery.start_soon(fails, errors, lambda connection: add(connection, "a"), database)
        await wait_all_tasks_blocked()
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        nursery.start_soon(fails, errors, fill_disk, database)
    assert [type(error) for error in errors] == [DiskFull, DiskFull]
    assert found == [["before"]] == [await database.read(words)]
    assert database.failure is None
    await database.run_alone(make_room)
    await database.write(add, "after")
    assert await database.read(words) == ["before", "after"]


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
@pytest.mark.parametrize("fn", [add, add_and_fail])
async def test_a_request_that_ends_the_transaction_ends_the_lane(
    either: Database, end: str, fn: Callable[[Connection, str], object]
) -> None:
    def store(connection: Connection) -> None:
        add(connection, "half")
        connection.execute(end).fetchall()
        fn(connection, "stored by itself")

    with pytest.raises(StorageFailed) as caught:
        await either.write(store)
    assert fn is add or "stored by itself" in str(caught.value)
    with pytest.raises(StorageFailed):
        await either.write(add, "later")


async def test_a_hanging_disk_fails_what_waits_and_what_follows(tmp_path: Path, threads: DatabaseThreads) -> None:
    database = await Database.open(make(tmp_path / "hangs.db"), threads)
    hold = Hold()
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails, errors, lambda connection: (add(connection, "a"), hold(connection)), database)
        await hold.entered()
        nursery.start_soon(fails, errors, lambda connection: add(connection, "b"), database)
        await wait_all_tasks_blocked()
        nursery.start_soon(database.watch, 0.05)
        while len(errors) < 2:
            await trio.sleep(0.01)
        with trio.fail_after(PATIENCE_S / 2):
            await fails(errors, lambda connection: add(connection, "c"), database)
        await trio.sleep(0.2)  # the watch looks again and finds nothing new
        # The other files have threads of their own to go on with.
        async with await Database.open(make(tmp_path / "works.db"), threads) as other:
            await other.write(add, "a")
        await database.aclose()  # does not wait for what hangs
        hold.let_go.set()
        nursery.cancel_scope.cancel()
    assert len(errors) == 3
    assert all("has not responded for 0.05 s" in str(error) for error in errors)


@pytest.fixture
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pattern_db.lane.REST_S", 0.05)


def open_files(database: Database) -> int:
    """How many connections to this file the process has."""
    return sum(os.path.realpath(link) == str(database.path) for link in Path("/proc/self/fd").iterdir())


async def rested(database: Database) -> None:
    """Wait until no connection to the file is open."""
    with trio.fail_after(PATIENCE_S):
        while open_files(database):
            await trio.sleep(0.01)


@pytest.mark.usefixtures("short_rest")
async def test_an_unused_connection_is_closed_until_the_next_request(database: Database) -> None:
    await database.write(add, "a")
    assert await database.read_aside(words) == ["a"]
    assert open_files(database) == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.watch, 0.1)
        await rested(database)
        log = Path(f"{database.path}-wal")
        assert log.stat().st_size > 0, "a process that dies now did not close the file"
        assert await database.read_aside(words) == ["a"]
        await database.write(add, "b")
        assert await database.read(words) == ["a", "b"]
        nursery.cancel_scope.cancel()
    await database.aclose()
    assert not log.exists()


@pytest.mark.usefixtures("short_rest")
async def test_a_database_that_rested_notices_another_owner(tmp_path: Path, threads: DatabaseThreads) -> None:
    path = make_constellation(tmp_path / "pattern.db")
    async with await Database.open(path, threads) as first, trio.open_nursery() as nursery:
        await first.claim(meta.next_epoch)
        nursery.start_soon(first.watch, 0.1)
        await rested(first)
        async with await Database.open(path, threads) as second:
            await second.claim(meta.next_epoch)
        with pytest.raises(StorageFailed, match="claimed"):
            await first.write(add, "late")
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("short_rest")
async def test_work_alone_that_takes_long_is_neither_rest_nor_trouble(database: Database) -> None:
    hold = Hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.watch, 0.02)
        nursery.start_soon(database.run_alone, hold)
        await hold.entered()
        await trio.sleep(0.2)
        assert open_files(database) == 1
        hold.let_go.set()
        assert await database.read(words) == []
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("short_rest")
async def test_a_file_that_went_while_it_rested_is_trouble(database: Database) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.watch, 0.1)
        await rested(database)
        assert database.path is not None
        database.path.rename(database.path.with_name("elsewhere.db"))
        for _time in range(2):
            with pytest.raises(StorageFailed, match="no database at"):
                await database.read(words)
        nursery.cancel_scope.cancel()
    with pytest.raises(StorageFailed, match="no database at"):
        await database.aclose()
