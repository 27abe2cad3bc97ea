"""Numbered SQL files, applied once, in order, in one transaction, and recorded with their SHA-256.

Opening never migrates: `check` refuses a file of another version, and `pattern db migrate` changes it after a
verified backup. A failed migration leaves the file unchanged, byte by byte.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import apsw

from pattern_db.backup import content_digest, hot_backup, verify
from pattern_db.connection import Connection, fetch_all, open_immutable, opened_at, transaction
from pattern_db.errors import (
    BackupInvalid,
    Corrupt,
    DatabaseError,
    MigrationEdited,
    MigrationFailed,
    SchemaOutdated,
    SchemaTooNew,
    StorageFailed,
    translate,
    translated,
)
from pattern_db.files import shipped
from pattern_db.tables import embedding_indexes

Kind = Literal["constellation", "global"]
FILE_S = 0.2  # to open, copy and verify even an empty file; both measured on a busy machine
BYTES_PER_S = 4_000_000  # to copy a file, compare the copy and write new tables
_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_FORBIDDEN = frozenset({apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH})
_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version          INTEGER PRIMARY KEY,
    name             TEXT NOT NULL,
    sha256           TEXT NOT NULL,
    applied_at       TEXT NOT NULL,
    app_version      TEXT NOT NULL
) STRICT
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file: its number, its name without the number, its text and the SHA-256 of that (hex)."""

    version: int
    name: str
    sql: str
    sha256: str

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.version:04d}_{self.name}.sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of `migrate`: old and new version, applied files; `backup` is None if nothing was pending."""

    before: int
    after: int
    applied: tuple[str, ...]
    backup: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What migrating some files takes: bytes on the disk, of which the copies keep `size`, and seconds."""

    files: int
    size: int
    needed: int
    seconds: float

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Estimate:
        """Return the estimate for files of these sizes, in bytes."""
        size = sum(sizes)
        # At most, all of one file at a time is written again, first into its log.
        needed = size + 2 * max(sizes, default=0)
        return cls(files=len(sizes), size=size, needed=needed, seconds=len(sizes) * FILE_S + size / BYTES_PER_S)


class Migrations:
    """The migrations of one folder.

    Raises:
        ValueError: a file is misnamed, or the numbers do not run from 0001 without gaps.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all = tuple(_read(path) for path in sorted(folder.glob("*.sql")))
        for expected, migration in enumerate(self.all, start=1):
            if migration.version != expected:
                raise ValueError(f"{migration.file} in {folder} should be number {expected:04d}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Migrations) and self.all == other.all

    def __hash__(self) -> int:
        return hash(self.all)

    @property
    def newest(self) -> int:
        """The version that a database has after all migrations."""
        return len(self.all)

    def up_to(self, version: int) -> Migrations:
        """Return the first migrations, for a file that is as an earlier release made it."""
        earlier = copy(self)
        earlier.all = self.all[:version]
        return earlier

    def check(self, connection: Connection) -> None:
        """Check that the database is exactly at the newest version.

        Raises:
            Corrupt: as `require_ledger`.
            SchemaOutdated: migrations are pending; the message names `pattern db migrate`.
            SchemaTooNew: the database comes from a newer server.
            MigrationEdited: an applied file was changed afterwards.
        """
        require_ledger(connection)
        pending = self.plan(connection)
        if pending:
            found = pending[0].version - 1
            raise SchemaOutdated(
                f"{_name_of(connection)} is at schema version {found}, this server needs {self.newest}:"
                " run `pattern db migrate` (it makes a verified backup first)"
            )

    def plan(self, connection: Connection) -> tuple[Migration, ...]:
        """Return the migrations that are pending, in order; empty if there are none.

        Raises:
            SchemaTooNew: the database comes from a newer server.
            MigrationEdited: an applied file was changed afterwards.
        """
        applied = ledger(connection)
        found = max(applied, default=0)
        if found > self.newest:
            raise SchemaTooNew(
                f"{_name_of(connection)} is at schema version {found}, this server knows {self.newest}:"
                " upgrade the server, or restore a backup made before the upgrade"
            )
        for migration in self.all[:found]:
            if applied.get(migration.version) != migration.sha256:
                raise MigrationEdited(
                    f"{migration.file} was edited after it was applied to {_name_of(connection)}:"
                    " restore the file as it was released and put the change into a new migration"
                )
        return self.all[found:]

    def apply(self, connection: Connection, *, now: str) -> tuple[Migration, ...]:
        """Run the pending migrations in one transaction and return them. No backup: for new files.

        Raises:
            MigrationFailed: a file raised; nothing was applied. StorageFailed: the disk is full or failed; nothing was
            applied.
            DatabaseError: as `plan`.
        """
        pending = self.plan(connection)
        current = ""
        try:
            with transaction(connection):
                connection.execute(_LEDGER)
                for migration in pending:
                    current = migration.file
                    _run(connection, migration, now)
                broken = fetch_all(connection, "PRAGMA foreign_key_check")
                if broken:
                    raise MigrationFailed(f"{current} leaves rows of {broken[0][0]} that refer to missing rows")
        except (apsw.Error, OSError) as error:
            known = translate(error)
            if isinstance(known, StorageFailed) or not current:
                raise known or error from error
            raise MigrationFailed(f"{current} failed and was rolled back: {error}") from error
        return pending

    def migrate(self, path: Path, *, backup_to: Path | None, now: str, earlier: Path | None = None) -> Outcome:
        """Migrate the file at `path` to the newest version, after a verified copy to the file `backup_to`.

        The caller owns the file: it is open nowhere else. Without `backup_to` it must be a copy itself. A copy that an
        `earlier` run made, which did not end, is used instead if it is still equal. `now` is a time as stored.

        Raises:
            MigrationFailed: the file at `path` is unchanged, byte by byte; the error names the backup.
            BackupInvalid: the copy is not equal to the file; nothing was changed.
            DatabaseError: as `plan`, or the disk failed.
        """
        with opened_at(path) as connection:
            pending = self.plan(connection)
            before = self.newest - len(pending)
            if not pending:
                return Outcome(before=before, after=before, applied=(), backup=None)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            kept = ""
            if backup_to is not None:
                backup_to = _keep(connection, backup_to, earlier)
                kept = f", and a copy of it is {backup_to}"
            try:
                self.apply(connection, now=now)
            except MigrationFailed as error:
                raise MigrationFailed(f"{error}; {path} is unchanged{kept}") from error
            _ensure_vectors(connection)
        applied = tuple(migration.file for migration in pending)
        return Outcome(before=before, after=self.newest, applied=applied, backup=backup_to)


def ledger(connection: Connection) -> dict[int, str]:
    """Return version to SHA-256 of the applied files; empty for a database without migrations."""
    exists = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'").fetchone()
    if exists is None:
        return {}
    return dict(fetch_all(connection, "SELECT version, sha256 FROM schema_migrations"))


def require_ledger(connection: Connection) -> None:
    """Refuse a file without applied migrations: migrating it would turn it into an empty database.

    Raises:
        Corrupt: none was ever applied.
    """
    if not ledger(connection):
        raise Corrupt(f"{_name_of(connection)} is empty or not a Pattern database; restore a backup of it")


@lru_cache(maxsize=2)
def migrations_of(kind: Kind) -> Migrations:
    """Return the migrations of this release, read once.

    Raises:
        FileNotFoundError: they are missing; the installation is incomplete.
    """
    return Migrations(shipped(f"migrations/{kind}"))


def _read(path: Path) -> Migration:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not named like 0001_agents.sql")
    # Line ends are not content: a checkout on another system must not look edited.
    sql = path.read_text("utf-8").replace("\r\n", "\n")
    sha256 = hashlib.sha256(sql.encode()).hexdigest()
    return Migration(version=int(match[1]), name=match[2], sql=sql, sha256=sha256)


def _run(connection: Connection, migration: Migration, now: str) -> None:
    # A file that ended our transaction would leave a partial migration.
    connection.authorizer = _refuse_transactions
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)  # a file may edit the schema's text
    try:
        for _row in connection.execute(migration.sql):
            pass
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.authorizer = None
    connection.execute(
        "INSERT INTO schema_migrations (version, name, sha256, applied_at, app_version) VALUES (?, ?, ?, ?, ?)",
        (migration.version, migration.name, migration.sha256, now, _app_version()),
    )
    connection.execute(f"PRAGMA user_version = {migration.version}").fetchall()


def _refuse_transactions(
    operation: int, _first: str | None, _second: str | None, _database: str | None, _trigger: str | None
) -> int:
    return apsw.SQLITE_DENY if operation in _FORBIDDEN else apsw.SQLITE_OK


def _keep(connection: Connection, target: Path, earlier: Path | None) -> Path:
    """Return a verified copy of the database: the earlier one if nothing was written since, else a new one."""
    digest = content_digest(connection)
    with suppress(DatabaseError):  # what is damaged, or gone, is of no use
        if earlier is not None:
            verify(earlier)
            if _digest_of(earlier) == digest:
                return earlier
    hot_backup(connection, target)
    if _digest_of(target) != digest:
        raise BackupInvalid(f"{target} is not equal to the database; nothing was migrated")
    return target


def _digest_of(copy: Path) -> str:
    with closing(open_immutable(copy)) as connection:
        return content_digest(connection)


def _ensure_vectors(connection: Connection) -> None:
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'embedding_indexes'").fetchone() is not None:
        with translated(), transaction(connection):
            embedding_indexes.ensure_tables(connection)


def _name_of(connection: Connection) -> str:
    return connection.filename or "the database in memory"


def _app_version() -> str:
    try:
        return importlib.metadata.version("pattern-server")
    except importlib.metadata.PackageNotFoundError:
        return "unpackaged"
