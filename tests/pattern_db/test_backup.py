from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pattern_db import backup, template
from pattern_db.connection import PAGE_BYTES, Connection, fetch_all, open_connection, open_immutable, open_in_memory
from pattern_db.errors import BackupFailed, BackupInvalid, RowConflict, RowNotFound, StorageFailed
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, messages, meta
from pattern_db.testing.disks import Call, FaultyDisk, Op, Trouble, WatchedDisk
from tests.pattern_db.conftest import NOW, make_agent, make_message


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A constellation's folder with one agent and 300 messages."""
    path = tmp_path / "home" / backup.DATABASE_NAME
    template.create(path, migrations_of("constellation"), now=NOW)
    connection = open_connection(path)
    meta.initialise(connection, "cst_1", NOW)
    agents.create(connection, make_agent("ada"))
    say(connection, range(300))
    connection.close()
    return path.parent


@pytest.fixture
def connection(home: Path) -> Iterator[Connection]:
    """That constellation, open."""
    with closing(open_connection(home / backup.DATABASE_NAME)) as opened:
        yield opened


def say(connection: Connection, numbers: range) -> None:
    messages.append(connection, [make_message(number, f"words number {number} " * 20) for number in numbers])


def test_a_copy_stands_alone_and_is_equal(connection: Connection, tmp_path: Path) -> None:
    report = backup.hot_backup(connection, tmp_path / "out" / "b.db")
    newest = migrations_of("constellation").newest
    assert (report.version, report.constellation_id, report.rows["messages"]) == (newest, "cst_1", 300)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.db"]
    assert report.bytes == (tmp_path / "out" / "b.db").stat().st_size
    with closing(open_immutable(tmp_path / "out" / "b.db")) as copy:
        assert fetch_all(copy, "PRAGMA journal_mode") == [("delete",)]
        assert backup.content_digest(copy) == backup.content_digest(connection)
    say(connection, range(300, 301))


class Busy(WatchedDisk):
    """A disk on which another connection stores two messages with every page that is read."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._writer = open_connection(home / "pattern.db")
        self.written = 300

    def done(self, call: Call) -> None:
        if call.op is Op.READ:
            with self._writer:
                say(self._writer, range(self.written, self.written + 2))
            self.written += 2

    def stop(self) -> None:
        self._writer.close()
        self.unregister()


def test_others_write_on_and_the_copy_is_one_moment(home: Path, tmp_path: Path) -> None:
    with closing(open_connection(home / "pattern.db")) as filled:
        image = (bytes(32), bytes(2 * backup.STEP_PAGES * PAGE_BYTES), NOW)
        filled.execute("INSERT INTO blob VALUES (?1, 'raw', length(?2), ?2, ?3)", image).fetchall()
    disk = Busy(home)
    reader = open_connection(home / "pattern.db", readonly=True, vfs=disk.name)
    before = disk.written
    report = backup.hot_backup(reader, tmp_path / "b.db")
    reader.close()
    disk.stop()
    assert disk.written > before + 100
    assert report.rows["messages"] in (before, before + 2)  # as it was when the first page was read


def test_an_existing_file_is_left_alone(connection: Connection, tmp_path: Path) -> None:
    target = tmp_path / "b.db"
    target.write_bytes(b"older")
    with pytest.raises(RowConflict):
        backup.hot_backup(connection, target)
    assert target.read_bytes() == b"older"


def a_foreign_database() -> bytes:
    with closing(open_in_memory()) as other:
        other.execute("CREATE TABLE t (x)").fetchall()
        return other.serialize("main")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _content: b"hello" * 1000,
        lambda _content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:6000] + bytes(2000) + content[8000:],
        lambda _content: a_foreign_database(),
    ],
)
def test_a_bad_file_is_never_restored(home: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "b.db"
    with closing(open_connection(home / "pattern.db")) as connection:
        backup.hot_backup(connection, file)
    file.write_bytes(spoil(file.read_bytes()))
    before = (home / "pattern.db").read_bytes()
    with pytest.raises(BackupInvalid):
        backup.verify(file)
    with pytest.raises(BackupInvalid):
        backup.restore(file, home / "pattern.db")
    assert (home / "pattern.db").read_bytes() == before
    assert [path.name for path in home.iterdir()] == ["pattern.db"]


class Spoiling(WatchedDisk):
    """A disk for everything, on which a file of a folder has lost a part when it is opened again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(is_default=True)
        self._folder = folder

    def before(self, call: Call) -> None:
        path = Path(call.path)
        if call.op is Op.OPEN and path.parent == self._folder and path.exists() and path.stat().st_size > 8000:
            with path.open("r+b") as file:
                file.seek(6000)
                file.write(bytes(2000))


def test_a_copy_that_the_disk_spoils_is_found_before_anything_is_touched(
    home: Path, connection: Connection, tmp_path: Path
) -> None:
    backup.hot_backup(connection, tmp_path / "b.db")
    connection.close()
    before = (home / "pattern.db").read_bytes()
    disk = Spoiling(home)
    with pytest.raises(BackupInvalid):
        backup.restore(tmp_path / "b.db", home / "pattern.db")
    disk.unregister()
    assert (home / "pattern.db").read_bytes() == before
    assert [path.name for path in home.iterdir()] == ["pattern.db"]


def test_restore_brings_the_copy_back_and_keeps_what_it_replaces(home: Path, tmp_path: Path) -> None:
    connection = open_connection(home / "pattern.db")
    backup.hot_backup(connection, tmp_path / "b.db")
    digest = backup.content_digest(connection)
    say(connection, range(300, 310))
    log = (home / "pattern.db-wal").read_bytes()
    main = (home / "pattern.db").read_bytes()
    connection.close()
    (home / "pattern.db").write_bytes(main)  # as a killed process leaves it: the newest rows are only in the log
    (home / "pattern.db-wal").write_bytes(log)
    report = backup.restore(tmp_path / "b.db", home / "pattern.db")
    assert report.rows["messages"] == 300
    with closing(open_connection(home / "pattern.db")) as restored:
        assert backup.content_digest(restored) == digest
        assert fetch_all(restored, "PRAGMA journal_mode") == [("wal",)]
        migrations_of("constellation").check(restored)
    with closing(open_connection(home / "pattern.db.replaced")) as replaced:
        assert fetch_all(replaced, "SELECT count(*) FROM messages") == [(310,)]


def test_restore_into_an_empty_folder_and_again(connection: Connection, tmp_path: Path) -> None:
    backup.hot_backup(connection, tmp_path / "b.db")
    for _ in range(2):
        assert backup.restore(tmp_path / "b.db", tmp_path / "new" / "pattern.db").rows["messages"] == 300
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["pattern.db", "pattern.db.replaced"]


def test_what_was_replaced_stays_when_a_restore_that_was_killed_is_made_again(home: Path, tmp_path: Path) -> None:
    file = home / "pattern.db"
    with closing(open_connection(file)) as connection:
        backup.hot_backup(connection, tmp_path / "b.db")
        say(connection, range(300, 310))
        log, main = (home / "pattern.db-wal").read_bytes(), file.read_bytes()
    file.unlink()
    # Killed between the renames of the database and of its log.
    backup.replaced(file).write_bytes(main)
    (home / "pattern.db-wal").write_bytes(log)
    assert backup.restore(tmp_path / "b.db", file).rows["messages"] == 300
    with closing(open_connection(backup.replaced(file))) as replaced:
        assert fetch_all(replaced, "SELECT count(*) FROM messages") == [(310,)]


def test_rows_that_a_copy_does_not_have_are_counted(home: Path, connection: Connection, tmp_path: Path) -> None:
    file, copy = home / "pattern.db", tmp_path / "b.db"
    backup.hot_backup(connection, copy)
    assert backup.rows_since(file, copy) == {}
    say(connection, range(300, 310))
    agents.create(connection, make_agent("ben"))
    connection.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO later VALUES (1)")
    connection.execute("DELETE FROM messages WHERE position = printf('%019d', 7)")
    assert backup.rows_since(file, copy) == {"agents": 1, "messages": 10}
    assert backup.rows_since(copy, copy) == {}


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(RowNotFound):
        backup.verify(tmp_path / "none.db")
    with pytest.raises(RowNotFound):
        backup.restore(tmp_path / "none.db", tmp_path / "pattern.db")
    assert list(tmp_path.iterdir()) == []


def test_the_digest_is_of_the_content_and_not_of_its_place(connection: Connection) -> None:
    before = backup.content_digest(connection)
    connection.execute("INSERT INTO message_fts(message_fts) VALUES ('optimize')")
    connection.execute("VACUUM").fetchall()
    assert backup.content_digest(connection) == before
    connection.execute("UPDATE messages SET content = 'x' WHERE position = printf('%019d', 7)")
    assert backup.content_digest(connection) != before


def test_broken_references_are_found(connection: Connection, tmp_path: Path) -> None:
    connection.execute("PRAGMA foreign_keys = 0").fetchall()
    connection.execute("DELETE FROM agents")
    assert "messages" in backup.check_integrity(connection)[0]
    connection.execute("VACUUM INTO ?", (str(tmp_path / "b.db"),)).fetchall()
    with pytest.raises(BackupInvalid, match="refers to a missing row"):
        backup.verify(tmp_path / "b.db")


def test_a_global_database_can_be_copied_too(global_db: Connection, tmp_path: Path) -> None:
    report = backup.hot_backup(global_db, tmp_path / "g.db")
    assert (report.constellation_id, report.rows["users"]) == (None, 2)
    assert report.rows == backup.row_counts(global_db)


@pytest.mark.parametrize(("trouble", "error"), [(Trouble.FULL, BackupFailed), (Trouble.IO, StorageFailed)])
def test_a_failing_disk_leaves_no_half_copy(
    connection: Connection, tmp_path: Path, trouble: Trouble, error: type[Exception]
) -> None:
    disk = FaultyDisk(is_default=True)
    disk.within(tmp_path / "out")
    disk.fail(Op.WRITE, nth=5, trouble=trouble)
    with pytest.raises(error):
        backup.hot_backup(connection, tmp_path / "out" / "b.db")
    assert disk.failed[Op.WRITE] == 1
    disk.unregister()
    assert list((tmp_path / "out").iterdir()) == []
    assert fetch_all(connection, "SELECT count(*) FROM messages") == [(300,)]
    assert not connection.in_transaction
