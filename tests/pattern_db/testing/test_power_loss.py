"""What was synced stays, what was not may go, and the file opens whatever was left."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from pattern_db.connection import Connection, open_connection
from pattern_db.testing.power_loss import Left, PowerLossDisk


def a_table(path: Path) -> None:
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


def found(path: Path) -> list[int]:
    connection = open_connection(path)
    try:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        return [row[0] for row in connection.execute("SELECT a FROM t ORDER BY a")]
    finally:
        connection.close()


def one_trial(folder: Path, seed: int, *, synchronous: str) -> int:
    """How many acknowledged rows a cut at a random change loses."""
    chance = random.Random(seed)
    path = folder / f"{seed}.db"
    a_table(path)
    disk = PowerLossDisk()
    connection = open_connection(path, vfs=disk.name)
    connection.execute(f"PRAGMA synchronous = {synchronous}").fetchall()
    connection.execute(f"PRAGMA wal_autocheckpoint = {chance.choice([2, 10, 1000])}").fetchall()
    disk.cut_at(chance.randrange(1, 150))
    acknowledged = insert(connection, 60)
    close(connection)
    disk.restore([Left.NOTHING, Left.CHANCE, Left.EVERYTHING][seed % 3], chance)
    disk.unregister()
    rows = found(path)
    assert rows == list(range(len(rows))), "a prefix"
    return max(0, len(acknowledged) - len(rows))


def test_synced_commits_survive_every_cut(tmp_path: Path) -> None:
    assert [one_trial(tmp_path, seed, synchronous="FULL") for seed in range(60)] == [0] * 60


def test_unsynced_commits_do_not(tmp_path: Path) -> None:
    assert sum(one_trial(tmp_path, seed, synchronous="NORMAL") for seed in range(12)) > 0


def test_the_whole_log_goes_if_its_name_was_never_durable(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    a_table(path)
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
    assert found(path) == []
    disk.unregister()


def test_everything_is_what_a_killed_process_leaves(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    a_table(path)
    disk = PowerLossDisk()
    connection = open_connection(path, vfs=disk.name)
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    insert(connection, 3)
    disk.cut()
    close(connection)
    disk.restore(Left.EVERYTHING, random.Random(0))
    assert found(path) == [0, 1, 2]
    assert disk.changes > 0
    disk.unregister()
