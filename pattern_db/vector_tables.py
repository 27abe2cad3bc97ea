"""The vec0 tables of each index: one bit per number of a vector, in chunks, derived from the plain table `embeddings`.

A bit is set where the number is positive. That is enough to tell a few hundred candidates from a hundred thousand
rows (see `vector_scan`), at a thirtieth of the bytes; the exact distances come from `embeddings`. A vec0 row has the
id of its embedding, and its owner is the partition, so that other owners' chunks are not even read.

Source of the SQL dialect: sqlite-vec 0.1 (partition keys, auxiliary columns, `chunk_size`, `vec_quantize_binary`).
vec0 cannot be renamed, so an index that is built beside another one has a suffix to its tables' names for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import EMBEDDED, SearchKind
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow

# Vectors per chunk. Each owner's last chunk is half empty on average: 4 KB for 384 numbers. Sixteen took twice as long
# to read at 100,000 vectors, 256 a tenth less.
CHUNK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How one kind is laid out: the vec0 table, its partition column, and its other columns from `embeddings`."""

    table: str
    partition: str
    columns: tuple[tuple[str, str, str], ...]  # name in vec0, type, column of embeddings


_REF, _CHUNK, _HASH = "ref", ("chunk_index", "INTEGER", "chunk_index"), ("content_hash", "TEXT", "content_hash")
_LAYOUTS = {
    SearchKind.BLOCK: _Layout(
        table="memory_embeddings", partition="agent_id", columns=(("block_id", "TEXT", _REF), _CHUNK, _HASH)
    ),
    SearchKind.MESSAGE: _Layout(
        table="message_embeddings", partition="agent_id", columns=(("message_id", "TEXT", _REF), _HASH)
    ),
    SearchKind.ARCHIVAL: _Layout(
        table="archival_embeddings", partition="agent_id", columns=(("entry_id", "TEXT", _REF), _CHUNK, _HASH)
    ),
    SearchKind.FILE: _Layout(
        table="file_passage_embeddings",
        partition="folder_id",
        columns=(("passage_id", "TEXT", _REF), ("file_id", "TEXT", "parent")),
    ),
    SearchKind.SUMMARY: _Layout(
        table="summary_embeddings", partition="agent_id", columns=(("summary_id", "TEXT", _REF), _CHUNK, _HASH)
    ),
}
TABLES = {kind: layout.table for kind, layout in _LAYOUTS.items()}


def name(index: IndexRow, kind: SearchKind) -> str:
    """The vec0 table of `kind` in `index`."""
    return _LAYOUTS[kind].table + (index.suffix or "")


def has_bits(index: IndexRow) -> bool:
    """Whether the vectors are long enough, and a multiple of eight, to be worth a bit each."""
    return index.dimension >= 64 and index.dimension % 8 == 0


def ensure(connection: Connection, indexes: Sequence[IndexRow] | None = None) -> None:
    """Make the vec0 tables of `indexes` (of all that are in use) that are missing, and fill them."""
    present = existing(connection)
    for index in embedding_indexes.live(connection) if indexes is None else indexes:
        for kind in EMBEDDED:
            if name(index, kind) not in present:
                _make(connection, index, kind)


def rebuild(connection: Connection, kinds: Sequence[SearchKind] = EMBEDDED) -> int:
    """Drop the vec0 tables of `kinds` and fill them anew from `embeddings`; return how many rows they hold."""
    return sum(_make(connection, index, kind) for index in embedding_indexes.live(connection) for kind in kinds)


def drop(connection: Connection, index: IndexRow) -> None:
    """Drop the vec0 tables of an index."""
    for kind in EMBEDDED:
        connection.execute(f"DROP TABLE IF EXISTS {name(index, kind)}")


def add(connection: Connection, index: IndexRow, kind: SearchKind, embedding_ids: Sequence[int]) -> None:
    """Derive the rows of these embeddings."""
    connection.executemany(f"{_insert(index, kind)} WHERE id = ?", [(embedding_id,) for embedding_id in embedding_ids])


def remove(connection: Connection, index: IndexRow, kind: SearchKind, embedding_ids: Sequence[int]) -> None:
    """Take out the rows of these embeddings; a table that was lost needs nothing."""
    if name(index, kind) in existing(connection):
        connection.executemany(
            f"DELETE FROM {name(index, kind)} WHERE rowid = ?", [(embedding_id,) for embedding_id in embedding_ids]
        )


def existing(connection: Connection) -> set[str]:
    """Names of the vec0 tables that are there."""
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%USING vec0%'")
    return {str(row[0]) for row in rows}


def _make(connection: Connection, index: IndexRow, kind: SearchKind) -> int:
    layout = _LAYOUTS[kind]
    extra = "".join(f", +{column} {type_}" for column, type_, _source in layout.columns)
    element = "bit" if has_bits(index) else "float"
    connection.execute(f"DROP TABLE IF EXISTS {name(index, kind)}")
    connection.execute(
        f"CREATE VIRTUAL TABLE {name(index, kind)} USING vec0({layout.partition} TEXT partition key,"
        f" embedding {element}[{index.dimension}]{extra}, chunk_size={CHUNK})"
    )
    connection.execute(f"{_insert(index, kind)} WHERE kind = ? AND index_id = ?", (kind, index.id))
    return int(fetch_all(connection, f"SELECT count(*) FROM {name(index, kind)}_rowids")[0][0])


def _insert(index: IndexRow, kind: SearchKind) -> str:
    """INSERT … SELECT … FROM embeddings, to be followed by a condition."""
    layout = _LAYOUTS[kind]
    columns = ", ".join(column for column, _type, _source in layout.columns)
    sources = ", ".join(source for _column, _type, source in layout.columns)
    vector = "vec_quantize_binary(vector)" if has_bits(index) else "vector"
    return (
        f"INSERT INTO {name(index, kind)} (rowid, {layout.partition}, embedding, {columns})"
        f" SELECT id, scope, {vector}, {sources} FROM embeddings"
    )
