"""Requests to a vendor over HTTP: the only place where a provider of models or vectors waits, fails or is cancelled.

The vendors' own libraries are not used: their streams swallow comments and pings, which distinguish a slow model from a
dead connection, set no bound on the size of an event, and leave generators to the garbage collector when a call fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from io import IncrementalNewlineDecoder
from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import trio

from pattern_core.ids import Clock, SystemClock
from pattern_core.models.errors import ModelError, ModelGarbage, ModelTimeout, ModelUnreachable
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta, Provider, TextDelta
from pattern_core.models.providers.draft import Decoder, Malformed, StreamEvent, loads
from pattern_core.models.providers.failures import rate_status, refusal, shortened, vendor_now_ms
from pattern_core.models.providers.settings import ProviderSettings, Secret

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_S = 10.0
DRAIN_S = 0.1  # after the reply, for the end of the body, so that the connection can be used again
LOOPBACK = ("127.0.0.1", "localhost", "::1")
IDLE_CONNECTIONS_MAX = 100  # how many are open at once is the gate's to bound
EVENT_BYTES_MAX = 8 * 1024 * 1024  # of an event, and of an answer that is not streamed

_SIGN_OF_LIFE = TextDelta(text="")


class HttpClient(ABC):
    """The connections to one vendor, opened by the first request. Every failure is translated, without the key.

    Redirects are not followed, since the key would go with them. Proxies and certificates are the environment's
    (`HTTPS_PROXY`, `SSL_CERT_FILE`), except for this machine, which no proxy reaches.
    """

    def __init__(self, name: str, base_url: str, api_key: Secret | None, *, clock: Clock | None = None) -> None:
        self.name = name
        self.base_url = base_url.rstrip("/")
        self._key = api_key.get_secret_value() if api_key else ""
        self._clock = clock or SystemClock()
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()
        self._in_use = 0  # exchanges in progress
        self._is_closed = False

    @abstractmethod
    def headers(self, key: str) -> Mapping[str, str]:
        """Return the headers of each request; `key` is "none" where none is configured."""

    @asynccontextmanager
    async def exchange(self, method: str, path: str, body: Mapping[str, object] | None) -> AsyncIterator[VendorAnswer]:
        """Send `body` as JSON and give the successful answer to read. `path` is below the address, or a whole address.

        Raises:
            ModelError: every failure, translated; so is `Malformed` of the code that reads.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._done)
            self._in_use += 1
            client = await self._opened()
            with self._translating():
                url = path if path.startswith("http") else self.base_url + path
                stream = client.stream(method, url, json=body)
                response = await stack.enter_async_context(stream)
            answer = VendorAnswer(response, self._translating, self._clock.now_ms())
            stack.push_async_callback(answer.finish, 0.0)
            try:
                if not response.is_success:
                    words = self._redacted(await answer.rest())
                    refused = refusal(self.name, response.status_code, answer.headers, words, answer.now_ms)
                    refused.rate = answer.rate
                    raise refused
                yield answer
            except Malformed as error:
                raise self._garbage(str(error)) from error

    async def aclose(self) -> None:
        """Close the connections to the vendor: now, or with the last exchange that runs. Another one opens them again,
        and closes them at its end.
        """
        self._is_closed = True
        if not self._in_use and self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _done(self) -> None:
        self._in_use -= 1
        if self._is_closed:
            with trio.CancelScope(shield=True):
                await self.aclose()

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            return self._client

    def _load(self) -> httpx2.AsyncClient:
        """Make the client; in a thread, as the import and the certificates take a while."""
        import httpx2

        return httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=host_of(self.base_url) not in LOOPBACK,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS_MAX),
            # Compression would hold small chunks back, and a stream that breaks in it leaves generators open.
            headers={"accept-encoding": "identity", **self.headers(self._key or "none")},
        )

    def _garbage(self, why: str) -> ModelGarbage:
        return ModelGarbage(f"{self.name} sent an invalid answer: {self._redacted(why)}", provider=self.name)

    @contextmanager
    def _translating(self, what: str = "failed") -> Iterator[None]:
        """Translate all that sending a request and reading its answer raise; `what` happened to the connection."""
        import httpx2

        try:
            yield
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
            where = f"{self.name} ({urlsplit(self.base_url).netloc.rpartition('@')[2]})"
            if isinstance(error, httpx2.TimeoutException):
                late = f"No connection to {where} within {CONNECT_TIMEOUT_S:g} s."
                raise ModelTimeout(late, provider=self.name) from error
            cause = error.__cause__ or error
            why = shortened(self._redacted(str(cause) or type(cause).__name__)).rstrip(".")
            if isinstance(error, httpx2.DecodingError | ValueError):  # bad compression, or text that is not Unicode
                raise self._garbage(why) from error
            advice = " Does it run, and is the base_url right?" if what == "failed" else ""
            broken = f"The connection to {where} {what}: {why}.{advice}"
            raise ModelUnreachable(broken, provider=self.name) from error

    def _redacted(self, words: str) -> str:
        return words.replace(self._key, "***") if self._key else words  # some servers repeat the key that they refuse


class HttpProvider(HttpClient, Provider):
    """A vendor's models over HTTP, at `OWN_URL` unless the settings name another address."""

    OWN_URL: ClassVar[str]

    def __init__(self, name: str, settings: ProviderSettings, *, clock: Clock | None = None) -> None:
        super().__init__(name, settings.base_url or self.OWN_URL, settings.api_key, clock=clock)
        self.settings = settings
        self.is_local = is_local(host_of(self.base_url))

    @abstractmethod
    def encode(self, request: ModelRequest) -> tuple[str, dict[str, object], Decoder]:
        """Return path and body of the request, and what reads the answer."""

    def models_path(self) -> str:
        """Return where the server lists its models. Sources: "List models" of each vendor's API."""
        return "/models"

    async def models(self) -> list[str]:
        """Return the names of the models that the server lists on its first page."""
        async with self.exchange("GET", self.models_path(), None) as answer:
            said = loads(await answer.rest())
            listed = "data" if "data" in said else "models"
            if not isinstance(said.get(listed), list):
                raise Malformed("no list of models")
        names = (one.text("id" if "id" in one else "name") for one in said.listed(listed))
        return [name.removeprefix("models/") for name in names if name]

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Send one request, streaming."""
        path, body, decoder = self.encode(request)
        sent = {name: value for name, value in body.items() if name not in self.settings.omit}
        async with self.exchange("POST", path, sent) as answer:
            kind = answer.headers.get("content-type", "").lower()
            if "html" in kind:
                raise Malformed(f"a page ({kind}) instead of an answer; is the base_url right?")
            if "json" in kind:
                for delta in decoder.whole(loads(await answer.rest())):
                    await on_delta(delta)
            else:
                await _stream(answer, decoder, on_delta)
            request_id = answer.headers.get("x-request-id") or answer.headers.get("request-id")
            return replace(decoder.reply(request_id), rate=answer.rate)


def host_of(url: str) -> str:
    """Return the name or number of the machine in an address; "" where there is none."""
    with suppress(ValueError):  # the connection fails and says so
        return urlsplit(url).hostname or ""
    return ""


def is_local(host: str) -> bool:
    """Return whether a host is this machine or one of its network, by its name or number."""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return bool(host) and ("." not in host or host.endswith((".local", ".lan", ".internal", ".localhost")))


async def _stream(answer: VendorAnswer, decoder: Decoder, on_delta: OnDelta) -> None:
    events = EventDecoder()
    chunk: bytes | None = b""
    while not decoder.is_done and chunk is not None:
        chunk = await answer.next()
        has_shown = False
        for event in events.end() if chunk is None else events.feed(chunk):
            for delta in decoder.feed(event):
                has_shown = True
                await on_delta(delta)
        if not has_shown and not decoder.draft.is_empty:
            await on_delta(_SIGN_OF_LIFE)
    await answer.finish(DRAIN_S)


class VendorAnswer:
    """What a vendor answers, with the failures of reading translated; what is done with a chunk runs outside of that.

    Names of `headers` are in lower case. `now_ms` is the moment by the vendor's clock, unix milliseconds.
    """

    def __init__(
        self, response: httpx2.Response, translating: Callable[[str], AbstractContextManager[None]], now_ms: int
    ) -> None:
        self.headers = dict(response.headers)
        self.now_ms = vendor_now_ms(self.headers, now_ms)
        self.rate = rate_status(self.headers, self.now_ms, trio.current_time())
        self._chunks = response.aiter_bytes()
        self._translating = translating

    async def next(self) -> bytes | None:
        """Return the next chunk, None at the end of the body."""
        with self._translating("was lost in the middle of the answer"):
            return await anext(self._chunks, None)

    async def rest(self, bytes_max: int = EVENT_BYTES_MAX) -> str:
        """Return the rest of the body as text.

        Raises:
            Malformed: it has more than `bytes_max` bytes.
        """
        body = bytearray()
        while (chunk := await self.next()) is not None:
            body += chunk
            if len(body) > bytes_max:
                raise Malformed(f"an answer of more than {bytes_max} bytes")
        return body.decode("utf-8", "replace")

    async def finish(self, timeout_s: float) -> None:
        """Read to the end of the body, or give it up after `timeout_s` seconds; what goes wrong no longer matters.

        The client's generators are nested, and closing the outer one leaves the inner ones to the garbage collector;
        a read that is cancelled unwinds them all and closes the socket.
        """
        with suppress(ModelError), trio.move_on_after(timeout_s):
            while await self.next() is not None:
                pass


class EventDecoder:
    """Server-sent events out of bytes, without I/O: any slicing of the bytes gives the same events.

    Source: WHATWG HTML, section 9.2.6, "Interpreting an event stream". Only `event` and `data` matter here, and
    `error`, which is not a field of the standard.
    """

    def __init__(self) -> None:
        utf8 = getincrementaldecoder("utf-8-sig")("replace")
        self._text = IncrementalNewlineDecoder(utf8, translate=True)
        self._line: list[str] = []  # pieces of a line that is not complete
        self._event = ""
        self._data: list[str] = []
        self._size = 0  # bytes since the chunk in which the last event ended

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that `chunk` completes, in order.

        Raises:
            Malformed: no end of an event came within `EVENT_BYTES_MAX` bytes.
        """
        self._size += len(chunk)
        events = self._take(self._text.decode(chunk))
        if self._size > EVENT_BYTES_MAX:
            raise Malformed(f"an event of more than {EVENT_BYTES_MAX} bytes")
        return events

    def end(self) -> list[StreamEvent]:
        """Return the events that are complete when the bytes end; a last one without its empty line counts too.

        The standard would drop that one; some servers end their stream that way.
        """
        return self._take(self._text.decode(b"", final=True) + "\n\n")

    def _take(self, text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        piece, *begun = text.split("\n")
        self._line.append(piece)
        for piece in begun:
            line = "".join(self._line)
            self._line = [piece]
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                if self._data:
                    events.append(StreamEvent(event=self._event, data="\n".join(self._data)))
                self._event, self._data, self._size = "", [], 0
            elif name == "event":
                self._event = value
            elif name in ("data", "error"):  # `error`: how older servers of llama.cpp report what goes wrong
                self._event = "error" if name == "error" else self._event
                self._data.append(value)
        return events
