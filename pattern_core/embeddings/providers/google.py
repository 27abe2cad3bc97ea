"""Google's embeddings. Source: Gemini API reference, "models.batchEmbedContents"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pattern_core.embeddings.embedder import AbsentEmbedder, Embedder
from pattern_core.embeddings.providers.remote import Dialect, HttpWire, RemoteEmbedder, RemoteLimits, UnusableAnswer
from pattern_core.embeddings.settings import EmbedderSettings, Purpose

BASE_URL = "https://generativelanguage.googleapis.com"
DEFAULT_MODEL = "gemini-embedding-001"
_DIMENSIONS = {"gemini-embedding-001": 3072}
_TASKS: Mapping[Purpose, str] = {"query": "RETRIEVAL_QUERY", "passage": "RETRIEVAL_DOCUMENT"}


def make_google(settings: EmbedderSettings) -> Embedder:
    """Return the embedder that `settings` describe; `base_url` None is Google's own."""
    if not settings.api_key:
        return AbsentEmbedder(
            "Google's embeddings need a key: set GEMINI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    wire = HttpWire(settings.base_url or BASE_URL, {"x-goog-api-key": settings.api_key.reveal()})
    limits = RemoteLimits(timeout_s=settings.timeout_s)
    return RemoteEmbedder(GoogleDialect(settings), wire, dimensions=settings.dimensions, limits=limits)


class GoogleDialect(Dialect):
    """The format. Shortened vectors come without unit length; all are brought to it later."""

    provider = "google"

    def __init__(self, settings: EmbedderSettings) -> None:
        self.model = (settings.model or DEFAULT_MODEL).removeprefix("models/")
        self.known_dimension = _DIMENSIONS.get(self.model)
        self.identity = {"format": "google", "address": settings.base_url or BASE_URL}
        self._dimensions = settings.dimensions

    def question(self, texts: Sequence[str], purpose: Purpose) -> tuple[str, dict[str, object]]:
        """Return path and body: one request per text within one call."""
        shared: dict[str, object] = {"model": f"models/{self.model}", "taskType": _TASKS[purpose]}
        if self._dimensions is not None:
            shared["outputDimensionality"] = self._dimensions
        requests = [{**shared, "content": {"parts": [{"text": text}]}} for text in texts]
        return f"/v1beta/models/{self.model}:batchEmbedContents", {"requests": requests}

    def vectors(self, answer: Mapping[str, object]) -> list[object]:
        """Return the vectors.

        Raises:
            UnusableAnswer: there is no list of embeddings.
        """
        found = answer.get("embeddings")
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise UnusableAnswer("there is no list of embeddings in the answer")
        return [item.get("values") for item in found]

    def advice(self, status: int | None) -> str:
        """Return what to do about a refusal."""
        return "Check model and the key under [embeddings] in pattern.toml."
