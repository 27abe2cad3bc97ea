"""The embedder of a server that has none: switched off, or not configured to the end."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_core.embeddings.embedder import EmbedderInfo, Purpose, unavailable
from pattern_core.embeddings.settings import EmbedderSettings

SWITCHED_OFF = (
    "Embeddings are switched off, so search goes by words alone. "
    'Set [embeddings] provider = "local" in pattern.toml to search by meaning too.'
)


def make_absent(_: EmbedderSettings) -> AbsentEmbedder:
    """The embedder of a server that has none."""
    return AbsentEmbedder()


class AbsentEmbedder:
    """Says the same sentence to everybody; `message` tells what to configure."""

    def __init__(self, message: str = SWITCHED_OFF) -> None:
        self._message = message

    async def info(self) -> EmbedderInfo:
        """Nothing.

        Raises:
            EmbedderUnavailable: always.
        """
        raise unavailable(self._message)

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """Nothing.

        Raises:
            EmbedderUnavailable: always.
        """
        raise unavailable(self._message)

    async def aclose(self) -> None:
        """Nothing is held."""
