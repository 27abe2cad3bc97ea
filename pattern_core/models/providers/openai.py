"""OpenAI's models, and the many servers that speak its format (Ollama, llama.cpp, vLLM, OpenRouter …): the provider.

The formats are in `openai_chat.py` and `openai_responses.py`; the provider asks in either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pattern_core.ids import Clock, SystemClock
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta
from pattern_core.models.providers.exchange import (
    CONNECT_TIMEOUT_S,
    PLAIN_HEADERS,
    HttpResponse,
    OpenClient,
    VendorConnection,
)
from pattern_core.models.providers.openai_chat import ChatDecoder, Server, encode
from pattern_core.models.providers.openai_responses import ResponseDecoder, encode_response, needs_responses
from pattern_core.models.providers.settings import OpenAIFormat, ProviderSettings, Secret

BASE_URL = "https://api.openai.com/v1"


class OpenAIProvider:
    """A provider of kind "openai".

    `base_url` None is OpenAI's own; with another one the key may be missing. `omit` names fields of the body that a
    server does not accept, such as `seed` or `stream_options`. `api` is the format in which it asks; OpenAI's own
    server is asked in responses, whatever that says, where it takes a model's questions in no other.
    """

    def __init__(
        self,
        name: str,
        api_key: Secret | None,
        base_url: str | None = None,
        *,
        omit: Sequence[str] = (),
        api: OpenAIFormat = "chat",
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._api = api
        self._api_key = api_key
        self._base_url = base_url or BASE_URL
        self._server = Server.at(name, self._base_url)
        self._omit = frozenset(omit)
        self._connection = VendorConnection(name, self._base_url, api_key, clock or SystemClock(), self._load)

    @classmethod
    def from_settings(cls, name: str, settings: ProviderSettings) -> OpenAIProvider:
        """Return the provider that `settings` describe."""
        return cls(name, settings.api_key or None, settings.base_url, omit=settings.omit, api=settings.api)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Ask once, streaming; an empty delta is a sign of life, such as a piece of a tool call's arguments.

        Raises:
            ModelError: every failure, translated.
        """
        body, decoder = worded(request, self._server, self._api)
        kept = {name: value for name, value in body.items() if name not in self._omit}
        return await self._connection.converse(kept, decoder, on_delta)

    async def aclose(self) -> None:
        """Close the connections to the vendor."""
        await self._connection.aclose()

    def _load(self) -> OpenClient:
        import httpx2
        import openai

        client = openai.AsyncOpenAI(
            api_key=self._api_key.reveal() if self._api_key else "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            default_headers=PLAIN_HEADERS,
        )
        if self._base_url != BASE_URL:
            # The vendor's client takes these from the environment; they are no business of another server.
            client.organization = client.project = None

        @asynccontextmanager
        async def post(body: dict[str, object]) -> AsyncIterator[HttpResponse]:
            # The body is in the vendor's form already; `extra_body` spares it a second, slow walk through the types.
            if "input" in body:
                respond = client.responses.with_streaming_response.create
                async with respond(model="", input="", stream=True, extra_body=body) as response:
                    yield response.http_response
                return
            create = client.chat.completions.with_streaming_response.create
            async with create(model="", messages=[], stream=True, extra_body=body) as response:
                yield response.http_response

        return OpenClient(
            post=post,
            errors=(openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError),
            timeouts=(openai.APITimeoutError, httpx2.TimeoutException),
            undecodable=(httpx2.DecodingError, ValueError),
            statuses=(openai.APIStatusError,),
            close=client.close,
        )


def worded(
    request: ModelRequest, server: Server, api: OpenAIFormat
) -> tuple[dict[str, object], ChatDecoder | ResponseDecoder]:
    """The body of the request in the format that the server takes, and what reads the answer."""
    if api == "responses" or (server.is_own and needs_responses(request.model)):
        return encode_response(request), ResponseDecoder(request, server.name)
    return encode(request, server), ChatDecoder(request, server.name)
