"""Hot copies of a database: made while it is in use, verified before they are published, restored without losing the
old file.

A copy is one self-contained file in rollback-journal mode: it has no files next to it, and can be opened read-only.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from pattern_db import files
from pattern_db.connection import Connection, fetch_all, open_connection, open_immutable, opened_at
from pattern_db.errors import BackupFailed, BackupInvalid, Corrupt, DatabaseError, IOFailed, RowConflict, translated

DATABASE_NAME = "pattern.db"
REPLACED_SUFFIX = ".replaced"
STEP_PAGES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of a verified file. `rows` counts the ordinary tables by name; `bytes` is the file's size.

    `constellation_id` is None for a global database.
    """

    path: Path
    version: int
    constellation_id: str | None
    rows: dict[str, int]
    bytes: int


def hot_backup(connection: Connection, target: Path) -> Report:
    """Copy the database of `connection` to the file `target`, verified; other connections may write at the same time.

    The copy is the state at the call: all of it is read in one transaction, so writers neither wait nor make the copy
    start over. `target` appears only when it is complete, checked and on the disk.

    Raises:
        RowConflict: `target` exists.
        BackupInvalid: the copy does not pass its checks; the original may be damaged.
        BackupFailed: there is no room for the copy.
        StorageFailed: the disk failed.
    """
    if target.exists():
        raise RowConflict(f"{target} already exists; choose another name")
    with translated(), files.written(target) as path:
        _copy(connection, path)
        report = verify(path)
    return replace(report, path=target)


def verify(path: Path) -> Report:
    """Read the whole file and return its content.

    Raises:
        RowNotFound: there is no such file.
        BackupInvalid: it is damaged, breaks its references, or is not a database of this program.
    """
    try:
        connection = open_immutable(path)
    except (Corrupt, IOFailed) as error:
        raise BackupInvalid(f"{path} cannot be read as a database ({error})") from error
    try:
        problems = check_integrity(connection)
        if problems:
            raise BackupInvalid(f"{path} is damaged: {problems[0]}")
        return _report(connection, path)
    except apsw.Error as error:
        raise BackupInvalid(f"{path} is damaged: {error}") from error
    finally:
        connection.close()


def restore(file: Path, target: Path) -> Report:
    """Put the copy `file` in the place of the database `target`; it is verified before anything there is changed.

    The caller owns the folder (see `files`) and the database is open nowhere. The replaced file is kept next to it
    with the suffix `.replaced`. After a crash there is the old one or the new one; if the old one was damaged there may
    be none, rather than a mixed one: restore again.

    Raises:
        RowNotFound: there is no such file.
        BackupInvalid: `file` is not a sound database of this program.
        StorageFailed: the disk is full or failed.
    """
    verify(file)
    with translated(), files.written(target) as path:
        source = open_immutable(file)
        try:
            _copy(source, path)
        finally:
            source.close()
        report = verify(path)
        _set_aside(target)
    return replace(report, path=target)


def cut_loose(path: Path) -> None:
    """Delete from a private copy what would otherwise happen twice, here and in the original: deliveries, and calls
    that a person agreed to.

    Raises:
        StorageFailed: the disk is full or failed.
    """
    with opened_at(path) as connection, connection:
        for table in ("webhook", "outbox", "consent_grant", "source_person"):
            connection.execute(f"DELETE FROM {table}")


def check_integrity(connection: Connection) -> list[str]:
    """Return the defects that SQLite finds in the file and its references; empty if there are none."""
    found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    problems = [] if found == ["ok"] else found
    for table, row, parent, _number in connection.execute("PRAGMA foreign_key_check").fetchall():
        problems.append(f"row {row} of {table} refers to a missing row of {parent}")
    return problems


def ordinary_tables(connection: Connection, schema: str = "main") -> list[str]:
    """Return names of the ordinary tables: neither derived for search nor SQLite's own."""
    listed = fetch_all(connection, f"PRAGMA {schema}.table_list")
    derived = tuple(f"{name}_" for _schema, name, kind, *_rest in listed if kind == "virtual")
    return sorted(
        name for _schema, name, kind, *_rest in listed if kind == "table" and not name.startswith(("sqlite_", *derived))
    )


def row_counts(connection: Connection) -> dict[str, int]:
    """Return how many rows each of the ordinary tables has."""
    return {table: connection.execute(f"SELECT count(*) FROM {table}").get for table in ordinary_tables(connection)}


def content_digest(connection: Connection) -> str:
    """SHA-256, in hex, over every row of the ordinary tables: equal for two files with the same content."""
    digest = hashlib.sha256()
    for table in ordinary_tables(connection):
        digest.update(f"\n{table}\n".encode())
        keys = fetch_all(connection, "SELECT name FROM pragma_table_info(?) WHERE pk > 0", (table,))
        order = ", ".join(f'"{key}"' for (key,) in keys) or "rowid"
        for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}"):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def rows_since(file: Path, copy: Path) -> dict[str, int]:
    """Count the rows of a database that an earlier copy of it does not have, by table; only tables that have some.

    A row is found by its key. Tables that the copy does not have are left out: a migration made them.

    Raises:
        DatabaseError: one of the files cannot be read.
    """
    counts = {}
    with opened_at(file, readonly=True) as connection:
        connection.execute("ATTACH ? AS kept", (str(copy),))
        for table in {*ordinary_tables(connection)} & {*ordinary_tables(connection, "kept")} - {"schema_migrations"}:
            columns = "SELECT name FROM pragma_table_info(?, ?) WHERE pk > ?"
            keys = {str(key) for (key,) in fetch_all(connection, columns, (table, "kept", 0))}
            if keys <= {name for (name,) in fetch_all(connection, columns, (table, "main", -1))}:
                same = " AND ".join(f'kept.{table}."{key}" IS main.{table}."{key}"' for key in keys)
                missing = (
                    f"SELECT count(*) FROM main.{table} WHERE NOT EXISTS (SELECT 1 FROM kept.{table} WHERE {same})"
                )
                counts[table] = int(connection.execute(missing).get)
    return {table: count for table, count in sorted(counts.items()) if count}


def _copy(source: Connection, path: Path) -> None:
    target = open_connection(path, create=True)
    try:
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
        with source, path.open("rb") as written:
            fetch_all(source, "SELECT 1 FROM sqlite_schema LIMIT 1")  # begins to read: no step sees a later commit
            with target.backup("main", source, "main") as copy:
                while not copy.done:
                    copy.step(STEP_PAGES)
                    os.fsync(written.fileno())  # little at a time: a commit of others waits for what is being synced
        # The copied header says WAL; a copy must be self-contained.
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
    except apsw.FullError as error:  # only the copy is written to
        raise BackupFailed(
            f"there is no space for the copy at {path.parent}; free some, or choose another folder"
        ) from error
    finally:
        target.close()


def _report(connection: Connection, path: Path) -> Report:
    tables = ordinary_tables(connection)
    if "schema_migrations" not in tables:
        raise BackupInvalid(f"{path} is not a database of this program: it has no schema_migrations table")
    version = fetch_all(connection, "PRAGMA user_version")[0][0]
    constellation = None
    if "meta" in tables:
        named = connection.execute("SELECT value FROM meta WHERE key = 'constellation_id'").fetchone()
        constellation = None if named is None else str(named[0])
    return Report(
        path=path,
        version=version,
        constellation_id=constellation,
        rows=row_counts(connection),
        bytes=path.stat().st_size,
    )


def _set_aside(target: Path) -> None:
    """Give the database a second name, under which it stays when another takes its place.

    If that is not possible, it is renamed together with its log.
    """
    aside = replaced(target)
    log = _beside(target, "-wal")
    if target.exists():
        with suppress(DatabaseError), opened_at(target):
            pass  # closing it writes the log into the file; a damaged one keeps it
        _beside(aside, "-wal").unlink(missing_ok=True)
        aside.unlink(missing_ok=True)
        with suppress(OSError):  # of file systems without second names
            if not log.exists():
                aside.hardlink_to(target)
        if not aside.exists():
            target.replace(aside)
    if log.exists():  # alone, if a crash came in between
        log.replace(_beside(aside, "-wal"))
    for path in (target, aside):
        _beside(path, "-shm").unlink(missing_ok=True)
    files.sync(target.parent)


def replaced(target: Path) -> Path:
    """Return where `restore` keeps the file that it replaced at `target`."""
    return _beside(target, REPLACED_SUFFIX)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
