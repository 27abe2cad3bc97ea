"""An MCP server at an address: the library's streamable HTTP, with bounds on what comes back.

The operator named the address, so it may be a private one; the library follows a redirect only within it. No proxy, no
cookies of others: the headers hold keys, and go nowhere else.

Source: the transport `streamable HTTP` of the Model Context Protocol, 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from pattern_core.mcp_servers.settings import McpSettings, Streamable

if TYPE_CHECKING:
    import httpx2

ANSWER_BYTES_MAX = 8 * 1024 * 1024
EVENT_BYTES_MAX = 4 * 1024 * 1024  # of one message within a stream of events
CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 300.0  # of a stream that is open; longer than any call may take, unless configured otherwise


@asynccontextmanager
async def http_client(reach: Streamable, settings: McpSettings) -> AsyncIterator[httpx2.AsyncClient]:
    """The client that asks this server and no other."""
    import httpx2

    context = await trio.to_thread.run_sync(ssl.create_default_context)  # reading the system's certificates takes long
    async with httpx2.AsyncClient(
        headers={
            # What is packed could unpack to any length.
            "accept-encoding": "identity",
            **{name: value.reveal() for name, value in reach.headers.items()},
        },
        timeout=httpx2.Timeout(CONNECT_TIMEOUT_S, read=max(SILENCE_S, 2 * settings.call_timeout_s)),
        event_hooks={"response": [_bounding()]},
        verify=context,
        trust_env=False,
    ) as client:
        yield client


def _bounding() -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook that keeps documents within `ANSWER_BYTES_MAX`. Streams of events have a bound for each event."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, inner: httpx2.AsyncByteStream) -> None:
            self._inner = inner
            self._left = ANSWER_BYTES_MAX

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._inner:
                self._left -= len(piece)
                if self._left < 0:
                    raise httpx2.ReadError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
                yield piece

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            raise httpx2.ReadError(f"it does not accept the key that it was sent (HTTP status {response.status_code})")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.ReadError("the answer is packed, which was not asked for")
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if not is_stream and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = Bounded(response.stream)

    return bound
