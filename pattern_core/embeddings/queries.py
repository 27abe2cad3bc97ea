"""Vectors of questions: a person waits for each, so it has a deadline, and the last ones are remembered.

The model works in a task of its own: a question that is given up does not stop it from loading, and its vector is
there when the question is asked again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, unavailable
from pattern_core.embeddings.shelf import EmbedderShelf

DEADLINE_S = 2.0  # a model that is loaded needs some 20 ms; loading takes from half a second to many
REMEMBERED = 128  # vectors: 200 KB of 384 numbers
AT_ONCE = 2  # a model that hangs for one question
WAITING = 32
WRONG_RETRY_S = 60.0  # after vectors that cannot be used


class QueryVectors:
    """Embeds questions while `run` runs, each by the model that an index is of."""

    def __init__(self, embedders: EmbedderShelf, *, deadline_s: float = DEADLINE_S) -> None:
        self._embedders = embedders
        self._deadline_s = deadline_s
        self._remembered: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._send, self._receive = trio.open_memory_channel[_Question](WAITING)

    async def run(self) -> None:
        """Embed what is asked, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _number in range(AT_ONCE):
                nursery.start_soon(self._answer)

    async def get(self, text: str, wanted: EmbedderInfo) -> bytes:
        """The vector of `text` by the model `wanted`.

        Raises:
            FormerModelGone: that model was configured once, and cannot be asked any more.
            EmbedderUnavailable: it is not there, or did not answer in time.
        """
        key = _key(text, wanted)
        remembered = self._remembered.get(key)
        if remembered is not None:
            self._remembered.move_to_end(key)
            return remembered
        question = _Question(text, wanted)
        try:
            self._send.send_nowait(question)
        except trio.WouldBlock:
            raise unavailable(
                "too many searches wait for the embedding model", retry_after_s=self._deadline_s
            ) from None
        with trio.move_on_after(self._deadline_s):
            await question.answered.wait()
        if question.failure is not None:
            raise question.failure
        if question.vector is None:
            raise unavailable("the embedding model is still loading, or busy", retry_after_s=self._deadline_s)
        return question.vector

    async def _answer(self) -> None:
        async for question in self._receive:
            try:
                question.vector = await self._embedded(question)
            except EmbedderUnavailable as error:
                question.failure = error
            question.answered.set()

    async def _embedded(self, question: _Question) -> bytes:
        embedder = await self._embedders.of(question.wanted)
        vectors = await embedder.embed([question.text], purpose="query")
        check_vectors(vectors, 1, question.wanted)
        self._remembered[_key(question.text, question.wanted)] = vectors[0]
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return vectors[0]


class _Question:
    def __init__(self, text: str, wanted: EmbedderInfo) -> None:
        self.text = text
        self.wanted = wanted
        self.answered = trio.Event()
        self.vector: bytes | None = None
        self.failure: EmbedderUnavailable | None = None


def _key(text: str, wanted: EmbedderInfo) -> tuple[str, int, str]:
    return wanted.fingerprint, wanted.dimension, text


def check_vectors(vectors: Sequence[bytes], count: int, info: EmbedderInfo) -> None:
    """Have a closer look at what an embedder gave: what does not fit must not be stored.

    Raises:
        EmbedderUnavailable: there are too few or too many, or one has another length.
    """
    if len(vectors) != count:
        raise unavailable(
            f"the embedding model {info.model} gave {len(vectors)} vectors for {count} texts",
            retry_after_s=WRONG_RETRY_S,
        )
    for vector in vectors:
        if len(vector) != 4 * info.dimension:
            raise unavailable(
                f"the embedding model {info.model} gave {len(vector) // 4} numbers instead of {info.dimension};"
                " check [embeddings] dimensions, or use another model",
                retry_after_s=WRONG_RETRY_S,
            )
