"""The nearest neighbours of a vector, from the active index alone.

Filters are part of the query: no result can be another owner's, also when the limit is one. Distances are exact in
every case. Up to some thousands of vectors are compared one by one; if there are more, a few hundred candidates are
chosen by their codes, one bit per number: to compare all takes 12 ms for 10,000 vectors of 384 numbers and 130 ms for
100,000.

All codes are compared at once with numpy. vec0's own search chooses the best k in a time that grows with k: it needed
75 ms for 100 candidates among 100,000 rows, and this needs 10. So the codes are read directly from vec0's chunks. Two
passes narrow down: by the number of differing bits, then, for the best eighth at most, by the sum of the query's
numbers with the signs of the code, which distinguishes neighbours far better. `tests/bench/search.py` measures how many
of the exact neighbours are found.

Source of the layout: sqlite-vec 0.1.9, `<table>_chunks` (chunk_id, partition00, validity: one bit per row, the lowest
first; rowids: int64, little endian) and `<table>_vector_chunks00` (the codes in the same order, the lowest bit first).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXACT_ROWS_MAX = 2_000  # up to here every vector is compared, in 3 ms
# How many are compared exactly after a scan: with more rows, more of them are equal in the first pass.
# Among ten thousand mixtures of real texts' vectors 99 % of the exact neighbours are found with so many, and among a
# hundred thousand with three times as many: the number grows with the root of the rows.
CANDIDATES_MIN = 200
CANDIDATES_PER_RESULT = 4
CANDIDATES_ROWS = 10_000
MORE_CANDIDATES = 4  # times as many, if a condition left too few
SECOND_PASS = 6  # rows with summed signs per requested candidate; more had no effect


class Neighbour(NamedTuple):
    """The reference of a hit, and its cosine distance (0 the same direction, 1 unrelated, 2 opposite)."""

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

    Only those of the owners `scopes` (None: all) that satisfy `condition`. None without an index, or if its vectors
    have another length: they are of another model.
    """
    index = embedding_indexes.active(connection)
    if index is None or limit <= 0 or len(vector) != 4 * index.dimension:
        return []
    search = _ExactSearch(connection, index, kind, vector, scopes, condition)
    codes = read_codes(connection, index, kind, scopes) if _may_be_many(connection, index, kind) else None
    if codes is None or len(codes.ids) <= EXACT_ROWS_MAX:
        return search.all(limit)
    growth = math.sqrt(max(1.0, len(codes.ids) / CANDIDATES_ROWS))
    wanted = round((CANDIDATES_MIN + CANDIDATES_PER_RESULT * limit) * growth)
    while True:
        found = search.among(codes.nearest(vector, wanted), limit)
        if len(found) >= limit or wanted >= len(codes.ids):
            return found
        wanted *= MORE_CANDIDATES


def of_messages(connection: Connection, vector: bytes, numbers: Sequence[int]) -> dict[int, tuple[float, bytes]]:
    """Return the cosine and the words' codes of each of these messages (by row) that the active index holds."""
    index = embedding_indexes.active(connection)
    if index is None or len(vector) != 4 * index.dimension:
        return {}
    rows = connection.execute(
        "SELECT m.row, 1 - vec_distance_cosine(e.vector, ?), e.codes"
        " FROM json_each(?) CROSS JOIN messages AS m ON m.row = value"
        " CROSS JOIN embeddings AS e ON e.kind = 'message' AND e.ref = m.id AND e.index_id = ?",
        (vector, to_json(list(numbers)), index.id),
    )
    found: dict[int, tuple[float, bytes]] = {}
    for row, cosine, codes in rows:
        before, others = found.get(row, (cosine, b""))
        found[row] = max(before, cosine), others + (codes or b"")
    return found


def alike(
    codes: Mapping[int, bytes],
    query: bytes,
    dimension: int,
    beside: Mapping[int, Sequence[int]],
    shares: Sequence[float],
) -> dict[int, float]:
    """Return how near each text in `beside` is to the query, word by word: from -2.0 (opposite) to 2.0.

    For each word of the query the nearest word counts, once of the text and once of the text or its neighbours (numbers
    without `codes` are ignored); both have the same weight.
    """
    place = {row: number for number, row in enumerate(row for row, words in codes.items() if words)}
    rows = [row for row in beside if row in place]
    if not rows or not query:
        return {}
    import numpy as np

    coded = [codes[row] for row in place]
    asked, words = (np.frombuffer(data, "<u8").reshape(-1, dimension // 64) for data in (query, b"".join(coded)))
    differing: NDArray[np.uint16] = np.zeros((len(asked), len(words)), "u2")
    for own, other in zip(asked.T, words.T, strict=True):
        differing += np.bitwise_count(own[:, None] ^ other[None, :])
    starts = np.cumsum([0, *[len(one) * 8 // dimension for one in coded]])[:-1]
    near = np.cos(np.minimum.reduceat(differing, starts, axis=1).T * (math.pi / dimension))
    near = np.vstack([near, -np.ones(len(asked))])
    alone = near[[place[row] for row in rows]]
    best = alone
    for number, share in enumerate(shares):
        best = np.maximum(best, share * near[[place.get(beside[row][number], -1) for row in rows]])
    return dict(zip(rows, (alone + best).mean(axis=1).tolist(), strict=True))


def farthest(connection: Connection, vector: bytes, count: int) -> float:
    """Return the cosine of the farthest of `count` texts, spread evenly over the active index: a lower bound.

    Nearer to 0.0 if there are fewer texts; 0.0 without an index.
    """
    index = embedding_indexes.active(connection)
    bounds = connection.execute("SELECT (SELECT min(id) FROM embeddings), (SELECT max(id) FROM embeddings)").get
    if index is None or bounds[0] is None or len(vector) != 4 * index.dimension:
        return 0.0
    first, last = bounds
    ids = to_json([first + (last - first) * number // count for number in range(count)])
    found, least = connection.execute(
        "SELECT count(*), min(1 - vec_distance_cosine(vector, ?)) FROM embeddings"
        " WHERE id IN (SELECT value FROM json_each(?)) AND index_id = ?",
        (vector, ids, index.id),
    ).get
    return float(least) * found / count if found else 0.0


def _may_be_many(connection: Connection, index: IndexRow, kind: SearchKind) -> bool:
    """Return whether there may be more vectors than are compared one by one, with codes."""
    if not index.has_bits:
        return False
    # Rows of other indexes are included: it need not be exact, and so it reads only the index by scope.
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
        return self._nearest("embeddings AS e WHERE e.kind = :_kind AND e.index_id = :_index AND", limit)

    def among(self, ids: Sequence[int], limit: int) -> list[Neighbour]:
        """Return the nearest of the embeddings with these ids."""
        # The order of the join is fixed: SQLite would rather walk through all embeddings of the kind.
        return self._nearest("json_each(:_ids) CROSS JOIN embeddings AS e ON e.id = value WHERE", limit, ids)

    def _nearest(self, source: str, limit: int, ids: Sequence[int] = ()) -> list[Neighbour]:
        condition = "1" if self.condition is None else self.condition.sql
        scope = "1" if self.scopes is None else "e.scope IN (SELECT value FROM json_each(:_scopes))"
        # The condition is asked in the order of the distances, until there are enough: it looks into other tables. The
        # inner limit keeps SQLite from asking it of every row.
        rows = self.connection.execute(
            "SELECT ref, distance FROM (SELECT e.ref, vec_distance_cosine(e.vector, :_vector) AS distance"
            f" FROM {source} {scope} ORDER BY distance, e.id LIMIT -1) AS e WHERE {condition} LIMIT :_limit",
            {
                **({} if self.condition is None else self.condition.values),
                "_vector": self.vector,
                "_scopes": None if self.scopes is None else to_json(list(self.scopes)),
                "_kind": self.kind.value,
                "_index": self.index.id,
                "_ids": to_json(list(ids)),
                "_limit": limit,
            },
        )
        return [Neighbour(ref, distance) for ref, distance in rows]


@dataclass(frozen=True, slots=True)
class Codes:
    """Ids of embeddings, the row of `words` with the code of each, and all rows, including empty ones."""

    ids: NDArray[np.int64]
    rows: NDArray[np.intp]
    words: NDArray[Any]

    def nearest(self, query: bytes, count: int) -> list[int]:
        """Return the ids of the `count` (or all) probably nearest embeddings to a vector (float32, little endian)."""
        import numpy as np

        chosen = self.ids
        if count < len(self.ids):
            numbers = np.frombuffer(query, "<f4")
            differing = self.differing(np.packbits(numbers > 0, bitorder="little").view(self.words.dtype))
            # All that differ in as many bits as the last one: their order in memory must not matter.
            last = min(count * SECOND_PASS, len(self.ids)) - 1
            places = (differing <= np.partition(differing, last)[last]).nonzero()[0]
            chosen = self.ids[places[self._sums(numbers, places).argpartition(-count)[-count:]]]
        found: list[int] = chosen.tolist()
        return found

    def differing(self, own: NDArray[Any]) -> NDArray[np.uint16]:
        """Return the number of bits in which each code differs from `own`."""
        import numpy as np

        total: NDArray[np.uint16] = np.zeros(len(self.words), "u2")
        for column, word in enumerate(own):  # `sum(axis=1)` is three times slower
            total += np.bitwise_count(self.words[:, column] ^ word)
        return total[self.rows]

    def _sums(self, query: NDArray[np.float32], places: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return for each code the sum of the query's numbers, each with the sign of its bit."""
        import numpy as np

        codes = np.ascontiguousarray(self.words[self.rows[places]].view("u1").T)
        signs = np.unpackbits(np.arange(256, dtype="u1")[:, None], axis=1, bitorder="little").astype("f4") * 2 - 1
        tables = query.reshape(-1, 8) @ signs.T  # what each value of each byte adds
        total: NDArray[np.float32] = np.zeros(len(places), "f4")
        for table, code in zip(tables, codes, strict=True):
            total += table[code]
        return total


def read_codes(
    connection: Connection, index: IndexRow, kind: SearchKind, scopes: Sequence[str] | None = None
) -> Codes | None:
    """Return the codes of the index's embeddings, only of these owners if given.

    None if the index has no codes of that kind: derived ones can be lost.
    """
    import numpy as np  # 0.1 s and 20 MB that a small constellation never needs

    table = index.table(kind)
    if table not in embedding_indexes.tables(connection):
        return None
    chunks = fetch_all(
        connection,
        f"SELECT c.rowids, c.validity, v.vectors FROM {table}_chunks AS c"
        f" JOIN {table}_vector_chunks00 AS v ON v.rowid = c.chunk_id"
        " WHERE ?1 IS NULL OR c.partition00 IN (SELECT value FROM json_each(?1))",
        (None if scopes is None else to_json(list(scopes)),),
    )
    ids, validity, codes = (b"".join([chunk[part] for chunk in chunks]) for part in range(3))
    rows = np.unpackbits(np.frombuffer(validity, "u1"), bitorder="little").nonzero()[0]
    bits = 64 if index.dimension % 64 == 0 else 8
    words = np.frombuffer(codes, f"<u{bits // 8}").reshape(-1, index.dimension // bits)
    return Codes(np.frombuffer(ids, "<i8")[rows], rows, words)
