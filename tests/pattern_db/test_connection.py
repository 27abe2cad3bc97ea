from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from pattern_db import connection as opening
from pattern_db.columns import from_json
from pattern_db.connection import (
    Connection,
    Table,
    fetch_all,
    is_alone,
    open_connection,
    open_immutable,
    open_in_memory,
    opened_at,
    require_change,
    transaction,
)
from pattern_db.errors import Corrupt, IOFailed, RowNotFound
from pattern_db.testing.disks import FaultyDisk, Op


def pragma(connection: Connection, name: str) -> object:
    return fetch_all(connection, f"PRAGMA {name}")[0][0]


def test_the_settings_of_a_file(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "a.db", create=True)
    connection.execute("CREATE TABLE t (x)")
    expected = {
        "page_size": 2048,
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "cache_size": -512,
        "mmap_size": 0,
        "wal_autocheckpoint": 1000,
        "journal_size_limit": 4 * 1024 * 1024,
        "temp_store": 2,
        "busy_timeout": 5000,
        "locking_mode": "normal",
        "trusted_schema": 0,
        "recursive_triggers": 1,
        "query_only": 0,
    }
    assert {name: pragma(connection, name) for name in expected} == expected
    assert fetch_all(connection, "SELECT vec_version()")[0][0].startswith("v0.1")
    connection.close()


def test_the_pages_of_the_schema_are_not_kept(tmp_path: Path) -> None:
    with open_connection(tmp_path / "a.db", create=True) as connection:
        for number in range(200):
            connection.execute(f"CREATE TABLE t{number} (some_column TEXT, another_column TEXT, a_third_one TEXT)")
    connection.close()
    opened = open_connection(tmp_path / "a.db")
    used, _most = opened.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
    assert used < 10 * opening.PAGE_BYTES
    assert len(fetch_all(opened, "SELECT name FROM sqlite_schema")) == 200
    opened.close()


def test_a_file_is_made_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(RowNotFound, match="no database"):
        open_connection(tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []
    open_connection(tmp_path / "a.db", create=True).close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_reader_sees_commits_and_cannot_write(tmp_path: Path) -> None:
    writer = open_connection(tmp_path / "a.db", create=True)
    reader = open_connection(tmp_path / "a.db", readonly=True)
    writer.execute("CREATE TABLE t (x)")
    writer.execute("INSERT INTO t VALUES (1)")
    assert fetch_all(reader, "SELECT x FROM t") == [(1,)]
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("INSERT INTO t VALUES (2)")
    reader.close()
    writer.close()


def test_a_misspelt_column_is_an_error_and_the_schema_is_not_for_writing() -> None:
    with closing(open_in_memory()) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA writable_schema = 1").fetchall()
        for statement in ('SELECT "y" FROM t', "DELETE FROM sqlite_schema"):
            with pytest.raises(apsw.SQLError):
                connection.execute(statement)


def test_what_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"not a database at all, but long enough for a header" * 90)
    for opened in (open_connection, open_immutable):
        with pytest.raises(Corrupt, match="damaged or not a database"):
            opened(path)
    with pytest.raises(IOFailed):
        open_connection(tmp_path / "missing" / "a.db", create=True)


@dataclass(frozen=True)
class _Note:
    id: str
    name: str
    tags: tuple[str, ...]
    created_at: str = "then"


def test_a_table_finds_changes_and_counts_rows_by_key_and_refuses_what_is_missing() -> None:
    db = open_in_memory()
    db.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, name TEXT, tags TEXT, created_at TEXT)")
    notes = Table(
        "notes", _Note, "note {!r}", order="name", json=("tags",), types={"tags": lambda text: tuple(from_json(text))}
    )
    for key, name in (("n1", "second"), ("n2", "first"), ("second", "third")):
        notes.create(db, _Note(key, name, ("a",)))
    assert [row.id for row in notes.list_all(db)] == ["n2", "n1", "second"]
    assert (notes.get(db, "n1").name, notes.find(db, "first").id) == ("second", "n2")
    assert notes.find(db, "second").id == "second", "an id goes before a name"
    assert (notes.count(db), notes.count(db, "WHERE name > ?", ("first",))) == (3, 2)
    notes.update(db, _Note("n1", "other", (), created_at="now"))
    assert notes.get(db, "n1") == _Note("n1", "other", (), created_at="then")
    notes.delete(db, "n1")
    for refused in (
        lambda: notes.get(db, "n1"),
        lambda: notes.find(db, "other"),
        lambda: notes.update(db, _Note("n1", "", ())),
        lambda: notes.change(db, "n1", {"name": ""}),
        lambda: notes.delete(db, "n1"),
    ):
        with pytest.raises(RowNotFound, match=r"there is no note '(n1|other)'"):
            refused()
    assert notes.count(db) == 2
    with pytest.raises(RowNotFound, match="there is no loan"):
        db.execute("DELETE FROM notes WHERE id = 'n1'")
        require_change(db, "loan")
    db.close()


def test_an_immutable_file_is_opened_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "what? 100%.db"
    connection = open_connection(path, create=True)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    copy = open_immutable(path)
    assert fetch_all(copy, "SELECT count(*) FROM t") == [(0,)]
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    copy.close()
    with pytest.raises(RowNotFound):
        open_immutable(tmp_path / "b.db")


def test_a_transaction_leaves_all_or_nothing_and_says_what_ended_it(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "a.db", create=True)
    with transaction(connection):
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ValueError, match="a bug"), transaction(connection):
        connection.execute("INSERT INTO t VALUES (2)")
        raise ValueError("a bug")
    pages = int(str(pragma(connection, "page_count")))
    fetch_all(connection, f"PRAGMA max_page_count = {pages}")
    with pytest.raises(apsw.FullError), transaction(connection):  # here SQLite rolls back by itself
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert fetch_all(connection, "SELECT x FROM t") == [(1,)]
    assert not connection.in_transaction


def test_a_file_without_room_for_a_second_connection_says_so(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "alone.db", create=True)
    assert not is_alone(connection)
    connection.execute("PRAGMA locking_mode = exclusive").fetchall()  # as on a full disk
    assert is_alone(connection)
    connection.close()


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_reader_leaves_the_files_as_they_were(tmp_path: Path, was_killed: bool) -> None:
    path = tmp_path / "a.db"
    writer = open_connection(path, create=True)
    writer.execute("CREATE TABLE t (x)")
    if was_killed:
        writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    writer.close()
    before = {file.name: file.read_bytes() for file in tmp_path.glob("a.db*") if not file.name.endswith("-shm")}
    assert ("a.db-wal" in before) == was_killed
    with closing(open_connection(path, readonly=True)) as reader:
        assert fetch_all(reader, "SELECT count(*) FROM t") == [(0,)]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert (tmp_path / "a.db-wal").exists() == was_killed


def test_a_file_whose_log_cannot_be_written_into_it_is_a_failure_of_the_disk(tmp_path: Path) -> None:
    disk = FaultyDisk(is_default=True)
    with pytest.raises(RowNotFound), opened_at(tmp_path / "none.db"):
        pass
    open_connection(tmp_path / "a.db", create=True).close()
    try:
        with opened_at(tmp_path / "a.db") as connection:
            connection.execute("CREATE TABLE t (x)")
        with pytest.raises(Corrupt), opened_at(tmp_path / "a.db", readonly=True) as connection:
            assert fetch_all(connection, "SELECT count(*) FROM t") == [(0,)]
            raise apsw.CorruptError
        with pytest.raises(IOFailed), opened_at(tmp_path / "a.db") as connection:
            connection.execute("INSERT INTO t VALUES (1)")
            disk.fail(Op.WRITE)
        assert disk.failed[Op.WRITE] == 1
    finally:
        disk.unregister()
