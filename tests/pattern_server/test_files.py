"""The files of constellations: under a lock, at the right version, gone when removed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import trio

from pattern_core.runtime import Runtime
from pattern_db import backup
from pattern_db.connection import open_connection
from pattern_db.database import DatabaseThreads
from pattern_db.errors import BackupInvalid, MigrationEdited, OwnedElsewhere, RowConflict, RowNotFound
from pattern_db.files import DataDirLock
from pattern_db.tables import meta
from pattern_server.files import UNFINISHED_NAME, ConstellationFiles, pause
from tests.support import START


@pytest.fixture
def files(tmp_path: Path) -> ConstellationFiles:
    return ConstellationFiles(tmp_path, Runtime())


async def test_a_file_is_made_opened_and_counted(files: ConstellationFiles, tmp_path: Path) -> None:
    await files.create("con_1")
    assert tmp_path / files.relative_path("con_1") == files.folder("con_1") / "pattern.db"
    with DatabaseThreads() as threads:
        for epoch in (1, 2):
            async with files.open("con_1", threads) as database:
                assert await database.read(meta.get, meta.EPOCH) == str(epoch)
                assert await database.read(meta.get, meta.CONSTELLATION_ID) == "con_1"
                with pytest.raises(OwnedElsewhere):
                    async with files.open("con_1", threads):
                        pass
    with DataDirLock.acquire(files.folder("con_1")):
        pass  # the lock is free again


async def test_missing_and_edited_files_are_refused(files: ConstellationFiles) -> None:
    with DatabaseThreads() as threads:
        with pytest.raises(RowNotFound, match="missing"):
            async with files.open("con_1", threads):
                pass
        assert not files.folder("con_1").exists()
        await files.create("con_1")
        connection = open_connection(files.folder("con_1") / "pattern.db")
        connection.execute("UPDATE schema_migrations SET sha256 = 'x' WHERE version = 1")
        connection.close()
        with pytest.raises(MigrationEdited):
            async with files.open("con_1", threads):
                pass
    with DataDirLock.acquire(files.folder("con_1")):
        pass


async def test_a_copy_gets_a_new_id(files: ConstellationFiles, tmp_path: Path) -> None:
    await files.create("con_1")
    copy = tmp_path / "copy.db"
    with DatabaseThreads() as threads:
        async with files.open("con_1", threads) as database:
            await database.read_aside(backup.hot_backup, copy)
        await files.adopt(copy, "con_2")
        async with files.open("con_2", threads) as database:
            assert await database.read(meta.get, meta.CONSTELLATION_ID) == "con_2"
        with pytest.raises(RowConflict):  # a file that was put into the wrong folder by hand
            (files.folder("con_1") / "pattern.db").write_bytes(copy.read_bytes())
            (files.folder("con_1")).rename(files.folder("con_3"))
            async with files.open("con_3", threads):
                pass


async def test_a_copy_starts_nothing_by_itself_until_a_person_says_so(files: ConstellationFiles) -> None:
    await files.create("con_1")
    with closing(open_connection(files.folder("con_1") / "pattern.db")) as connection:
        connection.execute(
            "INSERT INTO agents (id, name, model_provider, model_name, system_prompt, config, enabled_tools, status,"
            " created_at, updated_at) VALUES ('a', 'a', 'p', 'm', '', '{}', '[]', 'active', ?1, ?1)",
            (START,),
        )
        connection.execute(
            "INSERT INTO schedule (id, name, agent_id, message, status, plan, seen, created_at, updated_at)"
            " VALUES ('s', 's', 'a', 'Hello', 'active', '{}', '{}', ?1, ?1)",
            (START,),
        )
        connection.execute("INSERT INTO timer VALUES ('schedule', 's', ?1, NULL)", (START,))
        pause(connection)
        assert connection.execute("SELECT status FROM schedule").get == "paused"
        assert connection.execute("SELECT count(*) FROM timer").get == 0


async def test_a_bad_copy_leaves_nothing(files: ConstellationFiles, tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"x" * 10_000)
    with pytest.raises(BackupInvalid):
        await files.adopt(bad, "con_2")
    assert not files.folder("con_2").exists()


async def test_removing_leaves_nothing(files: ConstellationFiles) -> None:
    await files.create("con_1")
    await files.remove("con_1")
    assert list(files.folder("con_1").parent.iterdir()) == []
    await files.remove("con_1")


async def test_what_was_never_kept_is_known_after_a_crash(files: ConstellationFiles) -> None:
    assert files.interrupted() == []
    for name in ("con_1", "con_2"):
        await files.create(name)
    files.keep("con_1")
    assert files.interrupted() == ["con_2"]
    files.folder("con_1").rename(files.folder("con_1").with_name(".removed-con_1"))  # killed while it was deleted
    assert sorted(files.interrupted()) == ["con_1", "con_2"]
    for name in ("con_1", "con_2"):
        await files.remove(name)
    assert (files.interrupted(), list(files.folder("con_1").parent.iterdir())) == ([], [])


async def test_who_has_work_left_is_known(files: ConstellationFiles) -> None:
    for name in ("con_1", "con_2", "con_3"):
        await files.create(name)
    with DatabaseThreads() as threads:
        async with files.open("con_1", threads):
            assert await files.unfinished(["con_1", "con_2", "con_3"]) == ["con_1"]  # as if this process died now
        assert await files.unfinished(["con_1"]) == []
        (files.folder("con_2") / UNFINISHED_NAME).touch()
        assert await files.unfinished(["con_1", "con_2", "con_none"]) == ["con_2"]
        async with files.open("con_2", threads):
            pass
        assert await files.unfinished(["con_2"]) == []


async def test_a_cancelled_use_closes_the_file(files: ConstellationFiles) -> None:
    await files.create("con_1")
    with DatabaseThreads() as threads:
        with trio.move_on_after(0.05):
            async with files.open("con_1", threads):
                await trio.sleep_forever()
        async with files.open("con_1", threads):
            pass
