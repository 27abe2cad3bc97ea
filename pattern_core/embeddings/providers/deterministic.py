"""Vectors without a model: the same text always gives the same vector, and texts that share words are near."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections import Counter
from collections.abc import Sequence

from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_db.vectors import packed

_WORD = re.compile(r"\w+")
_PLACES_PER_WORD = 8  # with one, two words of a short text may take each other away


class DeterministicEmbedder:
    """An `Embedder` that hashes every word to a few of the configured `dimensions`, some with a minus.

    It knows no meaning: `cat` and `kitten` are as far apart as any two words.
    """

    def __init__(self, settings: EmbedderSettings) -> None:
        self._info = EmbedderInfo(
            provider="deterministic",
            model="hashed-words",
            dimension=settings.dimensions or 64,
            fingerprint="0" * 64,
        )

    async def info(self) -> EmbedderInfo:
        """Return what was configured."""
        return self._info

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """Return one unit vector per text."""
        return [hashed_words(text, self._info.dimension) for text in texts]

    async def aclose(self) -> None:
        """Nothing is held."""


def hashed_words(text: str, dimension: int) -> bytes:
    """Return a unit vector of the words of `text`, whatever their case and order: float32, little endian.

    A text without words counts as one word, the empty one.
    """
    values = [0.0] * dimension
    for word, count in Counter(_WORD.findall(text.lower()) or [""]).items():
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * _PLACES_PER_WORD).digest()
        weight = math.sqrt(count)
        for number in struct.unpack(f">{_PLACES_PER_WORD}I", digest):
            values[(number >> 1) % dimension] += weight if number & 1 else -weight
    length = math.sqrt(sum(value * value for value in values))
    if not length:  # words with the same place cancelled each other
        values[0] = length = 1.0
    return packed([value / length for value in values])
