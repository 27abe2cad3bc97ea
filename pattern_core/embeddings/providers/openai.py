"""OpenAI's embeddings, and the many servers that speak the same format (vLLM, llama.cpp, LM Studio, TEI, LiteLLM …).

Source: OpenAI API reference, "Create embeddings". Compatible servers may leave `index` out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pattern_core.embeddings.embedder import AbsentEmbedder, Embedder
from pattern_core.embeddings.providers.remote import Dialect, HttpWire, RemoteEmbedder, RemoteLimits, UnusableAnswer
from pattern_core.embeddings.settings import EmbedderSettings, Purpose, prefixes_of

BASE_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "text-embedding-3-small"
_DIMENSIONS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}


def make_compatible(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of another server that speaks OpenAI's format."""
    if settings.base_url is None:
        return AbsentEmbedder("Set base_url under [embeddings] in pattern.toml to the address of the server.")
    return make_openai(settings)


def make_openai(settings: EmbedderSettings) -> Embedder:
    """Return the embedder that `settings` describe; `base_url` None is OpenAI's own."""
    if settings.base_url is None and not settings.api_key:
        return AbsentEmbedder(
            "OpenAI's embeddings need a key: set OPENAI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    if settings.base_url is not None and not settings.model:
        return AbsentEmbedder(
            f"Name the model that {settings.base_url} shall use: model under [embeddings] in pattern.toml."
        )
    headers = settings.account if settings.base_url is None else {}
    wire = HttpWire(settings.base_url or BASE_URL, headers, key=settings.api_key, follows_redirects=True)
    limits = RemoteLimits(timeout_s=settings.timeout_s)
    return RemoteEmbedder(OpenAIDialect(settings), wire, dimensions=settings.dimensions, limits=limits)


class OpenAIDialect(Dialect):
    """The format. OpenAI's own models want no prefixes; those behind other addresses may."""

    def __init__(self, settings: EmbedderSettings) -> None:
        self.model = settings.model or DEFAULT_MODEL
        self.provider = "openai" if settings.base_url is None else settings.provider
        self._prefixes = prefixes_of(self.model).configured(settings)
        self._dimensions = settings.dimensions
        self.known_dimension = _DIMENSIONS.get(self.model) if settings.base_url is None else None
        self.identity = {
            "format": "openai",
            "address": settings.base_url or BASE_URL,
            "prefixes": [self._prefixes.query, self._prefixes.passage],
        }

    def question(self, texts: Sequence[str], purpose: Purpose) -> tuple[str, dict[str, object]]:
        """Return path and body. Numbers as text: not every compatible server knows base64."""
        inputs = [self._prefixes.of(purpose) + text for text in texts]
        body: dict[str, object] = {"model": self.model, "input": inputs, "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        return "/embeddings", body

    def vectors(self, answer: Mapping[str, object]) -> list[object]:
        """Return the vectors, sorted by their `index` where they have one.

        Raises:
            UnusableAnswer: there is no list of embeddings.
        """
        data = answer.get("data")
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise UnusableAnswer("there is no list of embeddings in the answer")
        indexes = [item.get("index") for item in data]
        if all(isinstance(index, int) for index in indexes):
            if sorted(indexes) != list(range(len(data))):
                raise UnusableAnswer("the embeddings are not numbered from 0 without gaps")
            data = sorted(data, key=lambda item: int(item["index"]))
        return [item.get("embedding") for item in data]

    def advice(self, status: int | None) -> str:
        """Return what to do about a refusal."""
        return "Check model, base_url and the key under [embeddings] in pattern.toml."
