"""All embedders of a server: the configured one, and those that indexes were made by before.

Questions can be compared only with vectors of their own model. So while an index of an earlier model still answers,
that model is wanted too, for questions alone. It is made when the first question needs it, from what is configured;
its own word (`info`) decides whether it is the one. What was made stays for the next question, a few at most: a model
on this machine gives its memory back by itself when nobody asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

import trio

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo, EmbedderUnavailable

FORMER_MAX = 4  # models beside the configured one; each may be a process of 450 MB while it is asked
LOOK_AGAIN_S = 60.0  # after none was found

Remake: TypeAlias = Callable[[EmbedderInfo], Iterable[Embedder]]
"""Embedders that may be the wanted one, the likeliest first; nothing is loaded before they are asked."""


class FormerModelGone(EmbedderUnavailable):
    """The model that an index was made by cannot be asked any more; another one has to take over."""


class EmbedderShelf:
    """One per server, shared by all constellations. `configured` embeds new texts, the others only questions."""

    def __init__(self, configured: Embedder, remake: Remake = lambda _wanted: ()) -> None:
        self.configured = configured
        self._remake = remake
        self._former: OrderedDict[tuple[str, int], Embedder] = OrderedDict()
        self._missing: dict[tuple[str, int], tuple[float, EmbedderUnavailable]] = {}  # until when, on trio's clock
        self._making = trio.Lock()
        self._is_closed = False

    async def of(self, wanted: EmbedderInfo) -> Embedder:
        """The embedder whose vectors can be compared with those of `wanted`: same fingerprint, same length.

        Raises:
            FormerModelGone: nothing that is configured leads to it.
            EmbedderUnavailable: it does not answer now, so that it is unknown whether it is the one.
        """
        failure: EmbedderUnavailable | None = None
        try:
            if is_comparable(await self.configured.info(), wanted):
                return self.configured
        except EmbedderUnavailable as error:
            failure = error
        async with self._making:
            found = self._former.get(_key(wanted)) or await self._made(wanted, failure)
            self._former[_key(wanted)] = found
            self._former.move_to_end(_key(wanted))
            while len(self._former) > FORMER_MAX:
                _, oldest = self._former.popitem(last=False)
                await oldest.aclose()
        return found

    async def aclose(self) -> None:
        """Give back processes and connections of all of them."""
        self._is_closed = True
        former, self._former = list(self._former.values()), OrderedDict()
        for embedder in (self.configured, *former):
            await embedder.aclose()

    async def _made(self, wanted: EmbedderInfo, failure: EmbedderUnavailable | None) -> Embedder:
        until, known = self._missing.get(_key(wanted), (0.0, None))
        if known is not None and trio.current_time() < until:
            raise known
        why = ""
        for candidate in () if self._is_closed else self._remake(wanted):
            is_wanted = False
            try:
                is_wanted = is_comparable(await candidate.info(), wanted)
            except EmbedderUnavailable as error:
                why = why or f": {error.message}"
                if error.details.get("retry_after_s") is not None:
                    failure = failure or error
                    break  # it may be the one; a less likely one must not take its place
            finally:
                if not is_wanted:
                    with trio.CancelScope(shield=True):
                        await candidate.aclose()
            if is_wanted:
                self._missing.pop(_key(wanted), None)
                return candidate
        raise self._remembered(wanted, failure or _gone(wanted, why))

    def _remembered(self, wanted: EmbedderInfo, failure: EmbedderUnavailable) -> EmbedderUnavailable:
        """Not every question starts a process in vain."""
        retry_s = failure.details.get("retry_after_s")
        wait_s = min(retry_s, LOOK_AGAIN_S) if isinstance(retry_s, int | float) else LOOK_AGAIN_S
        self._missing[_key(wanted)] = trio.current_time() + wait_s, failure
        while len(self._missing) > 8 * FORMER_MAX:
            del self._missing[next(iter(self._missing))]
        return failure


def is_comparable(one: EmbedderInfo, other: EmbedderInfo) -> bool:
    """Whether vectors of the two may be compared."""
    return (one.fingerprint, one.dimension) == (other.fingerprint, other.dimension)


def _key(wanted: EmbedderInfo) -> tuple[str, int]:
    return wanted.fingerprint, wanted.dimension


def _gone(wanted: EmbedderInfo, why: str) -> FormerModelGone:
    made_by = f"{wanted.model} ({wanted.provider}, {wanted.dimension} numbers)"
    message = f"the texts were embedded by {made_by}, which cannot be asked any more{why}"
    return FormerModelGone(message.removesuffix("."), retry_after_s=None)
