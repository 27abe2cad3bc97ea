"""One streamed question to a vendor over HTTP: the only place where a vendor's client waits, fails or is cancelled.

The vendors' own clients send the request, authenticate and report statuses; the answer's bytes are decoded here, since
their stream classes swallow pings and comments. Each chunk without new words becomes an empty delta: a sign of life.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

import trio

from pattern_core.ids import Clock
from pattern_core.models.errors import ModelError, ModelGarbage, ModelTimeout, ModelUnreachable
from pattern_core.models.model import Delta, ModelReply, OnDelta, RateStatus, TextDelta
from pattern_core.models.providers.draft import Malformed, Unfinished, loads
from pattern_core.models.providers.failures import failure, shortened, vendor_words
from pattern_core.models.providers.rates import rate_status, retry_after_s, vendor_now_ms
from pattern_core.models.providers.settings import Secret
from pattern_core.models.providers.sse import EVENT_BYTES_MAX, EventDecoder, EventTooLong, StreamEvent

CONNECT_TIMEOUT_S = 10.0
DRAIN_S = 0.1  # after the reply, for the end of the body, so that the connection can be used again

# Compression would hold small chunks back, and a stream that breaks in it leaves the client's generators open.
PLAIN_HEADERS = {"accept-encoding": "identity"}

_SIGN_OF_LIFE = TextDelta(text="")


class Decoder(Protocol):
    """Turns a vendor's events into a reply; pure. Errors are `Malformed`, or a `ModelError` that the stream reports."""

    @property
    def is_done(self) -> bool:
        """True once the vendor has said that nothing more comes."""
        ...

    def feed(self, event: StreamEvent) -> list[Delta]:
        """Take the next event; returns what can be shown now."""
        ...

    def whole(self, body: dict[str, object]) -> list[Delta]:
        """Take an answer that came as one JSON object, although a stream was asked for."""
        ...

    def reply(self, request_id: str | None) -> ModelReply:
        """The reply, at the end; raises `Unfinished` if the vendor did not end it, `Malformed` if it makes no sense."""
        ...


class HttpResponse(Protocol):
    """What is used of httpx2.Response."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in any case."""
        ...

    def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        """The body, decompressed."""
        ...

    def aiter_raw(self) -> AsyncGenerator[bytes, None]:
        """The body as it came."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClient:
    """A vendor's client, loaded and open.

    `post` sends a body and yields the response; `errors` are all classes that it and reading may raise, `timeouts`,
    `undecodable` (bad compression) and `statuses` (with `.response` and `.body`) are those told apart.
    """

    post: Callable[[dict[str, object]], AbstractAsyncContextManager[HttpResponse]]
    errors: tuple[type[Exception], ...]
    timeouts: tuple[type[Exception], ...]
    undecodable: tuple[type[Exception], ...]
    statuses: tuple[type[Exception], ...]
    close: Callable[[], Awaitable[None]]


class VendorConnection:
    """A provider's lazily loaded client. Loading imports a large library: a second of work, in a thread, once."""

    def __init__(
        self, name: str, base_url: str, api_key: Secret | None, clock: Clock, load: Callable[[], OpenClient]
    ) -> None:
        self._name = name
        self._host = urlsplit(base_url).netloc.rpartition("@")[2]
        self._api_key = api_key
        self._clock = clock
        self._load = load
        self._client: OpenClient | None = None
        self._loading = trio.Lock()

    async def converse(self, body: dict[str, object], decoder: Decoder, on_delta: OnDelta) -> ModelReply:
        """Send `body`, feed the answer to `decoder` and pass its deltas on.

        Raises:
            ModelError: for every way in which this fails.
        """
        client = await self._opened()
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(client.post(body))
            except client.errors as error:
                raise self._translated(error, client) from error
            rate = self._rate(response.headers)
            request_id = response.headers.get("x-request-id") or response.headers.get("request-id")
            chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
            reader = _Reader(chunks, self._translated, client)
            stack.push_async_callback(reader.finish, 0.0)
            try:
                await self._read(response, reader, decoder, on_delta)
                return replace(decoder.reply(request_id), rate=rate)
            except (Malformed, EventTooLong) as error:
                raise self._garbage(str(error)) from error
            except Unfinished as error:
                raise ModelUnreachable(
                    f"{self._name} ended its answer before it was complete.", provider=self._name
                ) from error

    async def aclose(self) -> None:
        """Close the client's connections; it opens again with the next question."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _opened(self) -> OpenClient:
        async with self._loading:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            return self._client

    async def _read(self, response: HttpResponse, reader: _Reader, decoder: Decoder, on_delta: OnDelta) -> None:
        kind = response.headers.get("content-type", "").lower()
        if "html" in kind:
            raise Malformed(f"a page ({kind}) instead of an answer; is the base_url right?")
        if "json" in kind:
            for delta in decoder.whole(loads(await reader.rest())):
                await on_delta(delta)
            return
        events = EventDecoder()
        while (chunk := await reader.next()) is not None:
            await self._pass_on(events.feed(chunk), decoder, on_delta)
            if decoder.is_done:
                await reader.finish(DRAIN_S)
                return
        await self._pass_on(events.end(), decoder, on_delta)

    async def _pass_on(self, events: list[StreamEvent], decoder: Decoder, on_delta: OnDelta) -> None:
        has_shown = False
        for event in events:
            if decoder.is_done:
                break
            for delta in decoder.feed(event):
                has_shown = True
                await on_delta(delta)
        if not has_shown:
            await on_delta(_SIGN_OF_LIFE)

    def _rate(self, headers: Mapping[str, str]) -> RateStatus | None:
        lower = {name.lower(): value for name, value in headers.items()}
        return rate_status(lower, vendor_now_ms(lower, self._clock.now_ms()), trio.current_time())

    def _garbage(self, why: str) -> ModelGarbage:
        return ModelGarbage(f"{self._name} sent what is not in its format: {self._redacted(why)}", provider=self._name)

    def _translated(self, error: Exception, client: OpenClient) -> ModelError:
        if isinstance(error, client.timeouts):
            return ModelTimeout(
                f"No connection to {self._name} ({self._host}) within {CONNECT_TIMEOUT_S:g} s.", provider=self._name
            )
        if isinstance(error, client.statuses):
            response = getattr(error, "response")  # noqa: B009 - both vendors' errors have it; neither is imported here
            words, code = vendor_words(getattr(error, "body", None))
            headers = {name.lower(): value for name, value in response.headers.items()}
            wait_s = retry_after_s(headers, words, vendor_now_ms(headers, self._clock.now_ms()))
            refused = failure(self._name, response.status_code, self._redacted(words), code=code, retry_after_s=wait_s)
            refused.rate = self._rate(headers)
            return refused
        cause = error.__cause__ or error
        why = self._redacted(str(cause) or type(cause).__name__)
        if isinstance(error, client.undecodable):
            return self._garbage(why)
        return ModelUnreachable(
            f"The connection to {self._name} ({self._host}) failed: {why}. Does it run, and is the base_url right?",
            provider=self._name,
        )

    def _redacted(self, words: str) -> str:
        if self._api_key:
            words = words.replace(self._api_key.reveal(), "***")  # some servers repeat the key that they refuse
        return shortened(words)


class _Reader:
    """The chunks of a body, with the failures of reading translated; `on_delta` runs outside of that."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        translated: Callable[[Exception, OpenClient], ModelError],
        client: OpenClient,
    ) -> None:
        self._chunks = chunks
        self._translated = translated
        self._client = client

    async def next(self) -> bytes | None:
        """The next chunk, None at the end of the body."""
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            return None
        except self._client.errors as error:
            raise self._translated(error, self._client) from error

    async def rest(self) -> str:
        """The rest of the body as text; raises `Malformed` beyond `EVENT_BYTES_MAX` bytes."""
        body = bytearray()
        while (chunk := await self.next()) is not None:
            body += chunk
            if len(body) > EVENT_BYTES_MAX:
                raise Malformed(f"an answer of more than {EVENT_BYTES_MAX} bytes")
        return body.decode("utf-8", "replace")

    async def finish(self, timeout_s: float) -> None:
        """Read to the end of the body, or give it up after `timeout_s` seconds; what goes wrong no longer matters.

        The client's generators are nested, and closing the outer one leaves the inner ones to the garbage collector;
        a read that is cancelled unwinds them all and closes the socket.
        """
        try:
            with trio.move_on_after(timeout_s):
                while await self.next() is not None:
                    pass
        except ModelError:
            pass
