"""The indexes of vectors, one per model: their states, progress and vec0 tables.

The vec0 tables hold one bit per number of a vector, in chunks, derived from the plain table `embeddings`. A bit is set
if the number is positive. That is enough to choose a few hundred candidates from a hundred thousand rows (see
`vectors`), with a thirtieth of the bytes. A vec0 row has the id of its embedding; its owner is the partition.

Source of the SQL dialect: sqlite-vec 0.1 (partition keys, auxiliary columns, `chunk_size`, `vec_quantize_binary`).
vec0 tables cannot be renamed, so an index that is built next to another one keeps a suffix in its tables' names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import IndexState, SearchKind

# The tables with the texts of each kind; cursors refer to their `row`.
SOURCES = {
    SearchKind.MESSAGE: "messages",
    SearchKind.BLOCK: "memory_blocks",
    SearchKind.ARCHIVAL: "archival_entries",
    SearchKind.FILE: "file_passages",
    SearchKind.SUMMARY: "archive_summaries",
    SearchKind.TASK: "tasks",
}
# Vectors per chunk. Each owner's last chunk is half empty on average: 4 KB for 384 numbers. Sixteen were twice as slow
# to read at 100,000 vectors, 256 a tenth less.
CHUNK = 128
CODED_BITS = 64  # vectors with a multiple of this many numbers may be followed by codes of words

Ref: TypeAlias = tuple[SearchKind, str]
"""A text: its kind and id."""


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """The kind of vectors: their provider, model and length."""

    provider: str
    model: str
    dimension: int
    fingerprint: str  # hex digest of weights and settings: only vectors with the same one can be compared

    def matches(self, other: EmbedderInfo) -> bool:
        """Return whether vectors of the two can be compared."""
        return (self.fingerprint, self.dimension) == (other.fingerprint, other.dimension)

    def fits(self, vector: bytes) -> bool:
        """Return whether it has this length, optionally followed by complete codes (`dimension` bits each)."""
        more = 8 * (len(vector) - 4 * self.dimension)
        return more == 0 or (more > 0 and self.dimension % CODED_BITS == 0 and more % self.dimension == 0)


@dataclass(frozen=True, slots=True)
class IndexRow(EmbedderInfo):
    """All vectors of one model.

    `suffix` is part of the names of its vec0 tables; None when a retired index has no vectors left. `completed_at` is
    when every text had its vector for the first time; None before.
    """

    id: int
    state: IndexState
    suffix: str | None
    created_at: str
    completed_at: str | None

    @property
    def has_bits(self) -> bool:
        """Whether the vectors are long enough, and a multiple of eight, to use a bit per number."""
        return self.dimension >= 64 and self.dimension % 8 == 0

    def table(self, kind: SearchKind) -> str:
        """Return the name of the vec0 table of `kind`."""
        return _LAYOUTS[kind].table + (self.suffix or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The rows with `low` < row <= `high` of one kind are done."""

    kind: SearchKind
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many of `total` rows an index still has to process; rows without text are included.

    `left` also counts changes of deleted texts. `refused` texts are done, but at least one piece of them has no vector,
    because the model refused it.
    """

    total: int
    left: int
    refused: int

    @property
    def done(self) -> int:
        """How many rows have been processed."""
        return max(self.total - self.left, 0)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of one kind: the vec0 table, its partition column, and its other columns from `embeddings`."""

    table: str
    partition: str
    columns: tuple[tuple[str, str, str], ...]  # name in vec0, type, column of embeddings


_INDEXES = Table("embedding_indexes", IndexRow, types={"state": IndexState})
_PIECE, _HASH = ("chunk_index", "INTEGER", "chunk_index"), ("content_hash", "TEXT", "content_hash")
_LAYOUTS = {
    SearchKind.BLOCK: _Layout("memory_embeddings", "agent_id", (("block_id", "TEXT", "ref"), _PIECE, _HASH)),
    SearchKind.MESSAGE: _Layout("message_embeddings", "agent_id", (("message_id", "TEXT", "ref"), _HASH)),
    SearchKind.ARCHIVAL: _Layout("archival_embeddings", "agent_id", (("entry_id", "TEXT", "ref"), _PIECE, _HASH)),
    SearchKind.FILE: _Layout(
        "file_passage_embeddings", "folder_id", (("passage_id", "TEXT", "ref"), ("file_id", "TEXT", "parent"))
    ),
    SearchKind.SUMMARY: _Layout("summary_embeddings", "agent_id", (("summary_id", "TEXT", "ref"), _PIECE, _HASH)),
    SearchKind.TASK: _Layout("task_embeddings", "agent_id", (("task_id", "TEXT", "ref"), _PIECE, _HASH)),
}


def kept(connection: Connection) -> list[IndexRow]:
    """Return the indexes that hold vectors: the active one, the one that is being built, the retired ones."""
    return _INDEXES.select(connection, "WHERE suffix IS NOT NULL ORDER BY state, id")  # the states are in this order


def live(connection: Connection) -> list[IndexRow]:
    """Return the active index and the one that is being built, if they exist."""
    return [index for index in kept(connection) if index.state is not IndexState.RETIRED]


def active(connection: Connection) -> IndexRow | None:
    """Return the index that search uses; None before the first text was embedded."""
    return next((index for index in kept(connection) if index.state is IndexState.ACTIVE), None)


def begin(connection: Connection, info: EmbedderInfo, state: IndexState, now: str) -> IndexRow:
    """Add an index and its vec0 tables, or reuse the retired one of this model with its remaining vectors.

    Its cursors begin at the newest rows: new texts are processed first.

    Raises:
        apsw.ConstraintError: there is another index in that state (translated to `RowConflict`).
    """
    known = next((index for index in kept(connection) if index.matches(info)), None)
    suffix = _free_suffix(connection) if known is None else known.suffix
    (begun,) = fetch_all(
        connection,
        "INSERT INTO embedding_indexes (fingerprint, provider, model, dimension, state, suffix, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (fingerprint, dimension) DO UPDATE SET state = excluded.state, suffix = excluded.suffix,"
        " created_at = excluded.created_at, completed_at = NULL RETURNING id",
        (info.fingerprint, info.provider, info.model, info.dimension, state, suffix, now),
    )
    rewind(connection, begun[0])
    ensure_tables(connection)
    return next(index for index in kept(connection) if index.id == begun[0])


def rewind(connection: Connection, index_id: int) -> None:
    """Let every text be checked again, newest first, including refused ones. Current vectors stay."""
    # Noted changes stay: some are of deleted texts, which no cursor reaches.
    connection.execute("DELETE FROM embedding_refusals WHERE index_id = ?", (index_id,))
    connection.executemany(
        "INSERT INTO embedding_cursors (kind, index_id, low, high) VALUES (?1, ?2, ?3, ?3)"
        " ON CONFLICT (kind, index_id) DO UPDATE SET low = excluded.low, high = excluded.high",
        [(kind, index_id, newest) for kind, newest in newest_rows(connection).items()],
    )


def retire(connection: Connection, index_id: int) -> None:
    """Retire the index: changes are no longer noted for it, and its vectors are deleted later."""
    connection.execute("UPDATE embedding_indexes SET state = ? WHERE id = ?", (IndexState.RETIRED, index_id))
    for table in ("embedding_cursors", "embedding_changes", "embedding_refusals"):
        connection.execute(f"DELETE FROM {table} WHERE index_id = ?", (index_id,))


def complete(connection: Connection, index_id: int, now: str) -> None:
    """Store that every text has its vector (the first time counts), and activate the index."""
    connection.execute(
        "UPDATE embedding_indexes SET state = ?, completed_at = coalesce(completed_at, ?) WHERE id = ?",
        (IndexState.ACTIVE, now, index_id),
    )


def newest_rows(connection: Connection) -> dict[SearchKind, int]:
    """Return the greatest row of each kind; 0 where there is none."""
    return {
        kind: int(fetch_all(connection, f"SELECT coalesce(max(row), 0) FROM {table}")[0][0])
        for kind, table in SOURCES.items()
    }


def cursors(connection: Connection, index_id: int) -> dict[SearchKind, Cursor]:
    """Return the cursor of the index for each kind; empty for a retired one."""
    rows = fetch_all(connection, "SELECT kind, low, high FROM embedding_cursors WHERE index_id = ?", (index_id,))
    return {SearchKind(kind): Cursor(kind=SearchKind(kind), low=low, high=high) for kind, low, high in rows}


def changes(connection: Connection, index_id: int, limit: int) -> list[Ref]:
    """Return up to `limit` texts that changed after they were processed."""
    rows = fetch_all(
        connection, "SELECT kind, ref FROM embedding_changes WHERE index_id = ? LIMIT ?", (index_id, limit)
    )
    return [(SearchKind(kind), ref) for kind, ref in rows]


def coverage(connection: Connection, index: IndexRow | None) -> Coverage:
    """Return the progress of the index; without one nothing is done. Reads only a few rows, however many there are."""
    newest = newest_rows(connection)
    total = sum(newest.values())
    if index is None:
        return Coverage(total=total, left=total, refused=0)
    (changed, refused) = fetch_all(
        connection,
        "SELECT (SELECT count(*) FROM embedding_changes WHERE index_id = ?1),"
        " (SELECT count(*) FROM (SELECT DISTINCT kind, ref FROM embedding_refusals WHERE index_id = ?1))",
        (index.id,),
    )[0]
    found = cursors(connection, index.id)
    left = sum(
        max(row - found[kind].high, 0) + found[kind].low if kind in found else row for kind, row in newest.items()
    )
    return Coverage(total=total, left=left + changed, refused=refused)


def advance(
    connection: Connection,
    index_id: int,
    *,
    done: Collection[Ref] = (),
    again: Collection[Ref] = (),
    move: tuple[Cursor, Cursor] | None = None,
) -> None:
    """Store that the texts of `done` are up to date, and that those of `again` must be checked again.

    `move` moves the cursor of one kind from the first position to the second, unless it has moved since.
    """
    connection.executemany(
        "DELETE FROM embedding_changes WHERE index_id = ? AND kind = ? AND ref = ?",
        [(index_id, kind, ref) for kind, ref in done],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO embedding_changes (index_id, kind, ref) VALUES (?, ?, ?)",
        [(index_id, kind, ref) for kind, ref in again],
    )
    if move is not None:
        before, after = move
        connection.execute(
            "UPDATE embedding_cursors SET low = ?, high = ? WHERE index_id = ? AND kind = ? AND low = ? AND high = ?",
            (after.low, after.high, index_id, before.kind, before.low, before.high),
        )


def ensure_tables(connection: Connection) -> None:
    """Create missing vec0 tables of the used indexes, and fill them."""
    present = tables(connection)
    for index in live(connection):
        for kind in SearchKind:
            if index.table(kind) not in present:
                _make_table(connection, index, kind)


def rebuild_tables(connection: Connection) -> None:
    """Drop the vec0 tables and fill them again from `embeddings`."""
    for index in live(connection):
        for kind in SearchKind:
            connection.execute(f"DROP TABLE IF EXISTS {index.table(kind)}")
            _make_table(connection, index, kind)


def drop_tables(connection: Connection, index: IndexRow) -> None:
    """Drop the vec0 tables of an index without vectors."""
    for kind in SearchKind:
        connection.execute(f"DROP TABLE IF EXISTS {index.table(kind)}")
    connection.execute("UPDATE embedding_indexes SET suffix = NULL WHERE id = ?", (index.id,))


def tables(connection: Connection) -> set[str]:
    """Return the names of the existing vec0 tables: derived ones can be lost."""
    rows = fetch_all(connection, "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%USING vec0%'")
    return {name for (name,) in rows}


def derive(connection: Connection, index: IndexRow, kind: SearchKind, ref: str | None = None) -> None:
    """Fill the vec0 table of `kind` from the embeddings of this index, or only with those of one text."""
    layout = _LAYOUTS[kind]
    columns = ", ".join(column for column, _type, _source in layout.columns)
    sources = ", ".join(source for _column, _type, source in layout.columns)
    vector = "vec_quantize_binary(vector)" if index.has_bits else "vector"
    where = "kind = ?1 AND index_id = ?2" + ("" if ref is None else " AND ref = ?3")
    connection.execute(
        f"INSERT INTO {index.table(kind)} (rowid, {layout.partition}, embedding, {columns})"
        f" SELECT id, scope, {vector}, {sources} FROM embeddings WHERE {where}",
        (kind, index.id) if ref is None else (kind, index.id, ref),
    )


def _make_table(connection: Connection, index: IndexRow, kind: SearchKind) -> None:
    layout = _LAYOUTS[kind]
    extra = "".join(f", +{column} {type_}" for column, type_, _source in layout.columns)
    element = "bit" if index.has_bits else "float"
    connection.execute(
        f"CREATE VIRTUAL TABLE {index.table(kind)} USING vec0({layout.partition} TEXT partition key,"
        f" embedding {element}[{index.dimension}]{extra}, chunk_size={CHUNK})"
    )
    derive(connection, index, kind)


def _free_suffix(connection: Connection) -> str:
    """Return a free suffix: the first index has plain names, a second one is built next to it."""
    taken = {index.suffix for index in kept(connection)}
    number = 1
    while (suffix := "" if number == 1 else f"_{number}") in taken:
        number += 1
    return suffix
