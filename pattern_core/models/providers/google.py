"""Google's Gemini models: the provider. The format itself is in `gemini.py`.

It speaks over httpx2 directly. Tried with google-genai 3.4.0 on trio, the vendor's client takes a comment within a
stream for broken JSON, does not notice a stream that ends too early, leaves its generators to the garbage collector
when a call fails, and costs a second to import.

Source: Gemini API reference, "models.streamGenerateContent".
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from pattern_core.ids import Clock, SystemClock
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta
from pattern_core.models.providers.exchange import (
    CONNECT_TIMEOUT_S,
    PLAIN_HEADERS,
    HttpResponse,
    OpenClient,
    VendorConnection,
)
from pattern_core.models.providers.gemini import GeminiDecoder, encode
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.models.text import as_dict, as_str

if TYPE_CHECKING:
    import httpx2

BASE_URL = "https://generativelanguage.googleapis.com"
ERROR_BYTES_MAX = 64 * 1024

_MODEL = "model"  # within a body on its way to `post`, which takes it out: the format has it in the address
_HAS_VERSION = re.compile(r"/v\d\w*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """What is kept of a response that is no answer, in the form in which `VendorConnection` looks at it."""

    status_code: int
    headers: Mapping[str, str]


class _Refused(Exception):
    """The server answered with a status that is no success."""

    def __init__(self, response: _Refusal, body: object) -> None:
        super().__init__(response.status_code)
        self.response = response
        self.body = body


class GoogleProvider:
    """A provider of kind "google". `base_url` may end in the version of the API, else it is v1beta."""

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
        address = (base_url or BASE_URL).rstrip("/")
        self._address = address if _HAS_VERSION.search(urlsplit(address).path) else f"{address}/v1beta"
        self._omit = frozenset(omit)
        self._connection = VendorConnection(name, self._address, api_key, clock or SystemClock(), self._load)

    @classmethod
    def from_settings(cls, name: str, settings: ProviderSettings) -> GoogleProvider:
        """Return the provider that `settings` describe."""
        return cls(name, settings.api_key or Secret("none"), settings.base_url, omit=settings.omit)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Ask once, streaming; an empty delta is a sign of life, such as a part without words.

        Raises:
            ModelError: every failure, translated.
        """
        body = {name: value for name, value in encode(request).items() if name not in self._omit}
        body[_MODEL] = request.model
        return await self._connection.converse(body, GeminiDecoder(request, self.name), on_delta)

    async def aclose(self) -> None:
        """Close the connections to the vendor."""
        await self._connection.aclose()

    def _load(self) -> OpenClient:
        import httpx2

        client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            headers={**PLAIN_HEADERS, "x-goog-api-key": self._api_key.reveal()},
        )

        @asynccontextmanager
        async def post(body: dict[str, object]) -> AsyncIterator[HttpResponse]:
            sent = {name: value for name, value in body.items() if name != _MODEL}
            model = quote(as_str(body[_MODEL]).removeprefix("models/"), safe="")
            address = f"{self._address}/models/{model}:streamGenerateContent?alt=sse"
            async with client.stream("POST", address, json=sent) as response:
                if not response.is_success:
                    raise await _refused(response)
                yield response

        return OpenClient(
            post=post,
            errors=(_Refused, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError),
            timeouts=(httpx2.TimeoutException,),
            undecodable=(httpx2.DecodingError, ValueError),
            statuses=(_Refused,),
            close=client.aclose,
        )


async def _refused(response: httpx2.Response) -> _Refused:
    read = bytearray()
    async for piece in response.aiter_bytes():  # to its end, or the client's generators would be left open
        read += piece[: ERROR_BYTES_MAX - len(read)]
    headers = {name.lower(): value for name, value in response.headers.items()}
    return _Refused(_Refusal(status_code=response.status_code, headers=headers), _error_body(bytes(read)))


def _error_body(data: bytes) -> object:
    """The error's body, its words completed by the vendor's wish when to come back; else the text as it is."""
    text = data.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(body, list):  # the form of errors outside of an event stream
        body = body[0] if body else {}
    error = dict(as_dict(as_dict(body).get("error")))
    if not error:
        return body
    # The code repeats the HTTP status; the status is the vendor's word for the kind of error.
    error["code"] = as_str(error.get("status")) or error.get("code")
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        delay = as_str(as_dict(detail).get("retryDelay"))
        if delay and "retry in" not in as_str(error.get("message")).lower():
            error["message"] = f"{as_str(error.get('message'))} Retry in {delay}."
    return {"error": error}
