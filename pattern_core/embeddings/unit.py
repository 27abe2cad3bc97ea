"""Numbers from outside as a vector that can be stored, or a sentence that says why they cannot; pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence


class NotAVector(ValueError):
    """These numbers cannot be compared with others: none, not finite, or all zero."""


def unit_vector(values: object) -> bytes:
    """The numbers brought to unit length, as float32, little endian: 4 bytes each.

    Raises:
        NotAVector: it is no list of finite numbers, or they are all zero.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise NotAVector("it is no list of numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise NotAVector("it holds something that is no number")
    try:
        length = math.hypot(*values)
    except OverflowError as error:
        raise NotAVector("it holds a number that is too large") from error
    if not math.isfinite(length):
        raise NotAVector("it holds a number that is not finite")
    if not length:
        raise NotAVector("all its numbers are zero")
    return struct.pack(f"<{len(values)}f", *(value / length for value in values))
