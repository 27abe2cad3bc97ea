"""Which messages hold which of a query's terms, and which of them hold the most telling ones.

A common word occurs in tens of thousands of messages. Numpy combines them, in a tenth of the time; a few are combined
without it, so that small constellations never load it. The results are equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEW = 1_000  # rows of all terms together that are put together without numpy


class Few:
    """The rows of all terms together, as a dictionary."""

    def __init__(self, posted: Sequence[tuple[int, str]]) -> None:
        self._masks: dict[int, int] = {}
        for number, text in posted:
            bit = 1 << number
            for row in json.loads(text):
                self._masks[row] = self._masks.get(row, 0) | bit

    def masks(self, rows: Iterable[int]) -> dict[int, int]:
        """Return for each of these rows that holds any term, which: bit n stands for term n."""
        return {row: self._masks[row] for row in rows if row in self._masks}

    def best(self, weights: Sequence[float], most: int) -> list[int]:
        """Return up to `most` rows by the weight of the terms that they hold, best first; of equals the newest."""
        values = {mask: sum([weights[number] for number in bits(mask)]) for mask in set(self._masks.values())}
        found = sorted([(-values[mask], -row) for row, mask in self._masks.items()])
        return [-row for _value, row in found[:most]]


class Many:
    """The same as arrays with a place for each row that there may be, 16 bytes a row while a search lasts."""

    def __init__(self, posted: Sequence[tuple[int, str]]) -> None:
        import numpy as np  # 0.1 s and 20 MB that a small constellation never needs

        self._np = np
        self._found: list[tuple[int, NDArray[np.int64]]] = [
            (number, np.fromstring(text[1:-1], dtype="i8", sep=",")) for number, text in posted if len(text) > 2
        ]
        last = max((int(rows.max()) for _number, rows in self._found), default=0)
        self._masks: NDArray[np.uint64] = np.zeros(last + 1, "u8")
        for number, rows in self._found:
            self._masks[rows] |= np.uint64(1 << number)

    def masks(self, rows: Iterable[int]) -> dict[int, int]:
        """See `Few.masks`."""
        masks = self._masks
        return {row: int(masks[row]) for row in rows if row < len(masks) and masks[row]}

    def best(self, weights: Sequence[float], most: int) -> list[int]:
        """See `Few.best`."""
        np = self._np
        values = np.zeros(len(self._masks), "f8")
        for number, rows in sorted(self._found, key=lambda pair: pair[0]):
            values[rows] += weights[number]
        there = self._masks.nonzero()[0]
        found = values[there]
        if len(there) > most:
            is_good = found >= np.partition(found, len(found) - most)[len(found) - most]
            there, found = there[is_good], found[is_good]
        ordered: list[int] = there[np.lexsort((-there, -found))][:most].tolist()
        return ordered


Postings: TypeAlias = Few | Many


def gather(posted: Sequence[tuple[int, str]]) -> Postings:
    """Put together what was found: number of a term (below 64) and its rows, each once, as a JSON array."""
    is_much = sum(text.count(",") for _number, text in posted) > FEW
    return Many(posted) if is_much else Few(posted)


@lru_cache(maxsize=4096)
def bits(mask: int) -> tuple[int, ...]:
    """Return the numbers of the bits that are set, lowest first."""
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)
