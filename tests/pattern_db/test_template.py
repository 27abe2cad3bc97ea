from __future__ import annotations

from pathlib import Path

import pytest

from pattern_db import template
from pattern_db.connection import fetch_all, open_connection
from pattern_db.errors import Conflict
from pattern_db.migrate import migrations_of


def schema(path: Path) -> list[tuple[object, ...]]:
    connection = open_connection(path)
    rows = fetch_all(connection, "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name")
    connection.close()
    return rows


def test_a_copy_is_what_the_migrations_make(tmp_path: Path, now: str) -> None:
    migrations = migrations_of("global")
    template.create(tmp_path / "copy.db", migrations, now=now)
    connection = open_connection(tmp_path / "run.db", create=True)
    migrations.apply(connection, now=now)
    ledger = fetch_all(connection, "SELECT * FROM schema_migrations")
    connection.close()
    assert schema(tmp_path / "copy.db") == schema(tmp_path / "run.db")
    connection = open_connection(tmp_path / "copy.db")
    assert fetch_all(connection, "SELECT * FROM schema_migrations") == ledger
    connection.close()


def test_each_copy_has_its_own_time(tmp_path: Path) -> None:
    migrations = migrations_of("constellation")
    for name, now in (("a", "2026-11-21T22:24:40.123Z"), ("b", "2027-01-01T00:00:00.000Z")):
        template.create(tmp_path / name, migrations, now=now)
        connection = open_connection(tmp_path / name)
        assert fetch_all(connection, "SELECT DISTINCT applied_at FROM schema_migrations") == [(now,)]
        assert fetch_all(connection, "PRAGMA integrity_check") == [("ok",)]
        connection.close()


def test_a_copy_is_in_wal_mode_and_alone(tmp_path: Path, now: str) -> None:
    path = tmp_path / "deep" / "down" / "pattern.db"
    template.create(path, migrations_of("constellation"), now=now)
    before = path.read_bytes()
    assert list(path.parent.iterdir()) == [path]
    connection = open_connection(path)
    assert fetch_all(connection, "PRAGMA journal_mode") == [("wal",)]
    migrations_of("constellation").check(connection)
    fetch_all(connection, "SELECT count(*) FROM messages")
    connection.close()
    assert path.read_bytes() == before  # opening changed nothing: no fsync for a constellation that is only looked at


def test_an_existing_file_is_left_alone(tmp_path: Path, now: str) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"mine")
    with pytest.raises(Conflict):
        template.create(path, migrations_of("global"), now=now)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_no_vector_tables_before_there_are_vectors(now: str) -> None:
    connection = template.in_memory(migrations_of("constellation"), now=now)
    assert fetch_all(connection, "SELECT name FROM sqlite_schema WHERE sql LIKE '%USING vec0%'") == []
    connection.close()


def test_the_time_must_be_one_that_columns_hold() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        template.in_memory(migrations_of("global"), now="yesterday")
