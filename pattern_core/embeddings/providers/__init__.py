"""The ways to get vectors, and the table of the names that `[embeddings] provider` may have."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from types import MappingProxyType

from pattern_core.embeddings.embedder import Embedder
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.errors import InvalidInput

# name → what makes an embedder of its settings; imported with the first embedder of the name
EMBEDDERS: Mapping[str, str] = MappingProxyType(
    {
        "compatible": "pattern_core.embeddings.providers.services:make_openai",
        "deterministic": "pattern_core.embeddings.providers.deterministic:DeterministicEmbedder",
        "google": "pattern_core.embeddings.providers.services:make_google",
        "local": "pattern_core.embeddings.providers.local:LocalEmbedder",
        "none": "pattern_core.embeddings.embedder:absent",
        "ollama": "pattern_core.embeddings.providers.services:make_ollama",
        "openai": "pattern_core.embeddings.providers.services:make_openai",
    }
)


def make_embedder(settings: EmbedderSettings) -> Embedder:
    """Return the embedder that `[embeddings]` describes. Nothing is loaded or opened before the first question, and
    what is missing is said by that question, so that a server starts without it.

    Raises:
        InvalidInput: there is no provider of that name.
    """
    if settings.provider not in EMBEDDERS:
        raise InvalidInput(f"[embeddings] provider is {settings.provider!r}; there are {', '.join(sorted(EMBEDDERS))}.")
    embedder: Embedder = resolve_name(EMBEDDERS[settings.provider])(settings)
    return embedder
