"""Connections: opening one, and the statements that all tables have in common.

The settings follow measurements of many small files: 2 KiB pages halve an empty constellation, a small cache keeps
thousands of them in memory, and no memory map means that a failing disk is an error rather than a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import EnumMeta
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import apsw

from pattern_db.columns import from_json, to_json
from pattern_db.errors import RowNotFound, translated

Connection = apsw.Connection
Value: TypeAlias = str | int | float | bytes | None
Values: TypeAlias = Sequence[Value]

PAGE_BYTES = 2048
CACHE_KIB = 512
BUSY_TIMEOUT_MS = 5_000
CHECKPOINT_PAGES = 1_000
_ALONE = "exclusive"
JOURNAL_BYTES_MAX = 4 * 1024 * 1024


def open_connection(path: Path, *, readonly: bool = False, create: bool = False, vfs: str | None = None) -> Connection:
    """Open the database file at `path`; with `create`, an empty one if there is none.

    A `readonly` connection sees commits of others and refuses to write. It is opened as a normal one that is then set
    to refuse writes, because a reader of a WAL file must be able to create its shared-memory file. A full disk
    has no space for that: then the connection keeps it in memory, and no other one can be opened (`is_alone`).
    A log that a killed process left stays when it is closed: the next owner sees by it that work is unfinished.

    Raises:
        RowNotFound: there is no file at `path`.
        DatabaseError: it cannot be opened, is not a database, or is locked.
    """
    if not create and vfs is None and not path.is_file():
        raise RowNotFound(f"there is no database at {path}")
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    log = Path(f"{path}-wal")
    with translated():
        keeps_log = readonly and vfs is None and log.exists() and log.stat().st_size > 0
        try:
            opened = _prepared(apsw.Connection(str(path), flags=flags, vfs=vfs), readonly=readonly, in_file=True)
            opened.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(keeps_log))
            return opened
        except apsw.IOError as error:
            if getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_SHMSIZE:
                raise
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
        connection.execute(f"PRAGMA locking_mode = {_ALONE}").fetchall()
        return _prepared(connection, readonly=readonly, in_file=True)


@contextmanager
def opened_at(path: Path, *, readonly: bool = False, create: bool = False) -> Iterator[Connection]:
    """Yield a connection as `open_connection`, closed at the end of the block.

    Raises:
        DatabaseError: also for what SQLite raises in the block, and when closing it cannot write the log into the file.
    """
    with translated(), closing(open_connection(path, readonly=readonly, create=create)) as connection:
        yield connection


def is_alone(connection: Connection) -> bool:
    """Return whether the file was opened without the possibility of a second connection."""
    return bool(connection.execute("PRAGMA locking_mode").get == _ALONE)


def open_in_memory() -> Connection:
    """Return an empty database in memory with the same settings; see `template.in_memory` for one with the schema."""
    return _prepared(apsw.Connection(":memory:"), readonly=False, in_file=False)


def open_immutable(path: Path) -> Connection:
    """Open a file that is not being written (a backup) without locks and without leaving files next to it.

    Raises:
        RowNotFound: there is no file at `path`.
        DatabaseError: it cannot be opened or is not a database.
    """
    if not path.is_file():
        raise RowNotFound(f"there is no file at {path}")
    uri = f"{path.absolute().as_uri()}?immutable=1"
    with translated():
        connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        return _prepared(connection, readonly=True, in_file=False)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the block in one transaction, on a connection without a lane; requests of a lane already run in one.

    A full or failing disk makes SQLite roll back by itself. apsw's `with connection:` then reports a missing savepoint
    instead of the real error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def fetch_all(connection: Connection, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
    """Return all rows of one statement. The types of the columns depend on the statement, so they are Any."""
    return connection.execute(sql, values).fetchall()


def _prepared(connection: Connection, *, readonly: bool, in_file: bool) -> Connection:
    """Apply the settings; closes the connection if one is refused (the first read may find no database)."""
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        _load_vec(connection)
        # A misspelt column in double quotes is an error, not a string.
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        # Plans do not depend on bound values. Otherwise SQLite compiles a statement again whenever its values change,
        # if a partial index or statistics might give another plan.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # An untrusted file must not run functions from its schema, and statements must not damage shadow tables.
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        _pragma(connection, "trusted_schema", 0)
        _pragma(connection, "page_size", PAGE_BYTES)
        if in_file and not readonly:
            # locking_mode stays NORMAL: long reads use a second connection to the same file.
            _pragma(connection, "journal_mode", "WAL")
            _pragma(connection, "wal_autocheckpoint", CHECKPOINT_PAGES)
            _pragma(connection, "journal_size_limit", JOURNAL_BYTES_MAX)
        # FULL: what is acknowledged survives a power cut (NORMAL lost every acknowledged row in that test).
        _pragma(connection, "synchronous", "FULL")
        _pragma(connection, "cache_size", -CACHE_KIB)
        _pragma(connection, "mmap_size", 0)
        _pragma(connection, "temp_store", "MEMORY")
        _pragma(connection, "foreign_keys", 1)
        # So that a REPLACE would fire the delete triggers that keep the search tables right.
        _pragma(connection, "recursive_triggers", 1)
        _pragma(connection, "query_only", 1 if readonly else 0)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        # The schema has been parsed: its pages, a tenth of the memory of an idle file, are no longer needed.
        connection.release_memory()
    except BaseException:
        connection.close(True)
        raise
    return connection


def _load_vec(connection: Connection) -> None:
    connection.enable_load_extension(True)
    connection.load_extension(_vec_path())
    connection.enable_load_extension(False)


@cache
def _vec_path() -> str:
    """Return the path of sqlite_vec's library: found, not imported, because the import would load numpy."""
    spec = find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package sqlite-vec is missing; reinstall pattern-server")
    return str(Path(spec.origin).parent / "vec0")


def _pragma(connection: Connection, name: str, value: int | str) -> None:
    # fetchall, because apsw runs a statement only as far as its rows are read.
    connection.execute(f"PRAGMA {name} = {value}").fetchall()


Row = TypeVar("Row")


class Table(Generic[Row]):
    """The table `name`, each row of it an instance of `row`: a dataclass or named tuple of at least two fields.

    Fields have the names of columns; `columns` gives those that differ, or an expression to select, `computed` the
    expressions of the last fields, which are not stored. `json` names the
    fields with JSON columns (None is NULL), `types` the constructors of others: an enumeration, `bool`. `source` is
    what to select from, if it is more than the table. A row is found by its `key`; `noun` names one that is missing
    ("agent {}"). What people create also has a name, in the column `name_in`. `order` is that of `list_all`.
    """

    def __init__(
        self,
        name: str,
        row: type[Row],
        noun: str = "row {}",
        *,
        key: str = "id",
        name_in: str = "name",
        order: str = "",
        source: str | None = None,
        columns: Mapping[str, str] | None = None,
        computed: Mapping[str, str] | None = None,
        json: Sequence[str] = (),
        types: Mapping[str, Callable[[Any], object]] | None = None,
    ) -> None:
        fields: tuple[str, ...] = getattr(row, "_fields", ()) or tuple(vars(row)["__dataclass_fields__"])
        named = [(columns or {}).get(field, field) for field in fields[: len(fields) - len(computed or ())]]
        readers: dict[str, Callable[[Any], object]] = {**dict.fromkeys(json, from_json), **(types or {})}
        self._row: Callable[..., Row] = row
        self._name, self._fields, self._width = name, fields, len(fields)
        self._noun, self._key, self._name_in, self._order = noun, key, name_in, order
        self._json = tuple(at for field in json if (at := fields.index(field)) < len(named))
        self._readers = tuple((fields.index(field), _reader(made)) for field, made in readers.items())
        self._fields_of = attrgetter(*fields[: len(named)])
        # The stored fields of a row, in the order of `columns`.
        self.values: Callable[[Row], Values] = self._encoded if json else self._fields_of
        self._insert = f"INSERT INTO {name} ({', '.join(named)}) VALUES ({', '.join('?' * len(named))})"
        self.columns = ", ".join([*named, *(computed or {}).values()])
        self.source = source or name

    def make(self, values: Sequence[Any]) -> Row:
        """Make a row from selected values: its `columns`, which others may follow."""
        if not self._readers:
            return self._row(*values[: self._width])
        made = list(values[: self._width])
        for at, read in self._readers:
            if made[at] is not None:
                made[at] = read(made[at])
        return self._row(*made)

    def select(self, connection: Connection, rest: str = "", values: Values = ()) -> list[Row]:
        """Return the rows that `rest` (WHERE, ORDER BY, LIMIT) selects."""
        return [
            self.make(row) for row in connection.execute(f"SELECT {self.columns} FROM {self.source} {rest}", values)
        ]

    def list_all(self, connection: Connection) -> list[Row]:
        """Return all rows, in the table's order."""
        return self.select(connection, f"ORDER BY {self._order}")

    def count(self, connection: Connection, where: str = "", values: Values = ()) -> int:
        """Return how many rows `where` (WHERE …) selects."""
        found: int = connection.execute(f"SELECT count(*) FROM {self._name} {where}", values).get
        return found

    def first(self, connection: Connection, rest: str, values: Values = ()) -> Row | None:
        """Return the first of the rows that `rest` selects, or None."""
        row = connection.execute(f"SELECT {self.columns} FROM {self.source} {rest}", values).fetchone()
        return None if row is None else self.make(row)

    def one(self, connection: Connection, rest: str, values: Values, missing: str) -> Row:
        """Return the first of the rows that `rest` selects.

        Raises:
            RowNotFound: there is none; `missing` names it.
        """
        found = self.first(connection, rest, values)
        if found is None:
            raise RowNotFound(f"there is no {missing}")
        return found

    def get(self, connection: Connection, key: Value) -> Row:
        """Return the row with this key.

        Raises:
            RowNotFound: there is none.
        """
        return self.one(connection, f"WHERE {self._key} = ?", (key,), self._noun.format(key))

    def find(self, connection: Connection, id_or_name: str) -> Row:
        """Return the row with this id or, if there is none, this name.

        Raises:
            RowNotFound: there is neither.
        """
        where = f"WHERE id = ?1 OR {self._name_in} = ?1 ORDER BY id = ?1 DESC LIMIT 1"
        return self.one(connection, where, (id_or_name,), self._noun.format(id_or_name))

    def _encoded(self, row: Row) -> Values:
        values = list(self._fields_of(row))
        for at in self._json:
            if values[at] is not None:
                values[at] = to_json(values[at])
        return values

    def insert(self, connection: Connection, rows: Iterable[Row], rest: str = "") -> None:
        """Add rows; `rest` says what to do about conflicts.

        Raises:
            apsw.ConstraintError: a row exists, or one that it names does not (a `RowConflict` once translated).
        """
        connection.executemany(f"{self._insert} {rest}", map(self.values, rows))

    def create(self, connection: Connection, row: Row) -> None:
        """Add a row.

        Raises:
            apsw.ConstraintError: as `insert`, such as that its name is in use.
        """
        self.insert(connection, [row])

    def update(self, connection: Connection, row: Row) -> None:
        """Store all fields of a row but `created_at` in the one with its id.

        Raises:
            RowNotFound: there is none.
            apsw.ConstraintError: its name is in use (translated to `RowConflict`).
        """
        values = dict(zip(self._fields, self.values(row), strict=False))  # computed ones are left out
        del values["created_at"]
        self.change(connection, values.pop("id"), values)

    def change(self, connection: Connection, key: Value, changes: Mapping[str, Value]) -> None:
        """Store values, by column, in the row with this key.

        Raises:
            RowNotFound: there is none.
            apsw.ConstraintError: its name is in use (translated to `RowConflict`).
        """
        columns = ", ".join(f"{column} = ?" for column in changes)
        connection.execute(f"UPDATE {self._name} SET {columns} WHERE {self._key} = ?", (*changes.values(), key))
        require_change(connection, self._noun.format(key))

    def delete(self, connection: Connection, key: Value) -> None:
        """Delete the row with this key.

        Raises:
            RowNotFound: there is none.
            apsw.ConstraintError: others need it (translated to `RowConflict`).
        """
        connection.execute(f"DELETE FROM {self._name} WHERE {self._key} = ?", (key,))
        require_change(connection, self._noun.format(key))


def require_change(connection: Connection, missing: str) -> None:
    """Refuse that the last statement changed nothing.

    Raises:
        RowNotFound: it did; `missing` names the row.
    """
    if connection.changes() == 0:
        raise RowNotFound(f"there is no {missing}")


def _reader(made: Callable[[Any], object]) -> Callable[[Any], object]:
    if not isinstance(made, EnumMeta):
        return made
    members: Mapping[object, object] = made._value2member_map_  # a call of an enumeration is ten times slower
    return members.__getitem__
