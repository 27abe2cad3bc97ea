"""Nearest neighbours. The plain table `embeddings` is the truth; the vec0 tables are derived from it.

vec0 finds neighbours only within one partition at a time, so a search cannot return another agent's rows, also when
its limit is one. A vec0 row has the rowid of its embedding.

Source of the SQL dialect: sqlite-vec 0.1 (partition keys, auxiliary columns, `k = ?`); it has no INSERT OR REPLACE.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables import meta

NEIGHBOURS_MAX = 4096  # vec0's own bound on k
SMALL_CHUNK = 16  # 61 KB for the first vector of a table; the default chunk would take 1.6 MB
LARGE_CHUNK = 256  # less overhead per vector once there are many
LARGE_FROM_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """One vector and what it stands for. `vector` is float32, little endian, 4 bytes a dimension (see `packed`).

    `scope` is the owner that searches ask for: an agent's id, or for a file's passage the folder's id. `parent` is
    the file of a passage.
    """

    kind: SearchKind
    ref: str
    scope: str
    vector: bytes
    content_hash: str
    model: str
    created_at: str
    chunk_index: int = 0
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One hit: what it refers to, and its cosine distance (0 the same direction, 1 unrelated, 2 opposite)."""

    kind: SearchKind
    ref: str
    scope: str
    chunk_index: int
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """How one kind is laid out: the vec0 table, its partition column, and its other columns from `embeddings`."""

    table: str
    partition: str
    columns: tuple[tuple[str, str, str], ...]  # name in vec0, type, column of embeddings


_REF, _CHUNK, _HASH = "ref", ("chunk_index", "INTEGER", "chunk_index"), ("content_hash", "TEXT", "content_hash")
_INDEXES = {
    SearchKind.BLOCK: _Index(
        table="memory_embeddings", partition="agent_id", columns=(("block_id", "TEXT", _REF), _CHUNK, _HASH)
    ),
    SearchKind.MESSAGE: _Index(
        table="message_embeddings", partition="agent_id", columns=(("message_id", "TEXT", _REF), _HASH)
    ),
    SearchKind.ARCHIVAL: _Index(
        table="archival_embeddings", partition="agent_id", columns=(("entry_id", "TEXT", _REF), _CHUNK, _HASH)
    ),
    SearchKind.FILE: _Index(
        table="file_passage_embeddings",
        partition="folder_id",
        columns=(("passage_id", "TEXT", _REF), ("file_id", "TEXT", "parent")),
    ),
}
TABLES = {kind: index.table for kind, index in _INDEXES.items()}


def packed(vector: Sequence[float]) -> bytes:
    """`vector` as the bytes that are stored: float32, little endian."""
    values = array("f", vector)
    if array("H", b"\x01\x00")[0] != 1:  # a big-endian machine
        values.byteswap()
    return values.tobytes()


def ensure(connection: Connection, dimension: int) -> None:
    """Make the vec0 tables for vectors of `dimension` numbers, unless they are there.

    Where they are for another dimension they are made anew and filled with the embeddings that fit; the others stay
    in `embeddings` until their text is embedded again.
    """
    existing = _existing(connection)
    if dimension_of(connection) == dimension and existing >= set(TABLES.values()):
        return
    meta.put(connection, meta.EMBEDDING_DIMENSION, str(dimension))
    rebuild(connection)


def dimension_of(connection: Connection) -> int | None:
    """The dimension for which the vec0 tables are made; None before the first `ensure`."""
    value = meta.get(connection, meta.EMBEDDING_DIMENSION)
    return None if value is None else int(value)


def rebuild(connection: Connection, kinds: Sequence[SearchKind] = tuple(SearchKind)) -> int:
    """Drop the vec0 tables of `kinds` and fill them anew from `embeddings`; return how many rows they hold.

    Raises:
        ValueError: no dimension is configured yet; call `ensure`.
    """
    dimension = _required_dimension(connection)
    total = 0
    for kind in kinds:
        index = _INDEXES[kind]
        count = fetch_all(
            connection, "SELECT count(*) FROM embeddings WHERE kind = ? AND dimension = ?", (kind, dimension)
        )[0][0]
        chunk = LARGE_CHUNK if count >= LARGE_FROM_ROWS else SMALL_CHUNK
        connection.execute(f"DROP TABLE IF EXISTS {index.table}")
        connection.execute(_definition(index, dimension, chunk))
        connection.execute(
            f"{_insert_into(index)} SELECT id, scope, vector, {_sources(index)}"
            " FROM embeddings WHERE kind = ? AND dimension = ?",
            (kind, dimension),
        )
        total += count
    return total


def insert(connection: Connection, embedding: Embedding) -> None:
    """Store one vector, in place of an earlier one of the same kind, ref and chunk.

    Raises:
        ValueError: the vector does not have the configured dimension.
    """
    dimension = _required_dimension(connection)
    if len(embedding.vector) != 4 * dimension:
        raise ValueError(f"a vector of {len(embedding.vector) // 4} numbers does not fit; {dimension} are configured")
    index = _INDEXES[embedding.kind]
    with connection:
        delete(connection, embedding.kind, embedding.ref, chunk_index=embedding.chunk_index)
        row = fetch_all(
            connection,
            "INSERT INTO embeddings (kind, ref, chunk_index, scope, parent, content_hash, model, dimension,"
            " created_at, vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                embedding.kind,
                embedding.ref,
                embedding.chunk_index,
                embedding.scope,
                embedding.parent,
                embedding.content_hash,
                embedding.model,
                dimension,
                embedding.created_at,
                embedding.vector,
            ),
        )
        connection.execute(
            f"{_insert_into(index)} SELECT id, scope, vector, {_sources(index)} FROM embeddings WHERE id = ?",
            row[0],
        )


def delete(connection: Connection, kind: SearchKind, ref: str, *, chunk_index: int | None = None) -> int:
    """Remove the vectors of `ref` (or of one of its chunks); return how many there were."""
    rows = fetch_all(
        connection,
        "SELECT id FROM embeddings WHERE kind = ?1 AND ref = ?2 AND (?3 IS NULL OR chunk_index = ?3)",
        (kind, ref, chunk_index),
    )
    _remove(connection, kind, rows)
    return len(rows)


def delete_scope(connection: Connection, scope: str) -> int:
    """Remove all vectors of an agent or folder; return how many there were."""
    total = 0
    for kind in SearchKind:
        rows = fetch_all(connection, "SELECT id FROM embeddings WHERE kind = ? AND scope = ?", (kind, scope))
        _remove(connection, kind, rows)
        total += len(rows)
    return total


def is_current(connection: Connection, kind: SearchKind, ref: str, content_hash: str, model: str) -> bool:
    """True if `ref` is embedded by `model` from the text with this hash."""
    row = connection.execute(
        "SELECT 1 FROM embeddings WHERE kind = ? AND ref = ? AND content_hash = ? AND model = ? LIMIT 1",
        (kind, ref, content_hash, model),
    ).fetchone()
    return row is not None


def nearest(
    connection: Connection,
    kind: SearchKind,
    vector: bytes,
    scopes: Sequence[str],
    limit: int,
    *,
    among: Sequence[str] | None = None,
) -> list[Neighbour]:
    """The `limit` nearest vectors of `kind` within `scopes`, nearest first; `among` narrows them to these refs.

    Raises:
        ValueError: the vector does not have the configured dimension.
    """
    if len(vector) != 4 * _required_dimension(connection):
        raise ValueError(f"a vector of {len(vector) // 4} numbers does not fit the configured dimension")
    index = _INDEXES[kind]
    narrowed = ""
    if among is not None:
        narrowed = (
            " AND rowid IN (SELECT id FROM embeddings WHERE kind = ? AND ref IN (SELECT value FROM json_each(?)))"
        )
    refs = () if among is None else (kind, to_json(list(among)))
    found: list[Neighbour] = []
    for scope in dict.fromkeys(scopes):
        rows = fetch_all(
            connection,
            f"SELECT e.ref, e.chunk_index, n.distance FROM (SELECT rowid, distance FROM {index.table}"
            f" WHERE embedding MATCH ? AND k = ? AND {index.partition} = ?{narrowed}) AS n"
            " JOIN embeddings AS e ON e.id = n.rowid",
            (vector, min(limit, NEIGHBOURS_MAX), scope, *refs),
        )
        found += [
            Neighbour(kind=kind, ref=ref, scope=scope, chunk_index=chunk, distance=distance)
            for ref, chunk, distance in rows
        ]
    found.sort(key=lambda neighbour: neighbour.distance)
    return found[:limit]


def counts(connection: Connection) -> dict[SearchKind, int]:
    """How many vectors there are of each kind."""
    rows = dict(fetch_all(connection, "SELECT kind, count(*) FROM embeddings GROUP BY kind"))
    return {kind: int(rows.get(kind.value, 0)) for kind in SearchKind}


def _remove(connection: Connection, kind: SearchKind, rows: Sequence[tuple[int]]) -> None:
    if not rows:
        return
    if TABLES[kind] in _existing(connection):
        connection.executemany(f"DELETE FROM {TABLES[kind]} WHERE rowid = ?", rows)
    connection.executemany("DELETE FROM embeddings WHERE id = ?", rows)


def _existing(connection: Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%USING vec0%'")
    return {str(name) for (name,) in rows}


def _required_dimension(connection: Connection) -> int:
    dimension = dimension_of(connection)
    if dimension is None:
        raise ValueError("no embedding dimension is configured for this constellation")
    return dimension


def _definition(index: _Index, dimension: int, chunk_size: int) -> str:
    extra = "".join(f", +{name} {kind}" for name, kind, _source in index.columns)
    return (
        f"CREATE VIRTUAL TABLE {index.table} USING vec0({index.partition} TEXT partition key,"
        f" embedding float[{dimension}] distance_metric=cosine{extra}, chunk_size={chunk_size})"
    )


def _insert_into(index: _Index) -> str:
    names = ", ".join(name for name, _kind, _source in index.columns)
    return f"INSERT INTO {index.table} (rowid, {index.partition}, embedding, {names})"


def _sources(index: _Index) -> str:
    return ", ".join(source for _name, _kind, source in index.columns)
