"""The nearest neighbours of a vector, from the active index alone.

Filters are part of the query: no result can be another owner's, also when the limit is one. Distances are exact in
every case. Up to some thousands of vectors are compared one by one; of more, `vector_codes` first chooses the few
hundred that come into question. Without numpy all are compared, which takes 12 ms for 10,000 vectors of 384 numbers and
130 ms for 100,000.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pattern_db import vector_codes
from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vector_codes import CodeCache

EXACT_ROWS_MAX = 2_000  # up to here every vector is compared; it takes 3 ms
# How many are compared exactly after a scan: the more rows there are, the more of them look alike to the first pass.
# Among ten thousand mixtures of real texts' vectors 99 % of the exact neighbours are found with so many, and among a
# hundred thousand with three times as many: the number grows with the root of the rows.
CANDIDATES_MIN = 200
CANDIDATES_PER_RESULT = 4
CANDIDATES_ROWS = 10_000
MORE_CANDIDATES = 4  # times as many, where a condition left too few
GONE_SHARE_MAX = 0.1  # of the candidates; if more were removed, the next search reads the codes again

CACHE = CodeCache()


class Neighbour(NamedTuple):
    """What a hit refers to, and its cosine distance (0 the same direction, 1 unrelated, 2 opposite)."""

    ref: str
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlCondition:
    """SQL that a row `e` of `embeddings` must satisfy (`e.ref` is the id of its text), with its named values.

    Names that begin with an underscore are reserved.
    """

    sql: str
    values: Mapping[str, str | int | float | bytes | None]


def packed(vector: Sequence[float]) -> bytes:
    """Return `vector` as the bytes that are stored: float32, little endian."""
    values = array("f", vector)
    if array("H", b"\x01\x00")[0] != 1:  # a big-endian machine
        values.byteswap()
    return values.tobytes()


def nearest(
    connection: Connection,
    kind: SearchKind,
    vector: bytes,
    scopes: Sequence[str] | None,
    limit: int,
    *,
    condition: SqlCondition | None = None,
) -> list[Neighbour]:
    """Return the `limit` nearest vectors of `kind`, nearest first, from the active index.

    Only those of the owners `scopes` (None: of all), and where `condition` holds. None without an index, or if
    its vectors have another length: it is of another model.
    """
    index = embedding_indexes.active(connection)
    if index is None or limit <= 0 or len(vector) != 4 * index.dimension:
        return []
    search = _ExactSearch(connection, index, kind, vector, scopes, condition)
    codes = CACHE.codes(connection, index, kind, scopes) if _may_be_many(connection, index, kind) else None
    if codes is None or (count := codes.count(scopes)) <= EXACT_ROWS_MAX:
        return search.all(limit)
    growth = math.sqrt(max(1.0, count / CANDIDATES_ROWS))
    wanted = round((CANDIDATES_MIN + CANDIDATES_PER_RESULT * limit) * growth)
    while True:
        ids = codes.nearest(vector, scopes, wanted)
        found, gone = search.among(ids, limit)
        if gone:
            codes.forget(gone)
            if len(gone) > len(ids) * GONE_SHARE_MAX:
                CACHE.drop(connection, index, kind)
        elif len(found) >= limit or len(ids) < wanted:
            return found
        else:
            wanted *= MORE_CANDIDATES


def _may_be_many(connection: Connection, index: IndexRow, kind: SearchKind) -> bool:
    """Return whether there may be more vectors than are compared one by one, and codes of them."""
    if not (vector_codes.is_possible() and index.has_bits):
        return False
    # Other indexes' rows count too: it need not be exact, and so it reads nothing but the index by scope.
    sql = "SELECT 1 FROM embeddings WHERE kind = ? LIMIT 1 OFFSET ?"
    return bool(fetch_all(connection, sql, (kind, EXACT_ROWS_MAX)))


@dataclass(frozen=True, slots=True)
class _ExactSearch:
    """One query, compared exactly with some rows of `embeddings`."""

    connection: Connection
    index: IndexRow
    kind: SearchKind
    vector: bytes
    scopes: Sequence[str] | None
    condition: SqlCondition | None

    def all(self, limit: int) -> list[Neighbour]:
        """Return the nearest of all embeddings."""
        rows: list[tuple[str, float]] = self.connection.execute(
            "SELECT e.ref, vec_distance_cosine(e.vector, :_vector) AS distance"
            f" FROM embeddings AS e WHERE e.kind = :_kind AND e.index_id = :_index AND {self._fits()}"
            " ORDER BY distance, e.id LIMIT :_limit",
            self._values() | {"_kind": self.kind.value, "_index": self.index.id, "_limit": limit},
        ).fetchall()  # type: ignore[assignment]  # the columns' types are the statement's business
        return [Neighbour(*row) for row in rows]

    def among(self, ids: Sequence[int], limit: int) -> tuple[list[Neighbour], list[int]]:
        """Return the nearest of the embeddings with these ids, and those ids that are no longer there."""
        # The order of the join is fixed: SQLite would rather walk through all embeddings of the kind.
        rows: list[tuple[float | None, int, str]] = self.connection.execute(
            f"SELECT CASE WHEN {self._fits()} THEN vec_distance_cosine(e.vector, :_vector) END, e.id, e.ref"
            " FROM json_each(:_ids) CROSS JOIN embeddings AS e ON e.id = value",
            self._values() | {"_ids": to_json(list(ids))},
        ).fetchall()  # type: ignore[assignment]  # the columns' types are the statement's business
        fitting = sorted([(distance, number, ref) for distance, number, ref in rows if distance is not None])[:limit]
        gone = sorted(set(ids) - {row[1] for row in rows}) if len(rows) < len(ids) else []
        return [Neighbour(ref, distance) for distance, _number, ref in fitting], gone

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
