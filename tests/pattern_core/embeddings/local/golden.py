"""What the published model says about three sentences, and texts of many lengths."""

from __future__ import annotations

import struct
from itertools import pairwise

from pattern_core.embeddings.local.models import Embed

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
# From the model's own README: similarities of sentences 0 and 1, 0 and 2, 1 and 2.
SIMILARITIES = (0.6660, 0.1046, 0.1411)
PAIRS = ((0, 1), (0, 2), (1, 2))
WORDS = ("the", "weather", "is", "lovely", "today", "we", "went", "to", "Paris", "and", "saw", "cats", "in", "rain")
TEXTS = [" ".join(WORDS[(n * 7 + k) % len(WORDS)] for k in range(1 + n * 5 % 90)) for n in range(30)]
ODD = ["", " \n ", "żółć", "日本語のテキスト", "😀", "x" * 3_000, "[CLS] [SEP]", "a\x00b", "word " * 400]


def similarities(vectors: list[bytes]) -> list[float]:
    """The three dot products."""
    rows = [struct.unpack_from("<384f", vector) for vector in vectors]
    return [sum(one * other for one, other in zip(rows[a], rows[b], strict=True)) for a, b in PAIRS]


def assert_same_alone_and_together(embed: Embed) -> None:
    """The bytes of a text's vector do not depend on its neighbours or their order."""
    texts = TEXTS + ODD
    together = embed(texts, "passage")
    assert together == [embed([text], "passage")[0] for text in texts]
    assert together == embed(texts[::-1], "passage")[::-1]
    assert all(one != other for one, other in pairwise(together[: len(TEXTS)]))
    for vector in together:
        row = struct.unpack_from("<384f", vector)
        assert abs(sum(value * value for value in row) - 1) < 1e-5


def assert_words_have_codes(embed: Embed) -> None:
    """48 bytes for each word, of passages only for those that say something; kittens are nearer to a cat than a car."""
    passage, query = embed(["the kittens"], "passage") + embed(["the cat, a car"], "query")
    assert (len(passage), len(query)) == (1536 + 48, 1536 + 4 * 48)
    (kittens, _the, cat, _a, car) = (
        int.from_bytes(data[at : at + 48])
        for data, at in ((passage, 1536), (query, 1536), (query, 1584), (query, 1632), (query, 1680))
    )
    assert (kittens ^ cat).bit_count() < (kittens ^ car).bit_count()
