"""Anthropic's models: the provider. The format is in `claude.py`; compatible gateways are reached by `base_url`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pattern_core.ids import Clock, SystemClock
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta
from pattern_core.models.providers.claude import MessageDecoder, encode
from pattern_core.models.providers.exchange import (
    CONNECT_TIMEOUT_S,
    PLAIN_HEADERS,
    HttpResponse,
    OpenClient,
    VendorConnection,
)
from pattern_core.models.providers.settings import ProviderSettings, Secret

BASE_URL = "https://api.anthropic.com"


class AnthropicProvider:
    """A provider of kind "anthropic". `omit` names fields of the body that a gateway does not accept."""

    def __init__(
        self,
        name: str,
        api_key: Secret,
        base_url: str | None = None,
        *,
        omit: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._api_key = api_key
        self._base_url = base_url or BASE_URL
        self._omit = frozenset(omit)
        self._connection = VendorConnection(name, self._base_url, api_key, clock or SystemClock(), self._load)

    @classmethod
    def from_settings(cls, name: str, settings: ProviderSettings) -> AnthropicProvider:
        """Return the provider that `settings` describe."""
        return cls(name, settings.api_key or Secret("none"), settings.base_url, omit=settings.omit)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Ask once, streaming; an empty delta is a sign of life, such as a ping.

        Raises:
            ModelError: every failure, translated.
        """
        body = {name: value for name, value in encode(request).items() if name not in self._omit}
        return await self._connection.converse(body, MessageDecoder(request, self.name), on_delta)

    async def aclose(self) -> None:
        """Close the connections to the vendor."""
        await self._connection.aclose()

    def _load(self) -> OpenClient:
        import anthropic
        import httpx2

        headers = dict(PLAIN_HEADERS)
        if self._base_url != BASE_URL:
            # Gateways made for earlier versions of the vendor's client look for the key here.
            headers["x-api-key"] = self._api_key.reveal()
        client = anthropic.AsyncAnthropic(
            api_key=self._api_key.reveal(),
            base_url=self._base_url,
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            default_headers=headers,
            open_telemetry=False,  # else the environment decides whether prompts leave by that way
        )

        @asynccontextmanager
        async def post(body: dict[str, object]) -> AsyncIterator[HttpResponse]:
            # The body is in the vendor's form already; `extra_body` spares it a second, slow walk through the types.
            create = client.messages.with_streaming_response.create
            async with create(max_tokens=1, messages=[], model="", stream=True, extra_body=body) as response:
                yield response.http_response

        return OpenClient(
            post=post,
            errors=(anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError),
            timeouts=(anthropic.APITimeoutError, httpx2.TimeoutException),
            undecodable=(httpx2.DecodingError, ValueError),
            statuses=(anthropic.APIStatusError,),
            close=client.close,
        )
