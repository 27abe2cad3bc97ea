"""Which texts the model reads together; pure.

A text's vector must not depend on its neighbours: the same text is embedded once and found by its hash later. PyTorch
picks its kernels by the width of a batch, so texts are put together, and padded to a width that is their own. Measured
on 120 texts: with a multiple of 16 all vectors are the same bytes alone and in a batch, with 8 or none they are not.
"""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 16  # tokens; every text is padded to a multiple of this
BATCH_TEXTS_MAX = 8


def batches(lengths: Sequence[int], *, tokens_max: int) -> list[list[int]]:
    """Indexes of texts (`lengths` in tokens) that are read together: equal padded width, `tokens_max` at most in all.

    A text that is longer than that stands alone.
    """
    by_width: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_width.setdefault(padded(length), []).append(index)
    found = []
    for width, indexes in sorted(by_width.items()):
        count = max(1, min(BATCH_TEXTS_MAX, tokens_max // width))
        found += [indexes[at : at + count] for at in range(0, len(indexes), count)]
    return found


def padded(length: int) -> int:
    """The width that a text of so many tokens gets."""
    return max(1, -(-length // WIDTH)) * WIDTH
