"""What makes vectors of texts, as everything else sees it: three questions, one kind of failure.

A vector is `dimension` numbers of unit length as float32, little endian: `4 * dimension` bytes, ready to store and to
compare by the dot product. Vectors of different fingerprints mean different things and never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pattern_core.errors import PatternError

Purpose = Literal["query", "passage"]
"""What a text is for: some models want to be told, and a question that somebody waits for goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderInfo:
    """What the vectors are: who makes them, from which model, and how long they are."""

    provider: str
    model: str
    dimension: int
    fingerprint: str  # hex digest of weights and settings: what two vectors must share to be compared


class EmbedderUnavailable(PatternError):
    """There are no vectors now; the message says why and what to do.

    `details["retry_after_s"]` says when to ask again; None means not before something is installed or configured.
    """

    code = "embedder_unavailable"


class TextsRefused(EmbedderUnavailable):
    """There are no vectors of these texts; one of them may be the reason, so that others can still be embedded."""


def unavailable(message: str, *, retry_after_s: float | None = None) -> EmbedderUnavailable:
    """The error with its one detail: seconds until asking again makes sense, None for not by itself."""
    return EmbedderUnavailable(message, retry_after_s=retry_after_s)


class Embedder(Protocol):
    """Makes vectors. One per server, shared by any number of tasks of all constellations."""

    async def info(self) -> EmbedderInfo:
        """What its vectors are; loads the model if that is needed to know.

        Raises:
            EmbedderUnavailable: there is no model, or it does not answer.
        """
        ...

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """One unit vector per text, in order; queries go before passages.

        Raises:
            TextsRefused: it fails in a way that may come from one of these texts.
            EmbedderUnavailable: there is no model, it does not answer, or what it answered cannot be used.
        """
        ...

    async def aclose(self) -> None:
        """Give back processes and connections. Nothing may be asked afterwards."""
        ...
