"""The n-th call fails, with SQLite's own error, and after healing everything that was committed is there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from pattern_db.connection import Connection, open_connection
from pattern_db.testing.faults import FaultyDisk, Trouble
from pattern_db.testing.watched import Op


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk()
    yield made
    made.unregister()


def a_table(disk: FaultyDisk, path: Path) -> Connection:
    connection = open_connection(path, create=True, vfs=disk.name)
    connection.execute("CREATE TABLE IF NOT EXISTS t (a TEXT) STRICT").fetchall()
    return connection


def rows(path: Path) -> list[str]:
    connection = open_connection(path)
    try:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        return [row[0] for row in connection.execute("SELECT a FROM t ORDER BY rowid")]
    finally:
        connection.close()


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


def test_syncs_fail_until_healed(disk: FaultyDisk, tmp_path: Path) -> None:
    connection = a_table(disk, tmp_path / "a.db")
    disk.fail(Op.SYNC, count=math.inf)
    for _ in range(3):
        with pytest.raises(apsw.IOError):
            connection.execute("INSERT INTO t VALUES ('never')").fetchall()
    disk.heal()
    connection.execute("INSERT INTO t VALUES ('then')").fetchall()
    connection.close()
    assert "then" in rows(tmp_path / "a.db")


@pytest.mark.parametrize("op", [Op.OPEN, Op.READ])
def test_opening_and_reading_fail(disk: FaultyDisk, tmp_path: Path, op: Op) -> None:
    a_table(disk, tmp_path / "a.db").close()
    disk.fail(op, count=math.inf)
    with pytest.raises((apsw.IOError, apsw.CantOpenError, Exception), match=r"fails|cannot be read"):
        a_table(disk, tmp_path / "a.db")
    disk.heal()
    a_table(disk, tmp_path / "a.db").close()


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


def test_a_fault_may_say_that_the_disk_is_full(disk: FaultyDisk, tmp_path: Path) -> None:
    connection = a_table(disk, tmp_path / "a.db")
    disk.fail(Op.WRITE, trouble=Trouble.FULL)
    with pytest.raises(apsw.FullError):
        connection.execute("INSERT INTO t VALUES ('words')").fetchall()
    connection.close()


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
    again = open_connection(good / "a.db")
    again.execute("INSERT INTO t VALUES ('on the real disk')").fetchall()
    again.close()
