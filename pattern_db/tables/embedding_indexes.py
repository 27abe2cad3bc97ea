"""The indexes of vectors, one per fingerprint: which answers, which is being built, and how far each has got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import IndexState, SearchKind
from pattern_db.errors import NotFound

# The tables that hold the texts of each kind; their `row` is what a cursor counts.
SOURCES = {
    SearchKind.MESSAGE: "messages",
    SearchKind.BLOCK: "memory_blocks",
    SearchKind.ARCHIVAL: "archival_entries",
    SearchKind.FILE: "file_passages",
    SearchKind.SUMMARY: "archive_summaries",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """All vectors of one fingerprint: the digest of the weights and settings that made them.

    `suffix` belongs to the names of its vec0 tables; None when a retired index has no vectors left. `completed_at` is
    when every text had its vector for the first time; None before.
    """

    id: int
    fingerprint: str
    provider: str
    model: str
    dimension: int
    state: IndexState
    suffix: str | None
    created_at: str
    completed_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIndex:
    """What an index is made of; see `IndexRow`."""

    fingerprint: str
    provider: str
    model: str
    dimension: int
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The rows with `low` < row <= `high` of one kind are done."""

    kind: SearchKind
    low: int
    high: int


_COLUMNS = "id, fingerprint, provider, model, dimension, state, suffix, created_at, completed_at"


def find(connection: Connection, index_id: int) -> IndexRow:
    """The index with this number.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?", (index_id,))
    if not found:
        raise NotFound(f"there is no index {index_id}")
    return found[0]


def by_fingerprint(connection: Connection, fingerprint: str, dimension: int) -> IndexRow | None:
    """The index of these weights and settings, in whatever state; None if there never was one."""
    found = _select(connection, "WHERE fingerprint = ? AND dimension = ?", (fingerprint, dimension))
    return found[0] if found else None


def in_state(connection: Connection, state: IndexState) -> list[IndexRow]:
    """The indexes in `state`, oldest first: at most one unless retired; of those only the ones that hold vectors."""
    return _select(connection, "WHERE state = ? AND suffix IS NOT NULL ORDER BY id", (state,))


def active(connection: Connection) -> IndexRow | None:
    """The index that search answers from; None as long as no text was embedded."""
    found = in_state(connection, IndexState.ACTIVE)
    return found[0] if found else None


def live(connection: Connection) -> list[IndexRow]:
    """The active index and the one that is being built, as far as there are."""
    return _select(connection, "WHERE state IN ('active', 'building') ORDER BY state", ())


def begin(connection: Connection, row: NewIndex, state: IndexState) -> IndexRow:
    """Add the index, or take up again the retired one of its fingerprint with the vectors that are left of it.

    Its cursors begin at the newest rows: what comes is done first. For its vec0 tables see `vector_tables.ensure`.

    Raises:
        apsw.ConstraintError: there is another index in that state (a `Conflict` once translated).
    """
    known = by_fingerprint(connection, row.fingerprint, row.dimension)
    suffix = known.suffix if known is not None and known.suffix is not None else _free_suffix(connection)
    connection.execute(
        "INSERT INTO embedding_indexes (fingerprint, provider, model, dimension, state, suffix, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (fingerprint, dimension) DO UPDATE SET state = excluded.state, suffix = excluded.suffix,"
        " created_at = excluded.created_at, completed_at = NULL",
        (row.fingerprint, row.provider, row.model, row.dimension, state, suffix, row.created_at),
    )
    (begun,) = _select(connection, "WHERE fingerprint = ? AND dimension = ?", (row.fingerprint, row.dimension))
    rewind(connection, begun.id)
    return begun


def rewind(connection: Connection, index_id: int) -> None:
    """Have every text looked at again, newest first, also those that were refused. Vectors that are up to date stay."""
    connection.execute("DELETE FROM embedding_changes WHERE index_id = ?", (index_id,))
    connection.execute("DELETE FROM embedding_refusals WHERE index_id = ?", (index_id,))
    for kind, newest in newest_rows(connection).items():
        connection.execute(
            "INSERT INTO embedding_cursors (kind, index_id, low, high) VALUES (?1, ?2, ?3, ?3)"
            " ON CONFLICT (kind, index_id) DO UPDATE SET low = excluded.low, high = excluded.high",
            (kind, index_id, newest),
        )


def set_state(connection: Connection, index_id: int, state: IndexState) -> None:
    """Change what the index is for. A retired one is no longer told about changes."""
    connection.execute("UPDATE embedding_indexes SET state = ? WHERE id = ?", (state, index_id))
    if state is IndexState.RETIRED:
        connection.execute("DELETE FROM embedding_cursors WHERE index_id = ?", (index_id,))
        connection.execute("DELETE FROM embedding_changes WHERE index_id = ?", (index_id,))
        connection.execute("DELETE FROM embedding_refusals WHERE index_id = ?", (index_id,))


def set_completed(connection: Connection, index_id: int, completed_at: str) -> None:
    """Note that every text has its vector; the first time counts."""
    connection.execute(
        "UPDATE embedding_indexes SET completed_at = coalesce(completed_at, ?) WHERE id = ?", (completed_at, index_id)
    )


def set_empty(connection: Connection, index_id: int) -> None:
    """Note that no vector and no vec0 table of a retired index is left."""
    connection.execute("UPDATE embedding_indexes SET suffix = NULL WHERE id = ?", (index_id,))


def newest_rows(connection: Connection) -> dict[SearchKind, int]:
    """The greatest row of each kind; 0 where there is none."""
    return {
        kind: int(fetch_all(connection, f"SELECT coalesce(max(row), 0) FROM {table}")[0][0])
        for kind, table in SOURCES.items()
    }


def cursors(connection: Connection, index_id: int) -> dict[SearchKind, Cursor]:
    """How far the index has got with each kind; empty for a retired one."""
    rows = fetch_all(connection, "SELECT kind, low, high FROM embedding_cursors WHERE index_id = ?", (index_id,))
    return {SearchKind(kind): Cursor(kind=SearchKind(kind), low=low, high=high) for kind, low, high in rows}


def move(connection: Connection, index_id: int, before: Cursor, after: Cursor) -> None:
    """Note that the rows of `after` are done, unless the cursor is no longer where it was `before`."""
    connection.execute(
        "UPDATE embedding_cursors SET low = ?, high = ? WHERE index_id = ? AND kind = ? AND low = ? AND high = ?",
        (after.low, after.high, index_id, before.kind, before.low, before.high),
    )


def changes(connection: Connection, index_id: int, limit: int) -> list[tuple[SearchKind, str]]:
    """Up to `limit` refs that changed after they were done."""
    rows = fetch_all(
        connection, "SELECT kind, ref FROM embedding_changes WHERE index_id = ? LIMIT ?", (index_id, limit)
    )
    return [(SearchKind(kind), ref) for kind, ref in rows]


def count_changes(connection: Connection, index_id: int) -> int:
    """How many refs changed after they were done."""
    return int(fetch_all(connection, "SELECT count(*) FROM embedding_changes WHERE index_id = ?", (index_id,))[0][0])


def note_changes(connection: Connection, index_id: int, refs: Sequence[tuple[SearchKind, str]]) -> None:
    """Have these looked at again."""
    connection.executemany(
        "INSERT OR IGNORE INTO embedding_changes (index_id, kind, ref) VALUES (?, ?, ?)",
        [(index_id, kind, ref) for kind, ref in refs],
    )


def forget_changes(connection: Connection, index_id: int, refs: Sequence[tuple[SearchKind, str]]) -> None:
    """These are up to date."""
    connection.executemany(
        "DELETE FROM embedding_changes WHERE index_id = ? AND kind = ? AND ref = ?",
        [(index_id, kind, ref) for kind, ref in refs],
    )


def _free_suffix(connection: Connection) -> str:
    """The first one has the plain names; another one stands beside it until its vectors are gone."""
    taken = {row[0] for row in fetch_all(connection, "SELECT suffix FROM embedding_indexes")}
    number = 1
    while (suffix := "" if number == 1 else f"_{number}") in taken:
        number += 1
    return suffix


def _select(connection: Connection, where: str, values: Sequence[str | int]) -> list[IndexRow]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM embedding_indexes {where}", values)
    return [
        IndexRow(
            id=row[0],
            fingerprint=row[1],
            provider=row[2],
            model=row[3],
            dimension=row[4],
            state=IndexState(row[5]),
            suffix=row[6],
            created_at=row[7],
            completed_at=row[8],
        )
        for row in rows
    ]
