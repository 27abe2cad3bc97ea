from __future__ import annotations

import copy
import errno
from pathlib import Path

import apsw
import pytest

from pattern_db import errors
from pattern_db.connection import Connection, open_connection
from pattern_db.errors import (
    Busy,
    Conflict,
    Corrupt,
    DatabaseError,
    DiskFull,
    IOFailed,
    OwnedElsewhere,
    StorageFailed,
    translate,
    translated,
)


def raised(db: Connection, sql: str) -> BaseException:
    with pytest.raises(apsw.Error) as caught:
        db.execute(sql)
    return caught.value


def test_what_exists_already_or_is_missing_is_a_conflict(db: Connection) -> None:
    twice = raised(db, "INSERT INTO meta (key, value) VALUES ('epoch', '1')")
    assert isinstance(translate(twice), Conflict)
    orphan = raised(
        db, "INSERT INTO group_members (group_id, agent_id, joined_at) VALUES ('g', 'agt_ada', printf('%24d', 1))"
    )
    known = translate(orphan)
    assert isinstance(known, Conflict)
    assert "does not exist" in known.message


def test_a_bug_in_a_statement_has_no_name_here(db: Connection) -> None:
    assert translate(raised(db, "UPDATE agents SET status = 'asleep'")) is None
    assert translate(raised(db, "SELECT nothing FROM nowhere")) is None
    assert translate(ValueError("x")) is None
    assert translate(OSError("without a number")) is None


def test_a_locked_file_is_busy(tmp_path: Path) -> None:
    first, second = (open_connection(tmp_path / "a.db", create=True) for _ in range(2))
    second.set_busy_timeout(0)
    first.execute("BEGIN IMMEDIATE")
    known = translate(raised(second, "BEGIN IMMEDIATE"))
    assert isinstance(known, Busy)
    assert not isinstance(known, StorageFailed)
    first.close()
    second.close()


def test_a_full_database_is_a_full_disk(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "a.db", create=True)
    connection.execute("PRAGMA max_page_count = 3").fetchall()
    connection.execute("CREATE TABLE t (x)")
    assert isinstance(translate(raised(connection, "INSERT INTO t VALUES (zeroblob(50000))")), DiskFull)
    connection.close()


def test_errors_of_the_operating_system() -> None:
    assert isinstance(translate(OSError(errno.ENOSPC, "full")), DiskFull)
    assert isinstance(translate(OSError(errno.EDQUOT, "quota")), DiskFull)
    assert isinstance(translate(PermissionError(errno.EACCES, "no")), IOFailed)
    assert isinstance(translate(apsw.IOError("disk")), IOFailed)
    assert isinstance(translate(apsw.NotADBError("file is not a database")), Corrupt)


def test_ours_pass_as_they_are() -> None:
    ours = Conflict("x")
    assert translate(ours) is ours


def test_translated_keeps_the_cause_and_lets_bugs_through() -> None:
    with pytest.raises(DiskFull) as caught, translated():
        raise OSError(errno.ENOSPC, "full")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(apsw.SQLError), translated():
        raise apsw.SQLError("bug")


def test_every_error_has_its_own_code_and_can_be_copied() -> None:
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, DatabaseError)]
    assert len({item.code for item in classes}) == len(classes)
    for item in classes:
        again = copy.copy(item("do this"))
        assert (type(again), str(again), again.message) == (item, "do this", "do this")
    owned = copy.copy(OwnedElsewhere("x", pid=7, url="http://h"))
    assert (owned.pid, owned.url) == (7, "http://h")
