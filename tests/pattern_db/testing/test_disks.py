"""The n-th call fails, with SQLite's own error, and after healing everything that was committed is there."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from pattern_db.connection import Connection, open_connection
from pattern_db.testing.disks import Call, FaultyDisk, Left, Op, PowerLossDisk, WatchedDisk


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk()
    yield made
    made.unregister()


def a_table(disk: FaultyDisk, path: Path) -> Connection:
    connection = open_connection(path, create=True, vfs=disk.name)
    connection.execute("CREATE TABLE IF NOT EXISTS t (a TEXT) STRICT").fetchall()
    return connection


def rows(path: Path) -> list[object]:
    with closing(open_connection(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        return [row[0] for row in connection.execute("SELECT a FROM t ORDER BY rowid")]


def test_the_nth_write_fails_once(disk: FaultyDisk, tmp_path: Path) -> None:
    connection = a_table(disk, tmp_path / "a.db")
    connection.execute("INSERT INTO t VALUES ('first')").fetchall()
    disk.fail(Op.WRITE, nth=2)
    with pytest.raises(apsw.IOError):
        connection.execute("INSERT INTO t VALUES ('second')").fetchall()
    connection.execute("INSERT INTO t VALUES ('third')").fetchall()
    connection.close()
    assert disk.failed == {Op.WRITE: 1}
    assert rows(tmp_path / "a.db") == ["first", "third"]


def test_a_full_disk_refuses_growth_and_nothing_else(disk: FaultyDisk, tmp_path: Path) -> None:
    connection = a_table(disk, tmp_path / "a.db")
    connection.execute("INSERT INTO t VALUES ('small')").fetchall()
    disk.limit(disk.used + 4096)
    with pytest.raises(apsw.FullError):
        connection.execute("INSERT INTO t VALUES (?)", ("big" * 10_000,)).fetchall()
    assert connection.execute("SELECT a FROM t").get == "small"
    disk.heal()
    connection.execute("INSERT INTO t VALUES ('room')").fetchall()
    connection.close()
    assert rows(tmp_path / "a.db") == ["small", "room"]


def test_a_whole_process_may_stand_on_it_and_one_folder_fail(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    disk = FaultyDisk(is_default=True)
    disk.within(bad)
    try:
        first, second = open_connection(good / "a.db", create=True), open_connection(bad / "a.db", create=True)
        disk.fail(Op.WRITE, count=math.inf)
        first.execute("CREATE TABLE t (a TEXT) STRICT").fetchall()
        with pytest.raises(apsw.IOError):
            second.execute("CREATE TABLE t (a TEXT) STRICT").fetchall()
        disk.heal()
        first.close()
        second.close()
    finally:
        disk.unregister()
    assert apsw.vfs_names()[0] != disk.name
    with closing(open_connection(good / "a.db")) as again:
        again.execute("INSERT INTO t VALUES ('on the real disk')").fetchall()


# What was synced stays, what was not may go, and the file opens whatever was left.


def numbered_table(path: Path) -> None:
    connection = open_connection(path, create=True)
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT) STRICT").fetchall()
    connection.close()


def insert(connection: Connection, count: int) -> list[int]:
    """Insert rows one by one until the power goes; the numbers of those that were acknowledged."""
    acknowledged: list[int] = []
    try:
        for number in range(count):
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 500)).fetchall()
            acknowledged.append(number)
    except apsw.IOError:
        pass
    return acknowledged


def close(connection: Connection) -> None:
    """Close a connection whose disk is gone: it tries to tidy up, which fails, and is closed all the same."""
    with suppress(apsw.IOError):
        connection.close(True)


def one_trial(folder: Path, seed: int, *, synchronous: str) -> int:
    """How many acknowledged rows a cut at a random change loses."""
    chance = random.Random(seed)
    path = folder / f"{seed}.db"
    numbered_table(path)
    disk = PowerLossDisk()
    connection = open_connection(path, vfs=disk.name)
    connection.execute(f"PRAGMA synchronous = {synchronous}").fetchall()
    connection.execute(f"PRAGMA wal_autocheckpoint = {chance.choice([2, 10, 1000])}").fetchall()
    disk.cut_at(chance.randrange(1, 150))
    acknowledged = insert(connection, 60)
    close(connection)
    disk.restore([Left.NOTHING, Left.CHANCE, Left.EVERYTHING][seed % 3], chance)
    disk.unregister()
    left = rows(path)
    assert left == list(range(len(left))), "a prefix"
    return max(0, len(acknowledged) - len(left))


def test_synced_commits_survive_every_cut(tmp_path: Path) -> None:
    assert [one_trial(tmp_path, seed, synchronous="FULL") for seed in range(60)] == [0] * 60


def test_unsynced_commits_do_not(tmp_path: Path) -> None:
    assert sum(one_trial(tmp_path, seed, synchronous="NORMAL") for seed in range(12)) > 0


def test_the_whole_log_goes_if_its_name_was_never_durable(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    numbered_table(path)
    disk = PowerLossDisk()
    connection = open_connection(path, vfs=disk.name)
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    assert insert(connection, 3) == [0, 1, 2]
    disk.cut()
    with pytest.raises(apsw.IOError):
        connection.execute("INSERT INTO t VALUES (99, '')").fetchall()
    close(connection)
    disk.restore(Left.NOTHING, random.Random(0))
    assert not path.with_name("a.db-wal").exists()
    assert not path.with_name("a.db-shm").exists()
    assert rows(path) == []
    disk.unregister()


# Every call passes, in order, and what `before` raises is what SQLite gets.


class Listener(WatchedDisk):
    """Remembers what was asked and what was done."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Call] = []
        self.did: list[Call] = []

    def before(self, call: Call) -> None:
        self.asked.append(call)

    def done(self, call: Call) -> None:
        self.did.append(call)


def test_a_database_works_and_every_call_is_seen(tmp_path: Path) -> None:
    disk = Listener()
    path = tmp_path / "a.db"
    connection = open_connection(path, create=True, vfs=disk.name)
    connection.execute("CREATE TABLE t (a TEXT) STRICT").fetchall()
    disk.did.clear()
    connection.execute("INSERT INTO t VALUES ('words')").fetchall()
    kinds = [(call.op, Path(call.path).name) for call in disk.did]
    assert (Op.WRITE, "a.db-wal") in kinds
    assert kinds[-1] == (Op.SYNC, "a.db-wal"), "a commit ends with the sync of the log"
    assert any(b"words" in call.data for call in disk.did)
    connection.close()
    assert disk.did[-1].op is Op.DELETE
    assert len(disk.asked) >= len(disk.did)
    disk.unregister()
    assert rows(path) == ["words"]
