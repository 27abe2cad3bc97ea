"""The state of a database file, its defects, and compaction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import apsw

from pattern_db import search
from pattern_db.backup import check_integrity, row_counts
from pattern_db.connection import Connection, fetch_all, transaction
from pattern_db.enums import SearchKind, TurnStatus
from pattern_db.journal import turns, usage
from pattern_db.migrate import Migrations
from pattern_db.tables import embedding_indexes

MUCH_FREE_BYTES, MUCH_FREE_SHARE = 16 * 1024 * 1024, 0.25  # unused in a file, in bytes and as a share: both
_IS_STALE = "turn NOT IN (SELECT key FROM turn WHERE status = 'running')"
_ENDS = ", ".join(f"'turn.{status}'" for status in TurnStatus if status not in turns.OPEN)
# What no moment of the journal may hold. Retention deletes events in their order, so the end of a turn last.
_JOURNAL = {
    "turns without exactly one end": "SELECT count(*) FROM turn JOIN (SELECT turn,"
    f" count(*) FILTER (WHERE name IN ({_ENDS})) AS ends FROM event WHERE turn IS NOT NULL GROUP BY turn)"
    " ON turn = turn.key WHERE ends <> (ended_at IS NOT NULL)",
    "calls without a result in turns that ended": "SELECT count(*) FROM effect JOIN turn ON turn.key = effect.turn"
    " WHERE turn.ended_at IS NOT NULL AND effect.status IN ('planned', 'awaiting_approval', 'started')",
    "reservations of turns that do not run; `pattern db check --repair` releases them":
    f"SELECT count(*) FROM reservation WHERE {_IS_STALE}",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of one file. Sizes are in bytes; `pending` names migrations; `rows` counts the ordinary tables.

    `free_bytes` are unused in the file; `vacuum` frees them. `wal_bytes` are in the write-ahead log.
    """

    version: int
    newest: int
    pending: tuple[str, ...]
    file_bytes: int
    free_bytes: int
    wal_bytes: int
    rows: dict[str, int]


def status(connection: Connection, migrations: Migrations) -> Status:
    """Return the state of the file; reads little.

    Raises:
        SchemaTooNew: as `Migrations.plan`.
        MigrationEdited: as `Migrations.plan`.
    """
    pending = migrations.plan(connection)
    page_bytes, pages, free = (connection.pragma(name) for name in ("page_size", "page_count", "freelist_count"))
    log = Path(f"{connection.filename}-wal")
    return Status(
        version=migrations.newest - len(pending),
        newest=migrations.newest,
        pending=tuple(migration.file for migration in pending),
        file_bytes=page_bytes * pages,
        free_bytes=page_bytes * free,
        wal_bytes=log.stat().st_size if log.exists() else 0,
        rows=row_counts(connection),
    )


def check(connection: Connection) -> list[str]:
    """Return all defects as texts; empty if there are none. Reads the whole file; run it in a write.

    Damage of what `repair` makes again is reported with that.
    """
    problems = check_integrity(connection)
    present = {str(row[0]) for row in fetch_all(connection, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for index in search.indexes():
        if index not in present:
            continue
        try:
            # rank 1: compare the index with the text itself, not only with its own checksums.
            connection.execute(f"INSERT INTO {index}({index}, rank) VALUES ('integrity-check', 1)")
        except apsw.CorruptError:
            problems.append(
                f"the full-text index {index} does not match its table; run `pattern db check --repair` to rebuild it"
            )
    if "embedding_indexes" in present:
        problems += _check_vectors(connection)
    if {"turn", "effect", "event", "reservation"} <= present:
        counts = ((text, int(connection.execute(sql).get)) for text, sql in _JOURNAL.items())
        problems += [f"the journal has {text}: {count}" for text, count in counts if count]
    if {"usage_day", "migration_audit"} <= present and (days := usage.wrong_days(connection)):
        problems.append(
            f"days with other sums of usage than their calls: {days}; run `pattern db check --repair` to sum them again"
        )
    return problems


def repair(connection: Connection) -> None:
    """Make again what is derived, and release what is reserved for calls of turns that do not run; else as `vacuum`."""
    if fetch_all(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'reservation'"):
        connection.execute(f"DELETE FROM reservation WHERE {_IS_STALE}")
        with transaction(connection):
            usage.rebuild_days(connection)
    vacuum(connection)


def vacuum(connection: Connection) -> int:
    """Rebuild all derived search tables, vacuum the file and truncate the log.

    Return the number of freed bytes; negative if rebuilding a damaged index needed more.

    Run it outside any transaction (`Database.run_alone`). It needs as much free space on the disk as the file has.

    Raises:
        apsw.SQLError: a transaction is open.
        apsw.FullError: the disk is too small for the copy; nothing was changed.
    """
    before = _size(connection)
    if fetch_all(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'embedding_indexes'"):
        with transaction(connection):
            search.rebuild(connection)
            search.optimize(connection)
            embedding_indexes.rebuild_tables(connection)
    for sql in ("PRAGMA optimize", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
        connection.execute(sql).fetchall()
    return before - _size(connection)


def much_free(connection: Connection) -> int:
    """Return the unused bytes of the file if they are worth a `vacuum`, else 0."""
    free = int(connection.pragma("page_size") * connection.pragma("freelist_count"))
    return free if free >= max(MUCH_FREE_BYTES, _size(connection) * MUCH_FREE_SHARE) else 0


def _size(connection: Connection) -> int:
    return int(connection.pragma("page_size") * connection.pragma("page_count"))


def _check_vectors(connection: Connection) -> list[str]:
    problems: list[str] = []
    for index in embedding_indexes.live(connection):
        for kind in SearchKind:
            table = index.table(kind)
            try:
                missing, extra = fetch_all(
                    connection,
                    "SELECT (SELECT count(*) FROM embeddings WHERE kind = ?1 AND index_id = ?2"
                    f" AND id NOT IN (SELECT rowid FROM {table})),"
                    f" (SELECT count(*) FROM {table}"
                    " WHERE rowid NOT IN (SELECT id FROM embeddings WHERE kind = ?1 AND index_id = ?2))",
                    (kind, index.id),
                )[0]
            except apsw.SQLError as error:
                problems.append(
                    f"the vector table {table} cannot be read ({error}); run `pattern db check --repair` to rebuild it"
                )
                continue
            if missing or extra:
                problems.append(
                    f"the vector table {table} lacks {missing} vectors and has {extra} too many;"
                    " run `pattern db check --repair` to rebuild it"
                )
    return problems
