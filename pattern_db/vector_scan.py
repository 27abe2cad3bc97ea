"""The first pass over many vectors: which few are worth an exact distance, told from one bit per number.

All codes are compared at once with numpy, from memory (`vector_cache` keeps them). vec0's own search picks the best k
in a time that grows with k: 100 candidates among 100,000 rows took it 75 ms where this takes 4. So the codes are read
from vec0's chunks as it stores them.

Two passes narrow down: by the number of differing bits, then, for the best eighth at most, by the sum of the query's
numbers with the signs of the code, which tells neighbours apart far better. `tests/bench/search.py` measures how many
of the exact neighbours are found.

Source of the layout: sqlite-vec 0.1.9, `<table>_chunks` (chunk_id, partition00, validity: one bit per row, the lowest
first; rowids: int64, little endian) and `<table>_vector_chunks00` (the codes in the same order, the lowest bit first).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECOND_PASS = 6  # rows whose signs are summed, per candidate that is asked for; more found no more
BYTES_BESIDE_CODE = 12  # of each row in memory: its id and its owner
_GONE = 0  # the owner of a row that was removed


@cache
def is_possible() -> bool:
    """Whether numpy is installed (every local model brings it) and reads the codes as they are stored."""
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
        self._gone = 0

    def __len__(self) -> int:
        return len(self._ids) - self._gone

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
        np = self._np
        places = self._ids.searchsorted(np.array(ids, "<i8"))
        self._gone += int((self._owners[places] != _GONE).sum())
        self._owners[places] = _GONE

    def count(self, scopes: Sequence[str] | None) -> int:
        """How many belong to these owners; None for all."""
        return len(self) if scopes is None else int(self._allowed(scopes).sum())

    def compare(self, query: bytes, scopes: Sequence[str] | None) -> Scan:
        """Compare all that belong to these owners (None: to anybody) with a vector (float32, little endian)."""
        np = self._np
        numbers = np.frombuffer(query, "<f4")
        own = np.packbits(numbers > 0, bitorder="little").view(self._word)
        differing = np.bitwise_count(self._words[0] ^ own[0]).astype("u2")
        for word in range(1, len(own)):
            differing += np.bitwise_count(self._words[word] ^ own[word])
        if scopes is not None or self._gone:
            differing[~self._allowed(scopes)] = len(numbers) + 1  # more bits than there are
        return Scan(self._ids, self._words, differing, numbers)

    def _allowed(self, scopes: Sequence[str] | None) -> NDArray[np.bool_]:
        np = self._np
        is_allowed = np.full(len(self._numbers) + 1, scopes is None)
        is_allowed[[self._numbers[scope] for scope in scopes or () if scope in self._numbers]] = True
        is_allowed[_GONE] = False
        allowed: NDArray[np.bool_] = is_allowed[self._owners]
        return allowed

    def _in_words(self, codes: NDArray[np.uint8]) -> NDArray[Any]:
        return self._np.ascontiguousarray(self._np.ascontiguousarray(codes).view(self._word).T)


class Scan:
    """All codes beside one query."""

    def __init__(
        self,
        ids: NDArray[np.int64],
        words: NDArray[Any],
        differing: NDArray[np.uint16],
        query: NDArray[np.float32],
    ) -> None:
        import numpy as np

        self._np = np
        self._ids, self._words, self._query = ids, words, query
        self._differing = differing
        tally = np.bincount(differing, minlength=len(query) + 2)
        self._within: NDArray[np.intp] = tally[: len(query) + 1].cumsum()  # rows that differ in so many bits or fewer

    def __len__(self) -> int:
        return int(self._within[-1])

    def best(self, count: int) -> list[int]:
        """Ids of the `count` embeddings that seem nearest, in the order of the ids; all if there are not more."""
        if count >= len(self):
            chosen = self._differing <= len(self._query)
        else:
            # All that differ in as many bits as the last one: which of them come first in memory must not matter.
            bound = self._within.searchsorted(min(count * SECOND_PASS, len(self)))
            places = (self._differing <= bound).nonzero()[0]
            chosen = places[self._sums(places).argpartition(-count)[-count:]] if count < len(places) else places
            chosen.sort()
        ids: list[int] = self._ids[chosen].tolist()
        return ids

    def _sums(self, places: NDArray[np.intp]) -> NDArray[np.float32]:
        """For the code at each place the sum of the query's numbers, each with the sign that the code's bit says."""
        np = self._np
        words = self._words.take(places, axis=1)
        codes = words.view("u1").reshape(len(words), len(places), -1).transpose(0, 2, 1).reshape(-1, len(places))
        signs = np.unpackbits(np.arange(256, dtype="u1")[:, None], axis=1, bitorder="little").astype("f4") * 2 - 1
        tables = self._query.reshape(-1, 8) @ signs.T  # what each value of each byte adds
        total = np.zeros(len(places), "f4")
        for table, code in zip(tables, codes, strict=True):
            total += table[code]
        return total


def read(connection: Connection, table: str, dimension: int, scopes: Sequence[str] | None = None) -> Codes:
    """The codes that a vec0 table of bits holds, of these owners alone if any are given."""
    import numpy as np

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
    codes = np.frombuffer(b"".join([chunk[3] for chunk in chunks]), "u1").reshape(len(ids), dimension // 8)
    each = len(ids) // len(chunks) if chunks else 0
    return Codes(ids[is_there], owners.repeat(each)[is_there], numbers, codes[is_there])


def size_of(connection: Connection, table: str, dimension: int) -> int:
    """About how many bytes the codes of a vec0 table take in memory."""
    rows = fetch_all(connection, f"SELECT coalesce(sum(size), 0) FROM {table}_chunks")
    return int(rows[0][0]) * (dimension // 8 + BYTES_BESIDE_CODE)
