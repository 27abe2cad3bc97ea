"""Asking for the vectors of a batch, a portion at a time, and finding out the text that an embedder cannot take.

A service that is down fails for every text, and waiting is all that helps. A text that kills the model's process, or
that a service refuses, fails every time and would hold up all that come after it. So when texts fail again, a harmless
one is tried: if that fails too, nothing is wrong with ours. Otherwise the portions become smaller, down to a single
text; one that fails alone is set aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo, TextsRefused, unavailable
from pattern_core.embeddings.queries import check_vectors

TEXTS_PER_CALL = 16  # more would hold up a question for longer: half a second on one slow core
FAILURES_BEFORE_HALVES = 2  # the first may have been chance
_HARMLESS = "a few words"


@dataclass(frozen=True, slots=True)
class Made:
    """Of the pieces of a batch, by hash: the vectors, and why there is none of the others."""

    vectors: Mapping[str, bytes]
    refused: Mapping[str, str]


class Portions:
    """Remembers between two attempts at the same texts what was made and what failed; bounded by one batch."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.forget()

    def forget(self) -> None:
        """Begin anew with whole portions, and give every text another chance."""
        self._size = TEXTS_PER_CALL
        self._failures = 0  # since the last halving
        self._is_down = False  # the harmless text failed, too
        self._suspects: list[str] = []  # hashes of the portion that failed last
        self._reason = ""
        self._vectors: dict[str, bytes] = {}
        self._refused: dict[str, str] = {}

    async def embed(self, texts: Mapping[str, str], info: EmbedderInfo) -> Made:
        """Vectors of `texts` (by hash), of all but those that the embedder refuses. After a failure, call it again.

        Raises:
            TextsRefused: it fails over some of them; the next attempt finds out more.
            EmbedderUnavailable: it does not work for any text now.
        """
        self._vectors = {key: vector for key, vector in self._vectors.items() if key in texts}
        self._refused = {key: reason for key, reason in self._refused.items() if key in texts}
        if self._failures and any(key in texts for key in self._suspects):
            await self._narrow_down(info)
        left = [key for key in texts if key not in self._vectors and key not in self._refused]
        for begin in range(0, len(left), self._size):
            await self._ask(left[begin : begin + self._size], texts, info)
        made = Made(self._vectors, self._refused)
        if not self._suspects or any(key in texts for key in self._suspects):
            self.forget()
        return made

    async def _ask(self, keys: list[str], texts: Mapping[str, str], info: EmbedderInfo) -> None:
        try:
            answer = await self._embedder.embed([texts[key] for key in keys], purpose="passage")
        except TextsRefused as error:
            self._failures += 1
            self._suspects, self._reason = keys, error.message
            raise
        check_vectors(answer, len(keys), info)
        self._vectors.update(zip(keys, answer, strict=True))

    async def _narrow_down(self, info: EmbedderInfo) -> None:
        is_whole = self._size == TEXTS_PER_CALL
        if is_whole and self._failures < FAILURES_BEFORE_HALVES and not self._is_down:
            return
        was_down, self._is_down = self._is_down, True
        try:
            check_vectors(await self._embedder.embed([_HARMLESS], purpose="passage"), 1, info)
        except TextsRefused as error:
            raise unavailable(error.message, retry_after_s=_seconds(error)) from error
        self._is_down = False
        self._failures = 0
        if was_down:
            return  # what failed before proves nothing
        if len(self._suspects) == 1:
            self._refused[self._suspects[0]] = self._reason
        else:
            self._size = max(1, len(self._suspects) // 2)


def _seconds(error: TextsRefused) -> float | None:
    value = error.details.get("retry_after_s")
    return float(value) if isinstance(value, int | float) else None
