"""The errors of storage, as one tree with stable codes.

DatabaseError
├── RowNotFound         no such row or file
├── RowConflict         a unique name, a reference or a compare-and-swap was violated
├── Busy                another connection holds the lock for too long
├── SchemaOutdated      the file needs `pattern db migrate`
├── SchemaTooNew        the file was written by a newer server
├── MigrationEdited     a migration differs from the applied one
├── MigrationFailed     a migration was rolled back
├── OwnedElsewhere      another process owns the folder
├── BackupInvalid       a copy is damaged or incomplete
├── BackupFailed        a copy could not be written to its target
└── StorageFailed       the disk or the file failed; open it again
    ├── DiskFull        nothing was stored; stored data can be read, and later writes may succeed
    ├── IOFailed
    └── Corrupt

Only `translate` knows SQLite's own errors.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import apsw


class DatabaseError(Exception):
    """Base of all errors of storage; the message says what to do next, `code` is stable."""

    code: ClassVar[str] = "database"
    remedy: ClassVar[str] = ""  # as of `PatternError`

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RowNotFound(DatabaseError):
    """There is no such row or file."""

    code = "not_found"


class RowConflict(DatabaseError):
    """The name is in use, a referenced row is missing, or another writer changed the row first."""

    code = "conflict"


class Busy(DatabaseError):
    """Another connection kept the file locked for longer than the busy timeout; nothing was stored. Try again."""

    code = "busy"
    remedy = "Retry. If it lasts, stop other programs that have the database file open."


class SchemaOutdated(DatabaseError):
    """The file is at an older version than this server; only `pattern db migrate` changes that."""

    code = "schema_outdated"
    remedy = "Stop the server, and run `pattern db migrate`; it makes a verified copy first."


class SchemaTooNew(DatabaseError):
    """The file is at a newer version than this server; an older server would damage it."""

    code = "schema_too_new"
    remedy = "Install the newer version of Pattern again, or restore a backup of this version."


class MigrationEdited(DatabaseError):
    """A migration file is not the one that was applied to this database, so its real schema is unknown."""

    code = "migration_edited"
    remedy = "Install Pattern again; its migration files were changed."


class MigrationFailed(DatabaseError):
    """A migration failed and was rolled back completely; the message names the copy made before it, if any."""

    code = "migration_failed"
    remedy = "The database is as before; read the message, and restore the named copy if you need to."


class OwnedElsewhere(DatabaseError):
    """Another process owns the folder: `pid` and, if it serves, `url` (either may be unknown)."""

    code = "owned_elsewhere"
    remedy = "Stop the process that the message names, or use its server."

    def __init__(self, message: str, *, pid: int | None = None, url: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.url = url


class BackupInvalid(DatabaseError):
    """A copy is damaged, incomplete or not a database of this program; it was not used."""

    code = "backup_invalid"
    remedy = "Use another backup; `pattern db check` shows whether the original is sound."


class BackupFailed(DatabaseError):
    """There is no space or no permission to write the copy; the original is intact."""

    code = "backup_failed"
    remedy = "Free some space, or choose a folder that you may write."


class StorageFailed(DatabaseError):
    """The disk or the file failed, and the connection's state is unknown: close it and open the file again."""

    code = "storage_failed"
    remedy = "Check the disk and the system's log, then start the server again."


class DiskFull(StorageFailed):
    """There is no space left, or a quota is used up; nothing of the transaction was stored. The file stays open."""

    code = "disk_full"
    remedy = "Free some space; agents continue by themselves."


class IOFailed(StorageFailed):
    """The operating system refused to read, write or open the file."""

    code = "io_failed"
    remedy = "Check the disk, the mount and the file permissions."


class Corrupt(StorageFailed):
    """The file is damaged or is not a database."""

    code = "corrupt"
    remedy = "Restore a backup; `pattern db check` shows which files are damaged."


RAISED = (DatabaseError, apsw.Error, OSError)  # our errors, and those that `translate` may know
_UNIQUE = frozenset({apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY, apsw.SQLITE_CONSTRAINT_ROWID})
_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def translate(error: BaseException) -> DatabaseError | None:
    """Return our error for one of SQLite or the operating system; None if it is neither, or a bug in a statement.

    Violated CHECKs, NOT NULLs and column types are bugs of the caller, which checks its input first.
    """
    match error:
        case DatabaseError():
            return error
        case apsw.ConstraintError():
            return _constraint(error)
        case apsw.BusyError() | apsw.LockedError():
            return Busy(f"the database is locked by another connection ({error}); try again")
        case apsw.FullError():
            return DiskFull("no space is left on the disk; nothing was stored. Free some space and try again")
        case apsw.CorruptError() | apsw.NotADBError():
            return Corrupt(f"the database file is damaged or not a database ({error}); restore a backup")
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError():
            return IOFailed(
                f"the database file cannot be read or written ({error}); check the disk and the file permissions"
            )
        case OSError() if error.errno in _OUT_OF_SPACE:
            return DiskFull(f"no space is left on the disk ({error}); free some space and try again")
        case OSError() if error.errno is not None:
            return IOFailed(f"the file cannot be read or written ({error}); check the disk and the file permissions")
    return None


def _constraint(error: apsw.ConstraintError) -> RowConflict | None:
    code = error.extendedresult  # type: ignore[attr-defined]  # set by apsw, missing in its stub
    if code in _UNIQUE:
        return RowConflict(f"it already exists ({error}); choose another name or change the existing one")
    if code == apsw.SQLITE_CONSTRAINT_FOREIGNKEY:
        return RowConflict(
            "it refers to an object that does not exist, or another object still refers to it; create or delete "
            "that one first"
        )
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Within the block, translate errors of SQLite and the operating system to ours.

    Raises:
        DatabaseError: instead of the errors that `translate` knows; others pass unchanged.
    """
    try:
        yield
    except (apsw.Error, OSError) as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error
