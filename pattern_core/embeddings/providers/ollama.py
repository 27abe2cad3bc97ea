"""Ollama's own embeddings. Source: Ollama API reference, "Generate embeddings" and "List local models"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pattern_core.embeddings.embedder import Embedder
from pattern_core.embeddings.providers.remote import Dialect, HttpWire, RemoteEmbedder, RemoteLimits, UnusableAnswer
from pattern_core.embeddings.settings import EmbedderSettings, Purpose, prefixes_of

BASE_URL = "http://127.0.0.1:11434"
DEFAULT_MODEL = "nomic-embed-text"


def make_ollama(settings: EmbedderSettings) -> Embedder:
    """Return the embedder that `settings` describe; `base_url` None is Ollama on this machine."""
    # People configure the address with the path of the OpenAI format, too.
    wire = HttpWire((settings.base_url or BASE_URL).rstrip("/").removesuffix("/v1"), key=settings.api_key)
    limits = RemoteLimits(timeout_s=settings.timeout_s)
    return RemoteEmbedder(OllamaDialect(settings), wire, dimensions=settings.dimensions, limits=limits)


class OllamaDialect(Dialect):
    """The format. A name such as `nomic-embed-text` may mean other weights tomorrow, so the digest counts."""

    provider = "ollama"
    about_path = "/api/tags"

    def __init__(self, settings: EmbedderSettings) -> None:
        self.model = settings.model or DEFAULT_MODEL
        self._prefixes = prefixes_of(self.model).configured(settings)
        self._dimensions = settings.dimensions
        self.identity = {
            "format": "ollama",
            "prefixes": [self._prefixes.query, self._prefixes.passage],
        }

    def digest(self, answer: Mapping[str, object]) -> str:
        """Return the digest of the model's weights."""
        models = answer.get("models")
        names = {self.model, f"{self.model}:latest"}
        for model in models if isinstance(models, list) else ():
            if isinstance(model, dict) and names & {model.get("name"), model.get("model")}:
                return str(model.get("digest", ""))
        return ""

    def question(self, texts: Sequence[str], purpose: Purpose) -> tuple[str, dict[str, object]]:
        """Return path and body; Ollama cuts what is too long by itself."""
        inputs = [self._prefixes.of(purpose) + text for text in texts]
        body: dict[str, object] = {"model": self.model, "input": inputs, "truncate": True}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        return "/api/embed", body

    def vectors(self, answer: Mapping[str, object]) -> list[object]:
        """Return the vectors.

        Raises:
            UnusableAnswer: there is no list of embeddings.
        """
        vectors = answer.get("embeddings")
        if not isinstance(vectors, list):
            raise UnusableAnswer("there is no list of embeddings in the answer")
        return vectors

    def advice(self, status: int | None) -> str:
        """Return what to do about a refusal: mostly, the model was never fetched."""
        if status == 404:
            return f"Fetch the model with `ollama pull {self.model}`, or set [embeddings] model to one that is there."
        return "Check model and base_url under [embeddings] in pattern.toml."
