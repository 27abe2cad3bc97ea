"""Download of one page: every address is checked and used as checked, every step bounded.

A host's addresses are looked up once, each is checked, and the connection is made to one of the checked addresses; the
host's name is still what the certificate must say. A second look-up could answer otherwise (DNS rebinding). Redirects
are followed here and checked again. No cookies, no credentials, no proxy: a proxy would look the name up by itself.

Nothing is unpacked, since a small answer may hold gigabytes: bodies are asked for as they are (RFC 9110, 12.5.3:
`identity`), and refused if they come otherwise.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import cache
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import trio

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied, Unavailable
from pattern_core.web.policy import WebPolicy, WebTarget, refusal

if TYPE_CHECKING:
    import httpx2

REDIRECTS_MAX = 5
ADDRESSES_MAX = 4  # of one host that are tried in turn
CONNECT_TIMEOUT_S = 8.0  # per address
BYTES_MAX = 5 * 1024 * 1024  # of a page; the rest is not read
XML_ELEMENTS_MAX = 300_000  # of one document: each costs memory
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_PERMANENT = frozenset((301, 308))
_AGENT = "Mozilla/5.0 (compatible; Pattern)"  # many sites refuse what does not look like a browser

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host (name, port) in the order to be tried. Raises OSError if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A page as it came. `url` is where it was in the end; `is_moved`: it moved there permanently. `is_cut`: more came
    than the downloader reads.
    """

    url: str
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_cut: bool = False
    is_moved: bool = False

    @property
    def content_type(self) -> str:
        """Such as `text/html`, in lower case and without parameters; empty if the server named none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def retry_after_s(self) -> int | None:
        """When the server wants to be asked again, in seconds; None if it did not say, or as a date."""
        after = self.headers.get("retry-after", "")
        return int(after) if after.isdecimal() and len(after) < 6 else None

    @property
    def charset(self) -> str | None:
        """The encoding that the server named."""
        message = Message()
        message["content-type"] = self.headers.get("content-type", "")
        return message.get_content_charset()


async def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of `host` by the system's resolver.

    Raises:
        OSError: the name has none, or no resolver answered.
    """
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@cache
def trusting() -> ssl.SSLContext:
    """Return what trusts the system's certificates: reading them is slow, and they take memory."""
    return ssl.create_default_context()


class Downloader:
    """Downloads pages under a policy. `timeout_s` is for one page with all its redirects; what is beyond its first
    `bytes_max` bytes (None: `BYTES_MAX`) is not read.
    """

    def __init__(
        self,
        policy: WebPolicy,
        *,
        timeout_s: float = 30.0,
        bytes_max: int | None = None,
        resolve: Resolve = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self._bytes_max = BYTES_MAX if bytes_max is None else bytes_max
        self._resolve = resolve
        self._tls = tls

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        redirects_max: int = REDIRECTS_MAX,
        method: str | None = None,
    ) -> Download:
        """Return the page at `url`, whatever its status; a `body` is posted, unless the `method` is another one.
        `headers` go wherever it is redirected to.

        Raises:
            InvalidInput: `url` is not an address of a page, or the answer cannot be read.
            PermissionDenied: the page, or one that it leads to, may not be visited.
            NotFound: the host does not exist.
            Unavailable: there was no answer in time.
        """
        method = method or ("GET" if body is None else "POST")
        with trio.move_on_after(self._timeout_s):
            tls = await self._context()
            where, is_moved = url, True
            for _ in range(redirects_max + 1):
                target = self._policy.check(where)
                answer = await self._visit(target, method, headers or {}, body, tls)
                location = answer.headers.get("location")
                if answer.status not in _REDIRECTS or location is None:
                    return replace(answer, is_moved=is_moved and where != url)
                where, is_moved = target.join(location), is_moved and answer.status in _PERMANENT
            raise Unavailable(f"the page was redirected more than {redirects_max} times, the last time to {where}")
        raise Unavailable(f"{url} was not there within {self._timeout_s:g} s; try again later", retry_after_s=60)

    async def connect(self, url: str) -> tuple[trio.abc.Stream, WebTarget]:
        """Return a connection to the host of `url`, for other protocols than HTTP; it is encrypted if `url` is https.

        Raises:
            InvalidInput: `url` is not an address.
            PermissionDenied: the host may not be visited.
            NotFound: the host does not exist.
            Unavailable: it did not accept the connection in time.
        """
        target, why = self._policy.check(url), f"it did not answer within {self._timeout_s:g} s"
        with trio.move_on_after(self._timeout_s):
            tls = await self._context() if target.url.scheme == "https" else None
            for address in (await self.addresses(target))[:ADDRESSES_MAX]:
                try:
                    with trio.fail_after(CONNECT_TIMEOUT_S):
                        stream = await trio.open_tcp_stream(address, target.port)
                        return (stream if tls is None else await _encrypted(stream, target, tls)), target
                except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
                    why = _reason(error)
        words = f"{target.host} accepts no connection ({why}); try again later"
        raise Unavailable(words, retry_after_s=60, was_sent=False)

    async def _context(self) -> ssl.SSLContext:
        if self._tls is not None:
            return self._tls
        return await trio.to_thread.run_sync(trusting)

    async def _visit(
        self, target: WebTarget, method: str, headers: Mapping[str, str], body: bytes | None, tls: ssl.SSLContext
    ) -> Download:
        """Ask one host, at the first of its addresses that accepts the connection."""
        import httpx2

        why = ""
        for address in (await self.addresses(target))[:ADDRESSES_MAX]:
            try:
                return await _ask(target, address, method, headers, body, tls, self._bytes_max)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                why = _reason(error)
            except httpx2.HTTPError as error:
                raise Unavailable(
                    f"{target.host} broke off the answer ({str(error) or type(error).__name__}); try again later"
                ) from error
        words = f"{target.host} accepts no connection ({why}); try again later"
        raise Unavailable(words, retry_after_s=60, was_sent=False)

    async def addresses(self, target: WebTarget) -> Sequence[str]:
        """Return the addresses of a host, in the order to be tried; each may be connected to.

        Raises:
            NotFound: the host does not exist.
            PermissionDenied: one of them may not be visited.
        """
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise NotFound(f"there is no host {target.host} ({error}); is the address right?") from None
        # All of them: a name that points at a public and at a private address is a trap.
        for address in addresses:
            why = refusal(address, allow_private=self._policy.allow_private)
            if why is None and self._policy.denies(address):  # a name for it, or the same number written otherwise
                why = f"this server's rules forbid {address}"
            if why is not None:
                raise PermissionDenied(f"{target.host} may not be visited: {why}")
        if not addresses:
            raise NotFound(f"the host {target.host} has no address")
        return addresses


async def _ask(
    target: WebTarget,
    address: str,
    method: str,
    headers: Mapping[str, str],
    body: bytes | None,
    tls: ssl.SSLContext,
    bytes_max: int,
) -> Download:
    import httpx2

    request = httpx2.Request(
        method,
        target.url.copy_with(host=address),  # a second look-up of the host could give another one
        headers={
            "Host": target.url.netloc.decode("ascii"),
            "User-Agent": _AGENT,
            "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,*/*;q=0.5",
            "Accept-Encoding": "identity",
            **headers,
        },
        content=body,
        extensions={
            # The certificate must be for the name, though the connection is made to an address.
            "sni_hostname": target.host,
            "timeout": {"connect": CONNECT_TIMEOUT_S, "read": None, "write": None, "pool": None},
        },
    )
    # A transport of its own, no client: that would keep cookies, and follow what the environment says.
    async with (
        httpx2.AsyncHTTPTransport(verify=tls, trust_env=False) as transport,
        aclosing(await transport.handle_async_request(request)) as response,
    ):
        return await _read(target, response, bytes_max)


async def _encrypted(stream: trio.SocketStream, target: WebTarget, tls: ssl.SSLContext) -> trio.abc.Stream:
    """Return the stream with TLS; the certificate must be for the name, though the connection is to an address."""
    encrypted = trio.SSLStream(stream, tls, server_hostname=target.host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return encrypted


def _reason(error: BaseException) -> str:
    """Return why a connection failed, from the innermost error: libraries wrap it, some without a message."""
    words = type(error).__name__
    inner: BaseException | None = error
    while inner is not None:
        words = str(inner) or words
        inner = inner.__cause__ or inner.__context__
    return words


async def _read(target: WebTarget, response: httpx2.Response, bytes_max: int) -> Download:
    headers = {name.lower(): value for name, value in response.headers.items()}
    page = Download(url=str(target.url), status=response.status_code, headers=headers)
    if response.status_code in _REDIRECTS:
        return page
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise InvalidInput(f"the page came compressed, which was not asked for ({encoding[:40]}), so it cannot be read")
    body = bytearray()
    # Cancelled and not left by `break`: that would leave the library's generators to the garbage collector.
    with trio.CancelScope() as scope:
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > bytes_max:
                scope.cancel()
    return replace(page, body=bytes(body[:bytes_max]), is_cut=len(body) > bytes_max)


def check_status(page: Download) -> None:
    """Refuse error pages of a server.

    Raises:
        NotFound: there is no such page (404, 410).
        PermissionDenied: it is not public (401, 402, 403, 451).
        Unavailable: the server cannot now (408, 429, 5xx); `details["retry_after_s"]` if it said when.
        InvalidInput: it did not like the request.
    """
    said = f"{page.url} answered with HTTP status {page.status}"
    match page.status:
        case status if 200 <= status < 300:
            return
        case 404 | 410:
            raise NotFound(f"{said}: there is no such page; check the address, or search for it")
        case 401 | 402 | 403 | 451:
            raise PermissionDenied(f"{said}: the page is not public; look for another source")
        case status if status in (408, 425, 429) or status >= 500:
            wait = 60 if page.retry_after_s is None else page.retry_after_s
            raise Unavailable(f"{said}: the server cannot answer now; try again in {wait} s", retry_after_s=wait)
        case _:
            raise InvalidInput(f"{said}, so there is nothing to read")


def parse_xml(body: bytes, what: str) -> Element:
    """Return the root of a document, its tags without their namespaces; `what` it should be, such as "a feed". The
    parser of the standard library is used as it is, without definitions of entities: only attacks need them.

    Raises:
        InvalidInput: it is not XML, defines entities, or has more than `XML_ELEMENTS_MAX` elements.
    """
    builder, parser = TreeBuilder(), expat.ParserCreate(namespace_separator="}")
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > XML_ELEMENTS_MAX:
            raise InvalidInput(f"this is not {what}: it has more than {XML_ELEMENTS_MAX} elements")
        builder.start(tag.rpartition("}")[2], attributes)

    def refuse(*_declared: object) -> None:
        raise InvalidInput(f"this is not {what}: it defines entities, which are not read")

    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda tag: builder.end(tag.rpartition("}")[2])
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(body, True)
        return builder.close()
    except (expat.ExpatError, AssertionError, ValueError, LookupError) as error:
        raise InvalidInput(f"this is not {what}: {error}") from None
