"""Vectors of texts, one row per piece, in one index or several, and the pieces that a model refused.

`embeddings` holds the one copy of each vector; the vec0 tables (see `embedding_indexes`) derive from it. A refused
piece counts as done until its text changes or the index is rewound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.tables.embedding_sources import EmbeddingSource


@dataclass(frozen=True, slots=True)
class Refusal:
    """A text of which at least one piece has no vector, and the model's reason."""

    kind: SearchKind
    ref: str
    reason: str


def replace(
    connection: Connection,
    index: IndexRow,
    source: EmbeddingSource,
    hashes: Sequence[str],
    vectors: Mapping[str, bytes],
    *,
    refused: Mapping[str, str] | None = None,
    now: str,
) -> None:
    """Store the pieces with these `hashes`, in order, as the only ones of a text in `index`.

    `vectors` are float32, little endian, 4 bytes a number, by hash, followed by the codes of a message's words (a bit
    for each number); `refused` are the reasons why this index's model refused others. Other indexes lose their vectors
    of changed pieces.

    Raises:
        ValueError: a vector does not have the dimension of the index.
    """
    kind, ref = source.kind, source.ref
    rows = fetch_all(
        connection, "SELECT id, index_id, content_hash FROM embeddings WHERE kind = ? AND ref = ?", (kind, ref)
    )
    _remove(connection, kind, [(row[0], row[1]) for row in rows if row[1] == index.id or row[2] not in hashes])
    connection.execute(
        "DELETE FROM embedding_refusals WHERE index_id = ? AND kind = ? AND ref = ?", (index.id, kind, ref)
    )
    for number, content_hash in enumerate(hashes):
        vector = vectors.get(content_hash)
        if vector is None:
            continue
        size = 4 * index.dimension
        if not index.fits(vector):
            raise ValueError(f"a vector has {len(vector) // 4} numbers, but those of the index have {index.dimension}")
        connection.execute(
            "INSERT INTO embeddings (index_id, kind, ref, chunk_index, scope, parent, content_hash, dimension,"
            " created_at, vector, codes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(index.id, kind, ref, number, source.scope, source.parent, content_hash),
                *(index.dimension, now, vector[:size]),
                vector[size:] if kind is SearchKind.MESSAGE and len(vector) > size else None,
            ),
        )
    embedding_indexes.derive(connection, index, kind, ref)
    connection.executemany(
        "INSERT INTO embedding_refusals (index_id, kind, ref, content_hash, scope, reason) VALUES (?, ?, ?, ?, ?, ?)",
        [(index.id, kind, ref, key, source.scope, why) for key, why in (refused or {}).items() if key in hashes],
    )


def delete(connection: Connection, kind: SearchKind, ref: str) -> None:
    """Delete the vectors and refusals of `ref` from all indexes."""
    rows = fetch_all(connection, "SELECT id, index_id FROM embeddings WHERE kind = ? AND ref = ?", (kind, ref))
    _remove(connection, kind, rows)
    connection.execute("DELETE FROM embedding_refusals WHERE kind = ? AND ref = ?", (kind, ref))


def delete_scope(connection: Connection, scope: str) -> None:
    """Delete all vectors and refusals of an agent or folder from all indexes."""
    for kind in SearchKind:
        rows = fetch_all(connection, "SELECT id, index_id FROM embeddings WHERE kind = ? AND scope = ?", (kind, scope))
        _remove(connection, kind, rows)
    connection.execute("DELETE FROM embedding_refusals WHERE scope = ?", (scope,))


def purge(connection: Connection, index: IndexRow, after: tuple[str, str], limit: int) -> tuple[str, str] | None:
    """Delete some vectors of a retired index, in the order of kind and ref; with the last ones also its tables.

    Begin `after` ("", "") and continue with the returned value, until it is None. About `limit` vectors are deleted at
    a time, so that other requests do not wait long.
    """
    if any(one.id == index.id for one in embedding_indexes.live(connection)):
        return None  # it was reactivated
    rows = fetch_all(
        connection,
        "SELECT id, kind, ref FROM embeddings WHERE index_id = ? AND (kind, ref) > (?, ?) ORDER BY kind, ref LIMIT ?",
        (index.id, *after, limit),
    )
    if len(rows) == limit and rows[0][1:] != rows[-1][1:]:
        # The pieces of the last text may exceed the limit: it is left to the next call.
        rows = [row for row in rows if row[1:] != rows[-1][1:]]
    if not rows:
        embedding_indexes.drop_tables(connection, index)
        return None
    for kind in {row[1] for row in rows}:
        _remove(connection, SearchKind(kind), [(row[0], index.id) for row in rows if row[1] == kind])
    return rows[-1][1], rows[-1][2]


def is_current(connection: Connection, index: IndexRow, source: EmbeddingSource, hashes: Sequence[str]) -> bool:
    """Return True if the index has exactly the pieces with these hashes of a text, in order, with its owner.

    Each piece has a vector or was refused, and there are no others.
    """
    key = (source.kind, source.ref, index.id)
    rows = fetch_all(
        connection,
        "SELECT content_hash FROM embedding_refusals WHERE kind = ? AND ref = ? AND index_id = ?",
        key,
    )
    refused = {content_hash for (content_hash,) in rows}
    known = fetch_all(
        connection,
        "SELECT content_hash, scope FROM embeddings WHERE kind = ? AND ref = ? AND index_id = ? ORDER BY chunk_index",
        key,
    )
    wanted = [(content_hash, source.scope) for content_hash in hashes if content_hash not in refused]
    return known == wanted and refused.issubset(hashes)


def by_hash(connection: Connection, index: IndexRow, hashes: Sequence[str]) -> dict[str, bytes]:
    """Return the vectors of this index for texts with these hashes, whatever their owner."""
    rows = fetch_all(  # one of each: thousands of messages may say the same
        connection,
        "SELECT value, (SELECT cast(vector || coalesce(codes, x'') AS BLOB) FROM embeddings"
        " WHERE content_hash = value AND index_id = ? LIMIT 1) FROM json_each(?)",
        (index.id, to_json(list(hashes))),
    )
    return {content_hash: vector for content_hash, vector in rows if vector is not None}


def refusals(connection: Connection, index: IndexRow, limit: int) -> list[Refusal]:
    """Return the first `limit` refused texts by kind and ref, each with the reason of one of its pieces."""
    rows = fetch_all(
        connection,
        "SELECT kind, ref, min(reason) FROM embedding_refusals WHERE index_id = ? GROUP BY kind, ref"
        " ORDER BY kind, ref LIMIT ?",
        (index.id, limit),
    )
    return [Refusal(SearchKind(kind), ref, reason) for kind, ref, reason in rows]


def _remove(connection: Connection, kind: SearchKind, rows: Sequence[tuple[int, int]]) -> None:
    """Delete embeddings, given by their id and index."""
    if not rows:
        return
    present = embedding_indexes.tables(connection)
    for index in embedding_indexes.kept(connection):
        ids = [(embedding_id,) for embedding_id, index_id in rows if index_id == index.id]
        if ids and index.table(kind) in present:
            connection.executemany(f"DELETE FROM {index.table(kind)} WHERE rowid = ?", ids)
    connection.executemany("DELETE FROM embeddings WHERE id = ?", [(embedding_id,) for embedding_id, _index in rows])
