"""The services that make embeddings, as a table of what they differ in.

Sources: OpenAI API reference, "Create embeddings" (many servers speak this format: vLLM, llama.cpp, LM Studio, TEI,
LiteLLM …); Gemini API reference, "models.batchEmbedContents"; Ollama API reference, "Generate embeddings" and "List
local models".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pattern_core.embeddings.embedder import AbsentEmbedder, Embedder
from pattern_core.embeddings.providers.remote import RemoteEmbedder, Service
from pattern_core.embeddings.settings import EmbedderSettings, Purpose, prefixes_of

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_MODEL = "text-embedding-3-small"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
GOOGLE_MODEL = "gemini-embedding-001"
_GOOGLE_TASKS: Mapping[Purpose, str] = {"query": "RETRIEVAL_QUERY", "passage": "RETRIEVAL_DOCUMENT"}
OLLAMA_URL = "http://127.0.0.1:11434"
OLLAMA_MODEL = "nomic-embed-text"
_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
    "gemini-embedding-001": 3072,
}


def make_openai(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of OpenAI, or of the server at `base_url` that speaks its format."""
    if settings.base_url is None and settings.provider == "compatible":
        return AbsentEmbedder("Set base_url under [embeddings] in pattern.toml to the address of the server.")
    if settings.base_url is None and not settings.api_key:
        return AbsentEmbedder(
            "OpenAI's embeddings need a key: set OPENAI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    if settings.base_url is not None and not settings.model:
        return AbsentEmbedder(
            f"Name the model that {settings.base_url} should use: model under [embeddings] in pattern.toml."
        )
    return RemoteEmbedder(openai(settings), settings)


def openai(settings: EmbedderSettings) -> Service:
    """Return OpenAI's format. Its own models want no prefixes; those behind other addresses may."""
    is_own = settings.base_url is None
    model = settings.model or OPENAI_MODEL
    address = settings.base_url or OPENAI_URL
    return Service(
        provider="openai" if is_own else settings.provider,
        model=model,
        address=address,
        headers={**_bearer(settings), **(settings.account if is_own else {})},
        key=settings.api_key,
        path="/embeddings",
        # Numbers as text: not every compatible server knows base64.
        body=partial(_body, settings, model, {"encoding_format": "float"}),
        vectors=("data", "embedding"),
        advice="Check model, base_url and the key under [embeddings] in pattern.toml.",
        identity={"format": "openai", "address": address, "prefixes": _prefixes(settings, model)},
        known_dimension=_DIMENSIONS.get(model) if is_own else None,
    )


def make_google(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of Google; `base_url` None is Google's own."""
    if not settings.api_key:
        return AbsentEmbedder(
            "Google's embeddings need a key: set GEMINI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    model = (settings.model or GOOGLE_MODEL).removeprefix("models/")
    address = settings.base_url or GOOGLE_URL

    def body(texts: Sequence[str], purpose: Purpose) -> dict[str, object]:
        """Return one request per text within one call. Shortened vectors come without unit length."""
        shared: dict[str, object] = {"model": f"models/{model}", "taskType": _GOOGLE_TASKS[purpose]}
        if settings.dimensions is not None:
            shared["outputDimensionality"] = settings.dimensions
        return {"requests": [{**shared, "content": {"parts": [{"text": text}]}} for text in texts]}

    service = Service(
        provider="google",
        model=model,
        address=address,
        headers={"x-goog-api-key": settings.api_key.get_secret_value()},
        key=settings.api_key,
        path=f"/v1beta/models/{model}:batchEmbedContents",
        body=body,
        vectors=("embeddings", "values"),
        advice="Check model and the key under [embeddings] in pattern.toml.",
        identity={"format": "google", "address": address},
        known_dimension=_DIMENSIONS.get(model),
    )
    return RemoteEmbedder(service, settings)


def make_ollama(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of Ollama; `base_url` None is Ollama on this machine."""
    model = settings.model or OLLAMA_MODEL

    def digest(answer: Mapping[str, object]) -> str:
        """Return the digest of the weights counts: a name such as `nomic-embed-text` may mean others tomorrow."""
        models = answer.get("models")
        for one in models if isinstance(models, list) else ():
            if isinstance(one, dict) and {model, f"{model}:latest"} & {one.get("name"), one.get("model")}:
                return str(one.get("digest", ""))
        return ""

    service = Service(
        provider="ollama",
        model=model,
        # People configure the address with the path of the OpenAI format, too.
        address=(settings.base_url or OLLAMA_URL).rstrip("/").removesuffix("/v1"),
        headers=_bearer(settings),
        key=settings.api_key,
        path="/api/embed",
        body=partial(_body, settings, model, {"truncate": True}),
        vectors=("embeddings", None),
        advice="Check model and base_url under [embeddings] in pattern.toml.",
        advice_if_absent=(
            f"Fetch the model with `ollama pull {model}`, or set [embeddings] model to one that is there."
        ),
        identity={"format": "ollama", "prefixes": _prefixes(settings, model)},
        about=("/api/tags", digest),
    )
    return RemoteEmbedder(service, settings)


def _bearer(settings: EmbedderSettings) -> dict[str, str]:
    return {"authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}


def _body(
    settings: EmbedderSettings, model: str, fixed: Mapping[str, object], texts: Sequence[str], purpose: Purpose
) -> dict[str, object]:
    """Return the body of a question in the format of OpenAI and Ollama."""
    prefix = prefixes_of(model).configured(settings).of(purpose)
    length = {} if settings.dimensions is None else {"dimensions": settings.dimensions}
    return {"model": model, **fixed, **length, "input": [prefix + text for text in texts]}


def _prefixes(settings: EmbedderSettings, model: str) -> list[str]:
    prefixes = prefixes_of(model).configured(settings)
    return [prefixes.query, prefixes.passage]
