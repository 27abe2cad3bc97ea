"""One bit per number of many vectors, in memory: which few of them are worth an exact distance.

All codes are compared at once with numpy. vec0's own search chooses the best k in a time that grows with k: 100
candidates among 100,000 rows took it 75 ms where this takes 4. So the codes are read from vec0's chunks as it stores
them, and kept for the next search: reading 100,000 of them takes 15 ms each time.

Two passes narrow down: by the number of differing bits, then, for the best eighth at most, by the sum of the query's
numbers with the signs of the code, which tells neighbours apart far better. `tests/bench/search.py` measures how many
of the exact neighbours are found.

Source of the layout: sqlite-vec 0.1.9, `<table>_chunks` (chunk_id, partition00, validity: one bit per row, the lowest
first; rowids: int64, little endian) and `<table>_vector_chunks00` (the codes in the same order, the lowest bit first).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import apsw

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECOND_PASS = 6  # rows whose signs are summed, per candidate that is asked for; more found nothing else
BYTES_MAX = 64 * 1024 * 1024  # of all codes that are kept: a million vectors of 384 numbers
BYTES_BESIDE_CODE = 12  # of each row in memory: its id and its owner
ADDED_MAX = 2_000  # reading more new embeddings than this takes longer than reading all codes again
_GONE = 0  # the owner of a row that was removed


@cache
def is_possible() -> bool:
    """Return whether numpy is installed (every local model brings it) and reads the codes as they are stored."""
    return sys.byteorder == "little" and find_spec("numpy") is not None


class Codes:
    """The codes of one index and kind, in the order of the embeddings' ids. Not to be used by two threads at once."""

    def __init__(
        self, ids: NDArray[np.int64], owners: NDArray[np.int32], numbers: dict[str, int], codes: NDArray[np.uint8]
    ) -> None:
        import numpy as np  # 0.1 s and 20 MB that a small constellation never needs

        self._np = np
        self._word = "<u8" if codes.shape[1] % 8 == 0 else "u1"
        order = ids.argsort(kind="stable")  # so that what is found does not depend on where vec0 put a row
        self._ids = ids[order]
        self._owners = owners[order]
        self._numbers = numbers
        # Word by word: the same word of all codes side by side is compared ten times as fast.
        self._words: NDArray[Any] = self._in_words(codes[order])
        self._has_gone = False

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return int(self._ids.nbytes + self._owners.nbytes + self._words.nbytes)

    @property
    def newest(self) -> int:
        """The greatest id; 0 without any."""
        return int(self._ids[-1]) if len(self._ids) else 0

    def add(self, rows: Sequence[tuple[int, str, bytes]]) -> None:
        """Take in newer embeddings: id, owner and code, in the order of the ids."""
        np = self._np
        if not rows:
            return
        codes = np.frombuffer(b"".join([row[2] for row in rows]), "u1").reshape(len(rows), -1)
        owners = [self._numbers.setdefault(row[1], len(self._numbers) + 1) for row in rows]
        self._ids = np.concatenate([self._ids, np.array([row[0] for row in rows], "<i8")])
        self._owners = np.concatenate([self._owners, np.array(owners, "i4")])
        self._words = np.concatenate([self._words, self._in_words(codes)], axis=1)

    def forget(self, ids: Sequence[int]) -> None:
        """Leave out embeddings that were removed."""
        self._has_gone = True
        self._owners[self._ids.searchsorted(self._np.array(ids, "<i8"))] = _GONE

    def count(self, scopes: Sequence[str] | None) -> int:
        """Return how many belong to these owners; None for all."""
        return int(self._allowed(scopes).sum()) if scopes is not None or self._has_gone else len(self._ids)

    def nearest(self, query: bytes, scopes: Sequence[str] | None, count: int) -> list[int]:
        """Return the ids of the `count` embeddings of these owners (None: of all) that seem nearest to a vector.

        The vector is float32, little endian; the ids come in their order. All are returned if there are not more.
        """
        np = self._np
        numbers = np.frombuffer(query, "<f4")
        differing = self._differing(numbers)
        if scopes is not None or self._has_gone:
            differing[~self._allowed(scopes)] = len(numbers) + 1  # more bits than there are
        within = np.bincount(differing, minlength=len(numbers) + 2)[: len(numbers) + 1].cumsum()
        if count >= within[-1]:
            chosen = (differing <= len(numbers)).nonzero()[0]
        else:
            # All that differ in as many bits as the last one: which of them come first in memory must not matter.
            bound = within.searchsorted(min(count * SECOND_PASS, within[-1]))
            places = (differing <= bound).nonzero()[0]
            chosen = places[self._sums(numbers, places).argpartition(-count)[-count:]]
            chosen.sort()
        ids: list[int] = self._ids[chosen].tolist()
        return ids

    def _differing(self, query: NDArray[np.float32]) -> NDArray[np.uint16]:
        """Return in how many bits each code differs from the query's."""
        np = self._np
        own = np.packbits(query > 0, bitorder="little").view(self._word)
        differing = np.bitwise_count(self._words[0] ^ own[0]).astype("u2")
        for word in range(1, len(own)):
            differing += np.bitwise_count(self._words[word] ^ own[word])
        return differing

    def _sums(self, query: NDArray[np.float32], places: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return for the code at each place the sum of the query's numbers, each with the sign that its bit says."""
        np = self._np
        words = self._words.take(places, axis=1)
        codes = words.view("u1").reshape(len(words), len(places), -1).transpose(0, 2, 1).reshape(-1, len(places))
        signs = np.unpackbits(np.arange(256, dtype="u1")[:, None], axis=1, bitorder="little").astype("f4") * 2 - 1
        tables = query.reshape(-1, 8) @ signs.T  # what each value of each byte adds
        total = np.zeros(len(places), "f4")
        for table, code in zip(tables, codes, strict=True):
            total += table[code]
        return total

    def _allowed(self, scopes: Sequence[str] | None) -> NDArray[np.bool_]:
        is_allowed = self._np.full(len(self._numbers) + 1, scopes is None)
        is_allowed[[self._numbers[scope] for scope in scopes or () if scope in self._numbers]] = True
        is_allowed[_GONE] = False
        allowed: NDArray[np.bool_] = is_allowed[self._owners]
        return allowed

    def _in_words(self, codes: NDArray[np.uint8]) -> NDArray[Any]:
        return self._np.ascontiguousarray(self._np.ascontiguousarray(codes).view(self._word).T)


@dataclass(slots=True)
class _Kept:
    codes: Codes
    seen: int  # all embeddings up to this id were looked at


_Key: TypeAlias = tuple[ref[Connection], int, SearchKind]


class CodeCache:
    """Codes by connection, index and kind; those not used for longest go when all together exceed `bytes_max`.

    They are up to date at every search, also if another connection wrote meanwhile: ids of embeddings are never given
    twice (AUTOINCREMENT), so that what is newer than the newest one is what was added, and a candidate that is no
    longer there was removed. A vector that takes another's place has an id of its own.

    Each connection is one thread's at a time, and what is kept for it goes with it. What threads share is changed by
    single operations on the dictionary, which no other thread can come between.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[_Key, _Kept] = {}  # the one used last is the last

    def codes(
        self, connection: Connection, index: IndexRow, kind: SearchKind, scopes: Sequence[str] | None
    ) -> Codes | None:
        """Return the codes as they are at this moment, those of `scopes` (None: of all) at least.

        None if the index has no codes of that kind: derived ones can be lost.
        """
        key = (ref(connection, self._forget), index.id, kind)
        newest = int(fetch_all(connection, "SELECT coalesce(max(id), 0) FROM embeddings")[0][0])
        kept = self._kept.pop(key, None)
        # What this connection has not committed yet may be taken back, and its ids be given again.
        is_settled = connection.txn_state("main") != apsw.SQLITE_TXN_WRITE
        if kept is None or not is_settled or newest - kept.seen > ADDED_MAX:
            if index.table(kind) not in embedding_indexes.tables(connection):
                return None
            if not is_settled or _bytes(connection, index, kind) > self._bytes_max:
                return read(connection, index, kind, scopes)
            codes = read(connection, index, kind)
            kept = _Kept(codes, max(newest, codes.newest))
        elif newest > kept.seen:
            kept.codes.add(_between(connection, index, kind, kept.seen, newest))
            kept.seen = newest
        self._kept[key] = kept
        self._make_room()
        return kept.codes

    def drop(self, connection: Connection, index: IndexRow, kind: SearchKind) -> None:
        """Have the codes read again by the next search: much of what they stand for is gone."""
        self._kept.pop((ref(connection), index.id, kind), None)

    @property
    def size(self) -> int:
        """Bytes of memory, all connections together."""
        return sum(kept.codes.size for kept in list(self._kept.values()))

    def _forget(self, closed: ref[Connection]) -> None:
        for key in list(self._kept):
            if key[0] is closed:
                self._kept.pop(key, None)

    def _make_room(self) -> None:
        size = self.size
        for key, kept in list(self._kept.items()):
            if size <= self._bytes_max:
                return
            self._kept.pop(key, None)
            size -= kept.codes.size


def read(connection: Connection, index: IndexRow, kind: SearchKind, scopes: Sequence[str] | None = None) -> Codes:
    """Return the codes that the index's vec0 table holds, of these owners alone if any are given."""
    import numpy as np

    table = index.table(kind)
    chunks = fetch_all(
        connection,
        f"SELECT c.partition00, c.rowids, c.validity, v.vectors FROM {table}_chunks AS c"
        f" JOIN {table}_vector_chunks00 AS v ON v.rowid = c.chunk_id"
        " WHERE ?1 IS NULL OR c.partition00 IN (SELECT value FROM json_each(?1))",
        (None if scopes is None else to_json(list(scopes)),),
    )
    numbers: dict[str, int] = {}
    owners = np.array([numbers.setdefault(chunk[0], len(numbers) + 1) for chunk in chunks], "i4")
    ids = np.frombuffer(b"".join([chunk[1] for chunk in chunks]), "<i8")
    validity = np.frombuffer(b"".join([chunk[2] for chunk in chunks]), "u1")
    is_there: NDArray[np.bool_] = np.unpackbits(validity, bitorder="little").astype("?")
    codes = np.frombuffer(b"".join([chunk[3] for chunk in chunks]), "u1").reshape(len(ids), index.dimension // 8)
    each = len(ids) // len(chunks) if chunks else 0
    return Codes(ids[is_there], owners.repeat(each)[is_there], numbers, codes[is_there])


def _bytes(connection: Connection, index: IndexRow, kind: SearchKind) -> int:
    """Return about how many bytes the codes of a vec0 table take in memory."""
    rows = fetch_all(connection, f"SELECT coalesce(sum(size), 0) FROM {index.table(kind)}_chunks")
    return int(rows[0][0]) * (index.dimension // 8 + BYTES_BESIDE_CODE)


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
