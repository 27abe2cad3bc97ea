"""Whole functions on a file: what is stored together, in which order, who waits for whom, and what closing does."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from pattern_db.connection import Connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import RowConflict, RowNotFound, StorageFailed
from pattern_db.lane import BATCH_MAX, QUEUE_MAX, WOKEN_MAX
from pattern_db.tables import meta
from tests.pattern_db.word_files import (
    PATIENCE_S,
    Hold,
    add,
    add_and_fail,
    count_commits,
    fails,
    held,
    make,
    make_constellation,
    words,
)


async def test_a_failed_write_leaves_words(either: Database) -> None:
    with pytest.raises(ValueError, match="a"):
        await either.write(add_and_fail, "a")
    assert await either.read(words) == []
    await either.write(add, "a")
    with pytest.raises(RowConflict, match="already exists"):
        await either.write(add, "a")
    assert await either.read(words) == ["a"]


async def test_a_missing_file_is_not_opened(tmp_path: Path, threads: DatabaseThreads) -> None:
    with pytest.raises(RowNotFound, match="no database at"):
        await Database.open(tmp_path / "none.db", threads)


@pytest.mark.parametrize(("count", "expected"), [(BATCH_MAX, 1), (BATCH_MAX + 1, 2)])
async def test_writes_that_wait_share_one_commit_up_to_a_bound(database: Database, count: int, expected: int) -> None:
    commits = await count_commits(database)
    async with held(database) as nursery:
        for number in range(count):
            nursery.start_soon(database.write, add, str(number))
    assert len(commits) == expected
    assert len(await database.read(words)) == count


async def test_callers_woken_by_one_commit_leave_room_for_others(database: Database) -> None:
    log: list[str] = []
    began = trio.Event()

    async def store(word: str) -> None:
        await database.write(add, word)
        log.append("stored")
        began.set()

    async def tick() -> None:
        await began.wait()
        while log.count("stored") < BATCH_MAX:
            await trio.lowlevel.checkpoint()
            log.append("tick")

    async with held(database) as nursery:
        for number in range(BATCH_MAX):
            nursery.start_soon(store, str(number))
        nursery.start_soon(tick)
    together = max(len(run) for run in "".join("s" if one == "stored" else " " for one in log).split())
    assert together <= 3 * WOKEN_MAX  # those of the two passes until the clock ticks, and of the next before it ticks
    assert log.count("stored") == BATCH_MAX


async def test_one_bad_request_rolls_back_only_itself(database: Database) -> None:
    commits = await count_commits(database)
    errors: list[BaseException] = []
    async with held(database) as nursery:
        nursery.start_soon(database.write, add, "good")
        nursery.start_soon(fails, errors, lambda connection: add_and_fail(connection, "bad"), database)
        nursery.start_soon(fails, errors, lambda connection: (add(connection, "x"), add(connection, "x")), database)
        nursery.start_soon(database.write, add, "fine")
    assert sorted(await database.read(words)) == ["fine", "good"]
    assert sorted(type(error).__name__ for error in errors) == ["RowConflict", "ValueError"]
    assert len(commits) == 1


async def test_reads_only_need_no_transaction(database: Database) -> None:
    states: list[bool] = []
    async with held(database) as nursery:
        for _number in range(3):
            nursery.start_soon(database.read, lambda connection: states.append(connection.in_transaction))
    assert states == [False] * 3


async def test_requests_on_one_file_run_in_the_order_of_asking(database: Database) -> None:
    asked: list[str] = []
    seen: dict[str, list[str]] = {}

    async def ask(number: int) -> None:
        for turn in range(5):
            word = f"{number}.{turn}"
            asked.append(word)
            await database.write(add, word)
            seen[word] = await database.read(words)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(ask, number)
    assert await database.read(words) == asked
    assert all(word in found for word, found in seen.items())  # a read sees everything acknowledged before


async def test_announcements_come_in_the_order_of_the_commits(either: Database) -> None:
    announced: list[str] = []
    returned: list[str] = []

    async def say(number: int) -> None:
        for turn in range(5):
            word = f"{number}.{turn}"
            fn = partial(add_and_fail if turn == 3 else add, word=word)
            try:
                if turn == 1:
                    returned.append(await either.write(fn))
                    assert word not in announced
                else:
                    returned.append(await either.write_and_announce(fn, announced.append))
                    assert word in announced  # before the caller continues
            except ValueError:
                assert turn == 3

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(say, number)
    stored = await either.read(words)
    assert announced == [word for word in stored if not word.endswith(".1")]
    assert sorted(returned) == sorted(stored) == [f"{number}.{turn}" for number in range(10) for turn in (0, 1, 2, 4)]


async def test_a_long_read_sees_what_is_committed_and_does_not_wait(database: Database) -> None:
    await database.write(add, "a")
    hold = Hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.write, lambda connection: (add(connection, "b"), hold(connection)))
        await hold.entered()
        with trio.fail_after(PATIENCE_S / 2):
            assert await database.read_aside(words) == ["a"]
        hold.let_go.set()
    assert await database.read_aside(words) == ["a", "b"]


async def test_a_long_read_sees_one_moment_and_delays_no_write(database: Database) -> None:
    await database.write(add, "a")
    hold = Hold()
    seen: list[list[str]] = []

    async def look() -> None:
        seen.append(await database.read_aside(lambda connection: words(connection) + hold(connection)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await hold.entered()
        with trio.fail_after(PATIENCE_S / 2):
            await database.write(add, "b")
        hold.let_go.set()
    assert seen == [["a", "a"]]
    assert await database.read_aside(words) == ["a", "b"]


async def test_many_first_long_reads_share_one_connection(database: Database) -> None:
    await database.write(add, "a")
    connections: set[int] = set()

    def look(connection: Connection) -> None:
        connections.add(id(connection))
        assert words(connection) == ["a"]

    async with trio.open_nursery() as nursery:
        for _number in range(10):
            nursery.start_soon(database.read_aside, look)
    assert len(connections) == 1


async def test_a_failed_reader_is_opened_again(database: Database) -> None:
    await database.write(add, "a")
    with pytest.raises(ValueError, match="a bug"):
        await database.read_aside(lambda _connection: (_ for _ in ()).throw(ValueError("a bug")))
    for _time in range(2):
        with pytest.raises(StorageFailed):  # it must not write
            await database.read_aside(add, "b")
        assert await database.read_aside(words) == ["a"]
    await database.write(add, "c")


async def test_work_alone_parts_the_commits_around_it(database: Database) -> None:
    commits = await count_commits(database)
    seen: list[list[str]] = []

    def look(connection: Connection) -> None:
        assert not connection.in_transaction
        seen.append(words(connection))

    async with held(database) as nursery:
        for request in ((database.write, add, "a"), (database.run_alone, look), (database.write, add, "b")):
            nursery.start_soon(*request)
            await wait_all_tasks_blocked()
    assert seen == [["a"]]
    assert len(commits) == 2


async def test_closing_finishes_what_waits_and_is_safe_to_do_twice(tmp_path: Path, threads: DatabaseThreads) -> None:
    path = make(tmp_path / "words.db")
    database = await Database.open(path, threads)
    await database.read_aside(words)
    announced: list[str] = []
    with trio.fail_after(PATIENCE_S):
        async with held(database) as nursery:
            for number in range(BATCH_MAX + 1):
                store = partial(add, word=str(number))
                nursery.start_soon(database.write_and_announce, store, announced.append)
            await wait_all_tasks_blocked()
            nursery.start_soon(database.aclose)
        await database.aclose()
    async with await Database.open(path, threads) as database:
        assert await database.read(words) == announced
    assert sorted(announced, key=int) == [str(number) for number in range(BATCH_MAX + 1)]


async def test_a_closed_database_refuses_everything(either: Database) -> None:
    await either.read_aside(words)
    await either.aclose()
    await either.aclose()
    for ask in (either.write, either.read, either.read_aside, either.run_alone):
        with pytest.raises(StorageFailed, match="closed"):
            await ask(words)
    with pytest.raises(StorageFailed, match="closed"):
        await either.write_and_announce(words, lambda _value: None)


async def test_a_former_owner_of_the_file_stores_words(tmp_path: Path, threads: DatabaseThreads) -> None:
    path = make_constellation(tmp_path / "pattern.db")
    async with await Database.open(path, threads) as first, await Database.open(path, threads) as second:
        with pytest.raises(AssertionError, match="claim the file"):
            _ = first.epoch
        assert await first.claim(meta.next_epoch) == first.epoch == 1
        await first.write(add, "mine")
        assert [await second.claim(meta.next_epoch) for _time in range(2)] == [2, 3]
        announced: list[str] = []
        errors: list[BaseException] = []
        async with held(first) as nursery:  # one batch, in which each is refused
            nursery.start_soon(fails, errors, lambda connection: add(connection, "late"), first)
            nursery.start_soon(fails, errors, lambda connection: add(connection, "later"), first)
        assert [type(error) for error in errors] == [StorageFailed] * 2
        assert "epoch is 3, ours was 1" in str(errors[0])
        with pytest.raises(StorageFailed, match="claimed"):
            await first.write_and_announce(lambda connection: add(connection, "last"), announced.append)
        assert announced == []
        await second.write(add, "theirs")
        assert await second.read(words) == ["mine", "theirs"]


async def test_the_epoch_costs_one_statement_per_batch(tmp_path: Path, threads: DatabaseThreads) -> None:
    statements: list[str] = []
    async with await Database.open(make_constellation(tmp_path / "pattern.db"), threads) as database:
        await database.claim(meta.next_epoch)
        await database.run_alone(
            lambda connection: connection.trace_v2(
                apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"])
            )
        )
        async with held(database) as nursery:
            for word in "abc":
                nursery.start_soon(database.write, add, word)
        assert sum("FROM meta" in sql for sql in statements) == 1
        assert sum("SAVEPOINT" in sql for sql in statements) == 3


@pytest.mark.slow
async def test_too_many_requests_are_refused(database: Database) -> None:
    async with held(database) as nursery:
        for _number in range(QUEUE_MAX):
            nursery.start_soon(database.read, words)
        await wait_all_tasks_blocked()
        with pytest.raises(StorageFailed, match="is too slow"):
            await database.read(words)
    await database.read(words)


def test_leaving_the_threads_waits_for_what_has_begun(tmp_path: Path) -> None:
    async def main() -> None:
        with DatabaseThreads(writers=1, readers=1) as threads:
            database = await Database.open(make(tmp_path / "words.db"), threads)
            await database.write(add, "a")
            await database.aclose()

    before = threading.active_count()
    trio.run(main)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("database-")]
    assert threading.active_count() <= before + 1  # trio keeps a worker for opening files


def test_a_transaction_that_wrote_is_reported_with_its_duration(tmp_path: Path) -> None:
    took: list[float] = []

    async def main() -> None:
        with DatabaseThreads(on_commit=took.append) as threads:
            async with await Database.open(make(tmp_path / "words.db"), threads) as database:
                await database.read(words)
                assert took == []
                await database.write(add, "a")
                assert len(took) == 1
                with pytest.raises(ZeroDivisionError):
                    await database.write(lambda _connection: 1 // 0)

    trio.run(main)
    assert len(took) == 2
    assert all(0 < seconds < 60 for seconds in took)
