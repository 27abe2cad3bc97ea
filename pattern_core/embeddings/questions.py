"""Vectors of questions. A person waits for each, so it has a deadline, and the last ones are cached.

Questions can be compared only with vectors of their own model. So while an index of an earlier model is active, that
model is needed, too, only for questions. It is created for the first question from the configuration; its `info`
decides whether it is the right one. A few such models are kept: a model on this machine releases its memory when it is
idle.

The model works in a task of its own: a question that times out does not stop it from loading, and its vector is
available when the question is repeated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import trio

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo, EmbedderUnavailable, checked_vectors

FORMER_MAX = 4  # models in addition to the configured one; each may be a process of 450 MB while it is used

DEADLINE_S = 2.0  # a model that is loaded needs some 20 ms; loading takes from half a second to many
REMEMBERED = 128  # vectors: 200 KB of 384 numbers
AT_ONCE = 2  # a model that hangs for one question
WAITING = 32

_Question: TypeAlias = tuple[str, EmbedderInfo, trio.MemorySendChannel[bytes | EmbedderUnavailable]]
RemakeEmbedder: TypeAlias = Callable[[EmbedderInfo], Iterable[Embedder]]
"""Embedders that may be the wanted one, the likeliest first; nothing is loaded before they are asked."""


class FormerModelGone(EmbedderUnavailable):
    """The model of an index is no longer available; another one must replace it."""


class EmbedderShelf:
    """One per server, shared by all constellations. `configured` embeds new texts, the others only questions."""

    def __init__(self, configured: Embedder, remake: RemakeEmbedder = lambda _wanted: ()) -> None:
        self.configured = configured
        self._remake = remake
        # Of each former model what may be it. Those that fail or are others are kept, too: they know it without asking
        # again, so not every question starts a process that fails.
        self._former: OrderedDict[tuple[str, int], Sequence[Embedder]] = OrderedDict()

    async def of(self, wanted: EmbedderInfo) -> Embedder:
        """Return the embedder with vectors comparable to those of `wanted`: same fingerprint, same length.

        Raises:
            FormerModelGone: it is not configured. EmbedderUnavailable: it does not respond now, so it is unknown
            whether it is the right one.
        """
        failures: list[EmbedderUnavailable] = []
        try:
            if (await self.configured.info()).matches(wanted):
                return self.configured
        except EmbedderUnavailable as error:
            failures.append(error)
        why = ""
        for candidate in await self._candidates(wanted):
            try:
                if (await candidate.info()).matches(wanted):
                    return candidate
            except EmbedderUnavailable as error:
                why = why or f": {error.message}"
                if error.retry_after_s is not None:
                    failures.append(error)
                    break  # it may be the one; a less likely one must not take its place
        if failures:
            raise failures[0]
        made_by = f"{wanted.model} ({wanted.provider}, {wanted.dimension} numbers)"
        message = f"the texts were embedded by {made_by}, which is no longer available{why}"
        raise FormerModelGone(message.removesuffix("."), retry_after_s=None)

    async def aclose(self) -> None:
        """Give back processes and connections of all of them."""
        self._remake = lambda _wanted: ()
        former, self._former = list(self._former.values()), OrderedDict()
        await _close([self.configured, *(embedder for candidates in former for embedder in candidates)])

    async def _candidates(self, wanted: EmbedderInfo) -> Sequence[Embedder]:
        key = wanted.fingerprint, wanted.dimension
        if key not in self._former:
            self._former[key] = list(self._remake(wanted))
        self._former.move_to_end(key)
        candidates = self._former[key]
        if len(self._former) > FORMER_MAX:
            await _close(self._former.popitem(last=False)[1])
        return candidates


async def _close(embedders: Iterable[Embedder]) -> None:
    with trio.CancelScope(shield=True):
        for embedder in embedders:
            await embedder.aclose()


class QuestionEmbedder:
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
        """Return the vector of `text` by the model `wanted`.

        Raises:
            FormerModelGone: that model was configured earlier, and is no longer available. EmbedderUnavailable: it is
            missing, or did not respond in time.
        """
        key = wanted.fingerprint, wanted.dimension, text
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        answer, answered = trio.open_memory_channel[bytes | EmbedderUnavailable](1)
        try:
            self._send.send_nowait((text, wanted, answer))
        except trio.WouldBlock:
            message = "too many searches wait for the embedding model"
            raise EmbedderUnavailable(message, retry_after_s=self._deadline_s) from None
        with trio.move_on_after(self._deadline_s):
            found = await answered.receive()
            if isinstance(found, EmbedderUnavailable):
                raise found
            return found
        raise EmbedderUnavailable("the embedding model is still loading, or busy", retry_after_s=self._deadline_s)

    async def _answer(self) -> None:
        async for text, wanted, answer in self._receive:
            try:
                embedder = await self._embedders.of(wanted)
                (vector,) = await checked_vectors(embedder, [text], wanted, purpose="query")
                self._remembered[wanted.fingerprint, wanted.dimension, text] = vector
                while len(self._remembered) > REMEMBERED:
                    self._remembered.popitem(last=False)
                answer.send_nowait(vector)
            except EmbedderUnavailable as error:
                answer.send_nowait(error)
