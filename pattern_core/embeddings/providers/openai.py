"""OpenAI's embeddings, and the many servers that speak the same format (vLLM, llama.cpp, LM Studio, TEI, LiteLLM …).

Source: OpenAI API reference, "Create embeddings". Compatible servers may leave `index` out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from pattern_core.embeddings.embedder import Embedder, Purpose
from pattern_core.embeddings.prefixes import Prefixes, prefixes_of
from pattern_core.embeddings.providers.absent import AbsentEmbedder
from pattern_core.embeddings.providers.http import CONNECT_TIMEOUT_S, why
from pattern_core.embeddings.providers.remote import Answer, Garbled, RemoteEmbedder, RemoteLimits, Unreached
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret

if TYPE_CHECKING:
    import openai

BASE_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "text-embedding-3-small"
_DIMENSIONS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}


def make_compatible(settings: EmbedderSettings) -> Embedder:
    """The embedder of another server that speaks OpenAI's format."""
    if settings.base_url is None:
        return AbsentEmbedder("Set base_url under [embeddings] in pattern.toml to the address of the server.")
    return make_openai(settings)


def make_openai(settings: EmbedderSettings) -> Embedder:
    """The embedder that `settings` describe; `base_url` None is OpenAI's own."""
    if settings.base_url is None and not settings.api_key:
        return AbsentEmbedder(
            "OpenAI's embeddings need a key: set OPENAI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    if settings.base_url is not None and not settings.model:
        return AbsentEmbedder(
            f"Name the model that {settings.base_url} shall use: model under [embeddings] in pattern.toml."
        )
    dialect = OpenAIDialect(settings)
    wire = OpenAIWire(settings.base_url or BASE_URL, settings.api_key)
    limits = RemoteLimits(timeout_s=settings.timeout_s)
    return RemoteEmbedder(dialect, wire, dimensions=settings.dimensions, limits=limits)


class OpenAIDialect:
    """The format. OpenAI's own models want no prefixes; those behind other addresses may."""

    about_path = None

    def __init__(self, settings: EmbedderSettings) -> None:
        self.model = settings.model or DEFAULT_MODEL
        self.provider = "openai" if settings.base_url is None else settings.provider
        family = prefixes_of(self.model)
        self._prefixes = Prefixes(
            query=family.query if settings.query_prefix is None else settings.query_prefix,
            passage=family.passage if settings.passage_prefix is None else settings.passage_prefix,
        )
        self._dimensions = settings.dimensions
        self.known_dimension = _DIMENSIONS.get(self.model) if settings.base_url is None else None
        self.identity: Mapping[str, object] = {
            "format": "openai",
            "address": settings.base_url or BASE_URL,
            "prefixes": [self._prefixes.query, self._prefixes.passage],
        }

    def about(self, answer: Mapping[str, object]) -> str:
        """Nothing: the format has no digests."""
        return ""

    def question(self, texts: Sequence[str], purpose: Purpose) -> tuple[str, dict[str, object]]:
        """Path and body. Numbers as text: not every compatible server knows base64."""
        inputs = [self._prefixes.of(purpose) + text for text in texts]
        body: dict[str, object] = {"model": self.model, "input": inputs, "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        return "/embeddings", body

    def vectors(self, answer: Mapping[str, object]) -> list[object]:
        """The vectors, sorted by their `index` where they have one.

        Raises:
            Garbled: there is no list of embeddings.
        """
        data = answer.get("data")
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise Garbled("there is no list of embeddings in the answer")
        indexes = [item.get("index") for item in data]
        if all(isinstance(index, int) for index in indexes):
            if sorted(indexes) != list(range(len(data))):
                raise Garbled("the embeddings are not numbered from 0 without gaps")
            data = sorted(data, key=lambda item: int(item["index"]))
        return [item.get("embedding") for item in data]

    def advice(self, status: int | None) -> str:
        """What to do about a refusal."""
        return "Check model, base_url and the key under [embeddings] in pattern.toml."


class OpenAIWire:
    """The vendor's own client, loaded by the first question; its retries are off, ours know when to give up."""

    def __init__(self, base_url: str, api_key: Secret | None) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._client: openai.AsyncOpenAI | None = None
        self._opening = trio.Lock()

    async def ask(self, path: str, body: Mapping[str, object] | None) -> Answer:
        """POST the body.

        Raises:
            Unreached: no answer came.
        """
        client = await self._opened()
        import httpx2
        import openai

        try:
            response = await client.post(path, cast_to=httpx2.Response, body=dict(body or {}))
        except openai.APIStatusError as error:
            response = error.response
        except (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise Unreached(why(error, self._base_url)) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(status=response.status_code, headers=headers, body=self._redacted(response.content))

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _redacted(self, body: bytes) -> bytes:
        """Some servers repeat the key that they refuse."""
        return body.replace(self._api_key.reveal().encode(), b"***") if self._api_key else body

    async def _opened(self) -> openai.AsyncOpenAI:
        async with self._opening:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._load)
            return self._client

    def _load(self) -> openai.AsyncOpenAI:
        import httpx2
        import openai

        client = openai.AsyncOpenAI(
            api_key=self._api_key.reveal() if self._api_key else "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        )
        if self._base_url != BASE_URL:
            # The vendor's client takes these from the environment; they are no business of another server.
            client.organization = client.project = None
        return client
