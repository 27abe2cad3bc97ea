"""The codes of vectors that searches read last, kept in memory: reading 100,000 of them anew takes 15 ms each time.

They are up to date at every search, whoever wrote meanwhile, without a word from the writer: ids of embeddings are
never given twice (AUTOINCREMENT), so that what is newer than the newest one is what was added, and a candidate that is
no longer there was removed. A vector that takes another's place has an id of its own.

What is kept belongs to one connection and goes with it. All connections together keep `BYTES_MAX`; what was not used
for longest goes first. Constellations of few vectors never come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from weakref import ref

import apsw

from pattern_db import vector_scan, vector_tables
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vector_scan import Codes

BYTES_MAX = 64 * 1024 * 1024  # a million vectors of 384 numbers
ADDED_MAX = 2_000  # more new embeddings than this cost more than all codes anew
_PER_CONNECTION_MAX = 8  # kinds, of the active index and of one before it


@dataclass(slots=True)
class _Kept:
    codes: Codes
    seen: int  # all embeddings up to this id were looked at
    used: int


_Own = dict[tuple[int, SearchKind], _Kept]


class VectorCache:
    """Codes by connection, index and kind. Each connection is one thread's at a time; several may ask at once.

    What they share is changed by single operations on dictionaries, which no other thread can come between.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._clock = count()
        self._kept: dict[ref[Connection], _Own] = {}

    def codes(
        self, connection: Connection, index: IndexRow, kind: SearchKind, scopes: Sequence[str] | None
    ) -> Codes | None:
        """The codes as they are at this moment, those of `scopes` (None: of all) at least. None if the index has no
        codes of that kind: derived ones can be lost.
        """
        newest = _newest(connection)
        kept = self._find(connection, index, kind)
        # What this connection has not committed yet may be taken back, and its ids be given again.
        is_settled = connection.txn_state("main") != apsw.SQLITE_TXN_WRITE
        if kept is not None and is_settled and newest - kept.seen <= ADDED_MAX:
            if newest > kept.seen:
                kept.codes.add(_between(connection, index, kind, kept.seen, newest))
                kept.seen = newest
                self._make_room()
            return kept.codes
        table = vector_tables.name(index, kind)
        if table not in vector_tables.existing(connection):
            return None
        if not is_settled or vector_scan.size_of(connection, table, index.dimension) > self._bytes_max:
            return vector_scan.read(connection, table, index.dimension, scopes)
        codes = vector_scan.read(connection, table, index.dimension)
        self._keep(connection, index, kind, _Kept(codes, max(newest, codes.newest), next(self._clock)))
        return codes

    def holds(self, connection: Connection, index: IndexRow, kind: SearchKind) -> bool:
        """Whether there are codes of before."""
        return self._find(connection, index, kind) is not None

    def drop(self, connection: Connection, index: IndexRow, kind: SearchKind) -> None:
        """Have the codes read anew: much of what they stand for is gone."""
        self._kept.get(ref(connection), {}).pop((index.id, kind), None)

    @property
    def size(self) -> int:
        """Bytes of memory, all connections together."""
        return sum(kept.codes.size for _own, _key, kept in self._all())

    def _find(self, connection: Connection, index: IndexRow, kind: SearchKind) -> _Kept | None:
        kept = self._kept.get(ref(connection), {}).get((index.id, kind))
        if kept is not None:
            kept.used = next(self._clock)
        return kept

    def _keep(self, connection: Connection, index: IndexRow, kind: SearchKind, kept: _Kept) -> None:
        own = self._kept.get(ref(connection))
        if own is None:
            own = self._kept[ref(connection, self._forget)] = {}
        own[index.id, kind] = kept
        for key, _kept in sorted(own.items(), key=lambda one: one[1].used)[:-_PER_CONNECTION_MAX]:
            own.pop(key, None)
        self._make_room()

    def _forget(self, closed: ref[Connection]) -> None:
        self._kept.pop(closed, None)

    def _make_room(self) -> None:
        everything = sorted(self._all(), key=lambda one: one[2].used)
        size = sum(kept.codes.size for _own, _key, kept in everything)
        for own, key, kept in everything:
            if size <= self._bytes_max:
                return
            own.pop(key, None)
            size -= kept.codes.size

    def _all(self) -> list[tuple[_Own, tuple[int, SearchKind], _Kept]]:
        return [(own, key, kept) for own in list(self._kept.values()) for key, kept in list(own.items())]


CACHE = VectorCache()


def _newest(connection: Connection) -> int:
    return int(fetch_all(connection, "SELECT coalesce(max(id), 0) FROM embeddings")[0][0])


def _between(
    connection: Connection, index: IndexRow, kind: SearchKind, after: int, last: int
) -> list[tuple[int, str, bytes]]:
    # The plus signs keep SQLite from walking through all embeddings of the kind.
    return fetch_all(
        connection,
        "SELECT id, scope, vec_quantize_binary(vector) FROM embeddings"
        " WHERE id > ? AND id <= ? AND +kind = ? AND +index_id = ? ORDER BY id",
        (after, last, kind, index.id),
    )
