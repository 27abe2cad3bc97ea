"""What makes vectors of texts, as everything else sees it: three questions, one kind of failure.

A vector is `dimension` numbers of unit length as float32, little endian: `4 * dimension` bytes, ready to store and to
compare by the dot product. Vectors of different fingerprints mean different things and never mix. Behind it may stand
the codes of the text's words (`settings.CODED`), `dimension` bits each, where the embedder makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.errors import PatternError
from pattern_db.tables.embedding_indexes import EmbedderInfo as EmbedderInfo  # an index remembers it

TEXTS_MAX = 16  # of one call; more would hold up a question for longer: half a second on one slow core
WRONG_RETRY_S = 60.0  # after vectors that cannot be used
SWITCHED_OFF = "Embeddings are switched off ([embeddings] provider), so search goes by words alone."


class EmbedderUnavailable(PatternError):
    """There are no vectors now; the message says why and what to do.

    `retry_after_s` says when to ask again; None means not before something is installed or configured.
    """

    code = "embedder_unavailable"
    remedy = "Search by words, or do what the message says about the embedding model."

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class TextsRefused(EmbedderUnavailable):
    """There are no vectors of these texts; one of them may be the reason, so that others can still be embedded."""


class Embedder(Protocol):
    """Makes vectors. One per server, shared by any number of tasks of all constellations."""

    async def info(self) -> EmbedderInfo:
        """Return what its vectors are; loads the model if that is needed to know.

        Raises:
            EmbedderUnavailable: there is no model, or it does not answer.
        """
        ...

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """Return one unit vector for each of up to `TEXTS_MAX` texts, in order, each with its codes behind it if there
        are any; queries go before passages.

        Raises:
            TextsRefused: it fails in a way that may come from one of these texts.
            EmbedderUnavailable: there is no model, it does not answer, or what it answered cannot be used.
        """
        ...

    async def aclose(self) -> None:
        """Give back processes and connections. Nothing may be asked afterwards."""
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
    """The embedder of a server that has none: always says the same sentence, which tells what to configure."""

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
    """Return the embedder of a server whose embeddings are switched off."""
    return AbsentEmbedder()
