"""A service's socket, for those whose vendors have no client of their own worth loading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from pattern_core.embeddings.providers.remote import ANSWER_BYTES_MAX, Answer, Unreached

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_S = 10.0


class HttpWire:
    """Requests to `base_url` with these headers; the client is made by the first one. Proxies are the environment's."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = dict(headers or {})
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()

    async def ask(self, path: str, body: Mapping[str, object] | None) -> Answer:
        """POST the body as JSON, or GET without one.

        Raises:
            Unreached: no answer came, or one of more than `ANSWER_BYTES_MAX` bytes.
        """
        import httpx2

        client = await self._opened()
        try:
            async with client.stream("GET" if body is None else "POST", self._base_url + path, json=body) as response:
                whole = bytearray()
                async for piece in response.aiter_bytes():
                    whole += piece
                    if len(whole) > ANSWER_BYTES_MAX:
                        raise Unreached(f"it answered more than {ANSWER_BYTES_MAX} bytes")
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Answer(status=response.status_code, headers=headers, body=bytes(whole))
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise Unreached(why(error, self._base_url)) from error

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._load)
            return self._client

    def _load(self) -> httpx2.AsyncClient:
        import httpx2

        # The time of the whole question is the caller's; a port that swallows packets is noticed sooner.
        return httpx2.AsyncClient(timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S), headers=self._headers)


def why(error: Exception, base_url: str) -> str:
    """A failed request in words, with the host but without anything secret."""
    cause = error.__cause__ or error
    return f"{str(cause) or type(cause).__name__} ({urlsplit(base_url).netloc.rpartition('@')[2]})"
