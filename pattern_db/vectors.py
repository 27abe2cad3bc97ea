"""Vectors of texts and their nearest neighbours. The plain table `embeddings` is the truth; vec0 tables derive from it.

Several indexes can stand side by side, one per model; `nearest` answers from the active one alone. Filters are part of
the query: no result can be another owner's, also when the limit is one. Distances are exact in every case. Up to some
thousands of vectors are compared one by one; of more, `vector_scan` first tells the few hundred that come into
question. Without numpy all are compared, which takes 12 ms for 10,000 vectors of 384 numbers and 130 ms for 100,000.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pattern_db import vector_scan, vector_tables
from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import EMBEDDED, IndexState, SearchKind
from pattern_db.tables import embedding_indexes, embedding_refusals
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vector_cache import CACHE
from pattern_db.vector_scan import Codes

EXACT_ROWS_MAX = 2_000  # up to here every vector is compared; it takes 3 ms
# How many are compared exactly after a scan: the more rows there are, the more of them look alike to the first pass.
# Among ten thousand mixtures of real texts' vectors 99 % of the exact neighbours are found with so many, and among a
# hundred thousand with three times as many: the number grows with the root of the rows.
CANDIDATES_MIN = 200
CANDIDATES_PER_RESULT = 4
CANDIDATES_ROWS = 10_000
MORE_CANDIDATES = 4  # times as many, where a condition left too few
GONE_SHARE_MAX = 0.1  # of the candidates; if more were removed, the codes are read anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """One vector and what it stands for. `vector` is float32, little endian, 4 bytes a dimension (see `packed`).

    `scope` is the owner that searches ask for: an agent's id, or for a file's passage the folder's id. `parent` is
    the file of a passage. `content_hash` is of the text that was embedded.
    """

    kind: SearchKind
    ref: str
    scope: str
    vector: bytes
    content_hash: str
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
class Condition:
    """SQL that a row `e` of `embeddings` must satisfy (`e.ref` is the id of its text), with its named values.

    Names that begin with an underscore are taken.
    """

    sql: str
    values: Mapping[str, str | int | float | bytes | None]


def packed(vector: Sequence[float]) -> bytes:
    """`vector` as the bytes that are stored: float32, little endian."""
    values = array("f", vector)
    if array("H", b"\x01\x00")[0] != 1:  # a big-endian machine
        values.byteswap()
    return values.tobytes()


def dimension_of(connection: Connection) -> int | None:
    """How many numbers a vector of the active index has; None without one."""
    index = embedding_indexes.active(connection)
    return None if index is None else index.dimension


def insert(connection: Connection, embedding: Embedding) -> None:
    """Store one vector in the active index, in place of an earlier one of the same kind, ref and chunk.

    Raises:
        ValueError: there is no active index, or the vector has another dimension.
    """
    index = _required_active(connection)
    delete(connection, embedding.kind, embedding.ref, chunk_index=embedding.chunk_index)
    _add(connection, index, [embedding])


def replace(
    connection: Connection,
    index: IndexRow,
    kind: SearchKind,
    ref: str,
    embeddings: Sequence[Embedding],
    *,
    refused: Collection[str] = (),
) -> None:
    """Let `embeddings` be all vectors of `ref` in `index`. Other indexes lose theirs, as far as the text is another.

    `refused` are hashes of pieces of the text that this index's model gives no vector for; another's may have.

    Raises:
        ValueError: a vector does not have the dimension of the index.
    """
    hashes = {embedding.content_hash for embedding in embeddings} | set(refused)
    rows = fetch_all(
        connection, "SELECT id, index_id, content_hash FROM embeddings WHERE kind = ? AND ref = ?", (kind, ref)
    )
    _remove(connection, kind, [(row[0], row[1]) for row in rows if row[1] == index.id or row[2] not in hashes])
    _add(connection, index, embeddings)


def delete(connection: Connection, kind: SearchKind, ref: str, *, chunk_index: int | None = None) -> int:
    """Remove the vectors of `ref` (or of one of its chunks) from all indexes; return how many there were."""
    rows = fetch_all(
        connection,
        "SELECT id, index_id FROM embeddings WHERE kind = ?1 AND ref = ?2 AND (?3 IS NULL OR chunk_index = ?3)",
        (kind, ref, chunk_index),
    )
    _remove(connection, kind, rows)
    if chunk_index is None:
        embedding_refusals.forget(connection, kind, ref)
    return len(rows)


def delete_scope(connection: Connection, scope: str) -> int:
    """Remove all vectors of an agent or folder from all indexes; return how many there were."""
    total = 0
    for kind in EMBEDDED:
        rows = fetch_all(connection, "SELECT id, index_id FROM embeddings WHERE kind = ? AND scope = ?", (kind, scope))
        _remove(connection, kind, rows)
        total += len(rows)
    embedding_refusals.forget_scope(connection, scope)
    return total


def purge(connection: Connection, index: IndexRow, after: tuple[str, str], limit: int) -> tuple[str, str] | None:
    """Remove some vectors of a retired index, in the order of kind and ref; with the last ones also its tables.

    Begin `after` ("", "") and go on with what is returned, until it is None. About `limit` vectors go at a time, so
    that nobody waits for long.
    """
    if embedding_indexes.find(connection, index.id).state is not IndexState.RETIRED:
        return None  # taken up again meanwhile
    rows = fetch_all(
        connection,
        "SELECT id, kind, ref FROM embeddings WHERE index_id = ? AND (kind, ref) > (?, ?) ORDER BY kind, ref LIMIT ?",
        (index.id, *after, limit),
    )
    if len(rows) == limit and rows[0][1:] != rows[-1][1:]:
        # The chunks of the last one may go on beyond the limit: it is the next call's.
        rows = [row for row in rows if row[1:] != rows[-1][1:]]
    if not rows:
        vector_tables.drop(connection, index)
        embedding_indexes.set_empty(connection, index.id)
        return None
    for kind in {row[1] for row in rows}:
        _remove(connection, SearchKind(kind), [(row[0], index.id) for row in rows if row[1] == kind])
    return rows[-1][1], rows[-1][2]


def is_current(
    connection: Connection, index_id: int, kind: SearchKind, ref: str, *, scope: str, hashes: Sequence[str]
) -> bool:
    """True if the vectors of `ref` in this index are of texts with these hashes, in order, and belong to `scope`."""
    rows = fetch_all(
        connection,
        "SELECT content_hash, scope FROM embeddings WHERE kind = ? AND ref = ? AND index_id = ? ORDER BY chunk_index",
        (kind, ref, index_id),
    )
    return [tuple(row) for row in rows] == [(content_hash, scope) for content_hash in hashes]


def by_hash(connection: Connection, index_id: int, hashes: Sequence[str]) -> dict[str, bytes]:
    """The vectors that this index has for texts with these hashes, whatever they belong to."""
    return dict(
        fetch_all(
            connection,
            "SELECT content_hash, vector FROM embeddings"
            " WHERE content_hash IN (SELECT value FROM json_each(?)) AND index_id = ?",
            (to_json(list(hashes)), index_id),
        )
    )


def nearest(
    connection: Connection,
    kind: SearchKind,
    vector: bytes,
    scopes: Sequence[str] | None,
    limit: int,
    *,
    condition: Condition | None = None,
    fingerprint: str | None = None,
) -> list[Neighbour]:
    """The `limit` nearest vectors of `kind`, nearest first, from the active index; empty without one.

    Only those of the owners `scopes` (None: of everybody's), and where `condition` holds. With the `fingerprint` of
    the vector's model, nothing is found if another model's index has become active since: no two models' vectors meet.

    Raises:
        ValueError: the vector does not have the active index's dimension: it is of another model.
    """
    index = embedding_indexes.active(connection)
    if index is None or limit <= 0 or fingerprint not in (None, index.fingerprint):
        return []
    if len(vector) != 4 * index.dimension:
        raise ValueError(f"a vector of {len(vector) // 4} numbers does not fit the index, whose have {index.dimension}")
    search = _Search(connection, index, kind, vector, scopes, condition)
    if not _is_worth_a_scan(connection, index, kind):
        return search.all(limit)
    is_new = not CACHE.holds(connection, index, kind)
    codes = CACHE.codes(connection, index, kind, scopes)
    found = None if codes is None else _scanned(search, codes, limit, is_new=is_new)
    if found is None and not is_new:
        CACHE.drop(connection, index, kind)
        codes = CACHE.codes(connection, index, kind, scopes)
        found = None if codes is None else _scanned(search, codes, limit, is_new=True)
    return search.all(limit) if found is None else found


def counts(connection: Connection) -> dict[SearchKind, int]:
    """How many vectors of each kind the active index has."""
    rows = dict(
        fetch_all(
            connection,
            "SELECT kind, count(*) FROM embeddings"
            " WHERE index_id = (SELECT id FROM embedding_indexes WHERE state = 'active') GROUP BY kind",
        )
    )
    return {kind: int(rows.get(kind.value, 0)) for kind in EMBEDDED}


@dataclass(frozen=True, slots=True)
class _Search:
    """One query, compared exactly with some rows of `embeddings`."""

    connection: Connection
    index: IndexRow
    kind: SearchKind
    vector: bytes
    scopes: Sequence[str] | None
    condition: Condition | None

    def all(self, limit: int) -> list[Neighbour]:
        """The nearest of all embeddings."""
        rows: list[tuple[str, str, int, float]] = self.connection.execute(
            "SELECT e.ref, e.scope, e.chunk_index, vec_distance_cosine(e.vector, :_vector) AS distance"
            f" FROM embeddings AS e WHERE e.kind = :_kind AND e.index_id = :_index AND {self._fits()}"
            " ORDER BY distance, e.id LIMIT :_limit",
            self._values() | {"_kind": self.kind.value, "_index": self.index.id, "_limit": limit},
        ).fetchall()  # type: ignore[assignment]  # the columns' types are the statement's business
        return [self._neighbour(*row) for row in rows]

    def among(self, ids: Sequence[int], limit: int) -> tuple[list[Neighbour], list[int]]:
        """The nearest of the embeddings with these ids, and those ids that are no longer there."""
        # The order of the join is told: SQLite would rather walk through all embeddings of the kind.
        rows: list[tuple[int, str, str, int, float | None]] = self.connection.execute(
            "SELECT e.id, e.ref, e.scope, e.chunk_index,"
            f" CASE WHEN {self._fits()} THEN vec_distance_cosine(e.vector, :_vector) END"
            " FROM json_each(:_ids) CROSS JOIN embeddings AS e ON e.id = value",
            self._values() | {"_ids": to_json(list(ids))},
        ).fetchall()  # type: ignore[assignment]  # the columns' types are the statement's business
        fitting = sorted([(row[4], *row[:4]) for row in rows if row[4] is not None])[:limit]
        gone = sorted(set(ids) - {row[0] for row in rows}) if len(rows) < len(ids) else []
        return [self._neighbour(ref, scope, chunk, distance) for distance, _id, ref, scope, chunk in fitting], gone

    def _fits(self) -> str:
        condition = "1" if self.condition is None else self.condition.sql
        scope = "1" if self.scopes is None else "e.scope IN (SELECT value FROM json_each(:_scopes))"
        return f"{scope} AND ({condition})"

    def _values(self) -> dict[str, str | int | float | bytes | None]:
        return {
            **({} if self.condition is None else self.condition.values),
            "_vector": self.vector,
            "_scopes": None if self.scopes is None else to_json(list(self.scopes)),
        }

    def _neighbour(self, ref: str, scope: str, chunk_index: int, distance: float) -> Neighbour:
        return Neighbour(kind=self.kind, ref=ref, scope=scope, chunk_index=chunk_index, distance=distance)


def _is_worth_a_scan(connection: Connection, index: IndexRow, kind: SearchKind) -> bool:
    if not (vector_scan.is_possible() and vector_tables.has_bits(index)):
        return False
    if CACHE.holds(connection, index, kind):
        return True
    # Other indexes' rows count too: it need not be exact, and so it reads nothing but the index by scope.
    counted = fetch_all(
        connection,
        "SELECT count(*) FROM (SELECT 1 FROM embeddings WHERE kind = ? LIMIT ?)",
        (kind, EXACT_ROWS_MAX + 1),
    )
    return int(counted[0][0]) > EXACT_ROWS_MAX


def _scanned(search: _Search, codes: Codes, limit: int, *, is_new: bool) -> list[Neighbour] | None:
    """The nearest by way of their codes. None if comparing all of them is better, or if so much has gone that the codes
    should be read anew, unless they are `is_new`.
    """
    if codes.count(search.scopes) <= EXACT_ROWS_MAX:
        return search.all(limit)
    scan = codes.compare(search.vector, search.scopes)
    growth = math.sqrt(max(1.0, len(scan) / CANDIDATES_ROWS))
    count = round((CANDIDATES_MIN + CANDIDATES_PER_RESULT * limit) * growth)
    while True:
        found, gone = search.among(scan.best(count), limit)
        if gone:
            if not is_new and len(gone) > count * GONE_SHARE_MAX:
                return None
            codes.forget(gone)
            scan = codes.compare(search.vector, search.scopes)
        elif len(found) >= limit or count >= len(scan):
            return found
        else:
            count *= MORE_CANDIDATES


def _add(connection: Connection, index: IndexRow, embeddings: Sequence[Embedding]) -> None:
    for embedding in embeddings:
        if len(embedding.vector) != 4 * index.dimension:
            raise ValueError(
                f"a vector of {len(embedding.vector) // 4} numbers does not fit the index, whose have {index.dimension}"
            )
        row = fetch_all(
            connection,
            "INSERT INTO embeddings (index_id, kind, ref, chunk_index, scope, parent, content_hash, dimension,"
            " created_at, vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                index.id,
                embedding.kind,
                embedding.ref,
                embedding.chunk_index,
                embedding.scope,
                embedding.parent,
                embedding.content_hash,
                index.dimension,
                embedding.created_at,
                embedding.vector,
            ),
        )
        vector_tables.add(connection, index, embedding.kind, [row[0][0]])


def _remove(connection: Connection, kind: SearchKind, rows: Sequence[tuple[int, int]]) -> None:
    """Remove embeddings, given as their id and their index."""
    for index_id in {index_id for _id, index_id in rows}:
        ids = [embedding_id for embedding_id, owner in rows if owner == index_id]
        vector_tables.remove(connection, embedding_indexes.find(connection, index_id), kind, ids)
        connection.executemany("DELETE FROM embeddings WHERE id = ?", [(embedding_id,) for embedding_id in ids])


def _required_active(connection: Connection) -> IndexRow:
    index = embedding_indexes.active(connection)
    if index is None:
        raise ValueError("there is no active index of vectors in this constellation")
    return index
