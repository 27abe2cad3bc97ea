"""The interface of embedding models: three methods, one kind of failure.

A vector is `dimension` numbers of unit length as float32, little endian: `4 * dimension` bytes, ready to store and to
compare by the dot product. Vectors with different fingerprints cannot be compared and never mix. A vector may be
followed by the codes of the text's words (`settings.CODED`), `dimension` bits each, if the embedder makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.errors import PatternError
from pattern_db.tables.embedding_indexes import EmbedderInfo as EmbedderInfo  # an index remembers it

TEXTS_MAX = 16  # of one call; more would delay a question: half a second on one slow core
WRONG_RETRY_S = 60.0  # after vectors that cannot be used
SWITCHED_OFF = "Embeddings are switched off ([embeddings] provider), so search goes by words alone."


class EmbedderUnavailable(PatternError):
    """Vectors are not available now; the message says why and what to do.

    `retry_after_s` says when to retry; None means not before something is installed or configured.
    """

    code = "embedder_unavailable"
    remedy = "Search by words, or do what the message says about the embedding model."

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class TextsRefused(EmbedderUnavailable):
    """These texts were refused; one of them may be the reason, and others can still be embedded."""


class Embedder(Protocol):
    """Makes vectors. One per server, shared by any number of tasks of all constellations."""

    async def info(self) -> EmbedderInfo:
        """Return the kind of its vectors; loads the model if necessary.

        Raises:
            EmbedderUnavailable: there is no model, or it does not respond.
        """
        ...

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """Return one unit vector for each of up to `TEXTS_MAX` texts, in order, each followed by its codes if there are
        any; queries go before passages.

        Raises:
            TextsRefused: it fails in a way that may come from one of these texts.
            EmbedderUnavailable: there is no model, it does not respond, or its answer is invalid.
        """
        ...

    async def aclose(self) -> None:
        """Release processes and connections. It must not be used afterwards."""
        ...


async def checked_vectors(
    embedder: Embedder, texts: Sequence[str], info: EmbedderInfo, *, purpose: Purpose
) -> list[bytes]:
    """Return what `Embedder.embed` gives, if it fits what the embedder says of itself: else it must not be stored.

    Raises:
        TextsRefused: as `Embedder.embed`.
        EmbedderUnavailable: also if there are too few vectors or too many, or one has another length.
    """
    vectors = await embedder.embed(texts, purpose=purpose)
    if len(vectors) != len(texts):
        raise EmbedderUnavailable(
            f"the embedding model {info.model} gave {len(vectors)} vectors for {len(texts)} texts",
            retry_after_s=WRONG_RETRY_S,
        )
    for vector in vectors:
        if not info.fits(vector):
            raise EmbedderUnavailable(
                f"the embedding model {info.model} gave {len(vector) // 4} numbers instead of {info.dimension};"
                " check [embeddings] dimensions, or use another model",
                retry_after_s=WRONG_RETRY_S,
            )
    return vectors


class AbsentEmbedder:
    """The embedder of a server without one: its error says what to configure."""

    def __init__(self, message: str = SWITCHED_OFF) -> None:
        self._message = message

    async def info(self) -> EmbedderInfo:
        """Raise `EmbedderUnavailable`."""
        raise EmbedderUnavailable(self._message)

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """Raise `EmbedderUnavailable`."""
        raise EmbedderUnavailable(self._message)

    async def aclose(self) -> None:
        """Nothing is held."""


def absent(_: EmbedderSettings) -> AbsentEmbedder:
    """Return the embedder of a server with embeddings switched off."""
    return AbsentEmbedder()
