"""Every call passes, in order, and what `before` raises is what SQLite gets."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from pattern_db.connection import open_connection
from pattern_db.errors import IOFailed
from pattern_db.testing.watched import Call, Op, WatchedDisk


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


class Closed(WatchedDisk):
    """Opens nothing."""

    def before(self, call: Call) -> None:
        raise apsw.CantOpenError("closed")


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
    again = open_connection(path)
    assert again.execute("SELECT a FROM t").get == "words"
    again.close()


def test_a_new_log_says_that_its_first_sync_makes_its_name_durable(tmp_path: Path) -> None:
    disk = Listener()
    connection = open_connection(tmp_path / "a.db", create=True, vfs=disk.name)
    connection.execute("CREATE TABLE t (a TEXT) STRICT").fetchall()
    connection.execute("INSERT INTO t VALUES ('more')").fetchall()
    made = [call for call in disk.did if call.op is Op.OPEN and call.path.endswith("-wal")]
    syncs = [call.syncs_folder for call in disk.did if call.op is Op.SYNC and call.path.endswith("-wal")]
    assert [call.is_new for call in made] == [True]
    assert syncs[0]
    assert not any(syncs[1:])
    connection.close()
    disk.unregister()


def test_what_is_refused_is_an_error_of_storage(tmp_path: Path) -> None:
    disk = Closed()
    with pytest.raises(IOFailed):
        open_connection(tmp_path / "a.db", create=True, vfs=disk.name)
    disk.unregister()
