"""One file per way to get vectors, and the table of the names that `[embeddings] provider` may have."""

from __future__ import annotations

from collections.abc import Callable

from pattern_core.embeddings.embedder import Embedder
from pattern_core.embeddings.providers.absent import AbsentEmbedder
from pattern_core.embeddings.providers.google import make_google
from pattern_core.embeddings.providers.local import LocalEmbedder
from pattern_core.embeddings.providers.ollama import make_ollama
from pattern_core.embeddings.providers.openai import make_openai
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.errors import InvalidInput
from pattern_core.testing.embedder import DeterministicEmbedder


def _compatible(settings: EmbedderSettings) -> Embedder:
    if settings.base_url is None:
        return AbsentEmbedder("Set base_url under [embeddings] in pattern.toml to the address of the server.")
    return make_openai(settings)


def _deterministic(settings: EmbedderSettings) -> Embedder:
    return DeterministicEmbedder(dimension=settings.dimensions or 64)


def _none(_: EmbedderSettings) -> Embedder:
    return AbsentEmbedder()


EMBEDDERS: dict[str, Callable[[EmbedderSettings], Embedder]] = {
    "compatible": _compatible,
    "deterministic": _deterministic,
    "google": make_google,
    "local": LocalEmbedder,
    "none": _none,
    "ollama": make_ollama,
    "openai": make_openai,
}


def make_embedder(settings: EmbedderSettings) -> Embedder:
    """The embedder that `[embeddings]` describes. Nothing is loaded or opened before the first question, and what is
    missing is said by that question, so that a server starts without it.

    Raises:
        InvalidInput: there is no provider of that name.
    """
    make = EMBEDDERS.get(settings.provider)
    if make is None:
        raise InvalidInput(f"[embeddings] provider is {settings.provider!r}; there are {', '.join(sorted(EMBEDDERS))}.")
    return make(settings)
