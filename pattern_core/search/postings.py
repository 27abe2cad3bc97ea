"""Which messages hold which of a query's terms, and which of them hold the most telling ones.

A common word stands in tens of thousands of messages. Where numpy is installed it puts them together, in a tenth of
the time; few are put together without it, so that small constellations never load it. Both find the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPARSE = 10  # times as many rows as hold a term: then only those have a place
FEW = 1_000  # rows of all terms together that are put together without numpy


class Postings(Protocol):
    """The rows of all terms together."""

    def masks(self, rows: Iterable[int]) -> dict[int, int]:
        """Return for each of these rows that holds any term, which: bit n stands for term n."""
        ...

    def best(self, weights: Sequence[float], most: int) -> list[int]:
        """Return up to `most` rows by the weight of the terms that they hold, best first; of equals the newest."""
        ...


def gather(posted: Sequence[tuple[int, str]]) -> Postings:
    """Put together what was found: number of a term (below 64) and its rows, each once, as a JSON array."""
    if is_numpy_there() and sum(text.count(",") for _number, text in posted) > FEW:
        return Many(posted)
    return Few([(number, json.loads(text)) for number, text in posted])


@cache
def is_numpy_there() -> bool:
    """Return whether numpy is installed; every local model brings it."""
    return find_spec("numpy") is not None


class Few:
    """A dictionary of rows."""

    def __init__(self, found: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._masks: dict[int, int] = {}
        # The longest first: a dictionary is made of a list many times faster than it is changed row by row.
        for number, rows in sorted(found, key=lambda pair: -len(pair[1])):
            bit = 1 << number
            if self._masks:
                for row in rows:
                    self._masks[row] = self._masks.get(row, 0) | bit
            else:
                self._masks = dict.fromkeys(rows, bit)

    def masks(self, rows: Iterable[int]) -> dict[int, int]:
        """See `Postings`."""
        return {row: self._masks[row] for row in rows if row in self._masks}

    def best(self, weights: Sequence[float], most: int) -> list[int]:
        """See `Postings`."""
        counts = Counter(self._masks.values())
        values = {mask: sum([weights[number] for number in bits(mask)]) for mask in counts}
        chosen: set[int] = set()
        left, last = most, 0.0
        for mask in sorted(values, key=values.__getitem__, reverse=True):
            if left <= 0 and values[mask] < last:
                break
            chosen.add(mask)
            left, last = left - counts[mask], values[mask]
        found = [(-values[mask], -row) for row, mask in self._masks.items() if mask in chosen]
        found.sort()
        return [-row for _value, row in found[:most]]


class Many:
    """An array with a place for each row that there may be, 16 bytes a row while a search lasts; if only few of them
    hold a term, with a place for each of those.
    """

    def __init__(self, posted: Sequence[tuple[int, str]]) -> None:
        import numpy as np  # 0.1 s and 20 MB that a small constellation never needs

        self._np = np
        rows = [(number, np.fromstring(text[1:-1], dtype="i8", sep=",")) for number, text in posted if len(text) > 2]
        last = max((int(some.max()) for _number, some in rows), default=0)
        is_sparse = last > SPARSE * sum(len(some) for _number, some in rows)
        self._own: NDArray[np.int64] | None = (
            np.unique(np.concatenate([some for _, some in rows])) if is_sparse else None
        )
        self._found: list[tuple[int, NDArray[np.int64]]] = [(number, self._places(some)) for number, some in rows]
        self._masks: NDArray[np.uint64] = np.zeros(last + 1 if self._own is None else len(self._own), "u8")
        for number, places in self._found:
            self._masks[places] |= np.uint64(1 << number)

    def masks(self, rows: Iterable[int]) -> dict[int, int]:
        """See `Postings`."""
        if self._own is None:
            wanted = [row for row in rows if row < len(self._masks)]
            places: Sequence[int] | NDArray[np.int64] = wanted
        else:
            asked = self._np.array(list(rows), "i8")
            there = asked[self._np.isin(asked, self._own)]
            wanted, places = there.tolist(), self._places(there)
        masks: list[int] = self._masks[places].tolist() if wanted else []
        return {row: mask for row, mask in zip(wanted, masks, strict=True) if mask}

    def best(self, weights: Sequence[float], most: int) -> list[int]:
        """See `Postings`."""
        np = self._np
        values = np.zeros(len(self._masks), "f8")
        for number, places in sorted(self._found, key=lambda pair: pair[0]):
            values[places] += weights[number]
        there = self._masks.nonzero()[0]
        found = values[there]
        if len(there) > most:
            is_good = found >= np.partition(found, len(found) - most)[len(found) - most]
            there, found = there[is_good], found[is_good]
        chosen = there[np.lexsort((-there, -found))][:most]
        ordered: list[int] = (chosen if self._own is None else self._own[chosen]).tolist()
        return ordered

    def _places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self._own is None else self._own.searchsorted(rows)


@lru_cache(maxsize=4096)
def bits(mask: int) -> tuple[int, ...]:
    """Return the numbers of the bits that are set, lowest first."""
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)
