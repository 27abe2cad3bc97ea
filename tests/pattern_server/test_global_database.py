"""global.db: made, checked, and opened anew after trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

from pattern_db.connection import Connection
from pattern_db.database import DatabaseThreads
from pattern_db.errors import Corrupt, DiskFull
from pattern_db.tables import users
from pattern_server.global_database import open_global

NOW = "2026-11-21T00:00:00.000Z"


def fail(_connection: Connection) -> None:
    raise DiskFull("no space is left")


async def test_it_is_made_once_and_keeps_what_is_written(tmp_path: Path) -> None:
    with DatabaseThreads() as threads:
        for expected in (0, 1):
            async with open_global(tmp_path / "global.db", threads, now=NOW) as database:
                rows = await database.read(lambda connection: connection.execute("SELECT id FROM users").fetchall())
                assert len(rows) == expected
                if not rows:
                    await database.write(
                        lambda connection: connection.execute(
                            "INSERT INTO users (id, username, created_at, updated_at) VALUES ('u', 'ann', ?, ?)",
                            (NOW, NOW),
                        )
                    )
    assert [path.name for path in tmp_path.iterdir()] == ["global.db"]


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
async def test_a_file_that_is_no_database_of_ours_is_not_migrated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "global.db"
    path.write_bytes(content)
    with DatabaseThreads() as threads, pytest.raises(Corrupt, match="restore a backup") as caught:
        async with open_global(path, threads, now=NOW):
            pass
    assert "migrate" not in caught.value.message
    assert path.read_bytes() == content or not content, "SQLite gives an empty file its header"


async def test_an_error_is_raised_and_the_next_call_works(tmp_path: Path) -> None:
    with DatabaseThreads() as threads:
        async with open_global(tmp_path / "global.db", threads, now=NOW) as database:
            for run in (database.write, database.read):
                with pytest.raises(DiskFull):
                    await run(fail)
                assert await database.read(users.list_all) == []
