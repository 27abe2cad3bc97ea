"""The web of one constellation: fetching pages and searching for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import trio

from pattern_core.errors import InvalidInput, Overloaded, Unavailable
from pattern_core.ids import Clock
from pattern_core.web.download import Downloader, Resolve, check_status, look_up
from pattern_core.web.engines import EngineRequest, WebHit, engine_of, read_answer
from pattern_core.web.page import Format, WebPage, read_page
from pattern_core.web.policy import WebSettings

FETCHES_MAX = 4  # of one constellation at once
QUERY_CHARS_MAX = 400
ANSWER_BYTES_MAX = 2 * 1024 * 1024  # of a search engine
CACHE_AGE_MS_MAX = 5 * 60_000
CACHE_CHARS_MAX = 8_000_000  # of all pages together
PAGE_CHARS = 1_000  # that a page counts besides its text: its addresses, its title


class Web:
    """Fetches and searches; keeps pages for five minutes. It owns no socket between calls and need not be closed."""

    def __init__(self, settings: WebSettings, *, clock: Clock, resolve: Resolve = look_up) -> None:
        self._settings = settings
        self._downloader = Downloader(settings.policy, timeout_s=settings.timeout_s, resolve=resolve)
        self._cache = PageCache(clock)
        self._slots = trio.CapacityLimiter(FETCHES_MAX)

    async def fetch(self, url: str, wanted: Format = "markdown") -> WebPage:
        """The whole page at `url`, from the cache if it was there within five minutes.

        Raises:
            InvalidInput: it is no address of a page, or the page holds no text.
            PermissionDenied: it may not be visited, or is not open to everybody.
            NotFound: there is no such host or page.
            Unavailable: its server does not answer, or not now.
        """
        kept = self._cache.get(url, wanted)
        if kept is not None:
            return kept
        async with self._slots:
            download = await self._downloader.get(url)
            check_status(download)
            page = await read_page(download, wanted)
        self._cache.put(url, page)
        return page

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """At most `limit` pages that the configured engine finds.

        Raises:
            InvalidInput: the query is empty or too long, or no engine is configured.
            Overloaded: the engine wants to be asked less often.
            Unavailable: the engine does not answer, or not so that it can be read.
        """
        if not query.strip() or len(query) > QUERY_CHARS_MAX:
            raise InvalidInput(f"a query has 1 to {QUERY_CHARS_MAX} characters, this one {len(query)}")
        engine = engine_of(self._settings.search)
        question = engine.question(query.strip(), limit)
        with trio.move_on_after(self._settings.timeout_s):
            async with self._slots:
                return read_answer(engine, await _ask(question), limit)
        raise Unavailable(f"the search engine did not answer within {self._settings.timeout_s:g} s; try again later")


class PageCache:
    """Pages that were read lately, by address and form, so that reading on asks nobody; the least used go first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: OrderedDict[tuple[str, Format], tuple[int, WebPage]] = OrderedDict()
        self._chars = 0

    def get(self, url: str, wanted: Format) -> WebPage | None:
        """The page, if it is here and young enough."""
        found = self._pages.get((url, wanted))
        if found is None:
            return None
        if not 0 <= self._clock.now_ms() - found[0] < CACHE_AGE_MS_MAX:
            self._remove((url, wanted))
            return None
        self._pages.move_to_end((url, wanted))
        return found[1]

    def put(self, url: str, page: WebPage) -> None:
        """Keep a page that was asked for as `url`, in the place of others if need be."""
        key = (url, page.format)
        if key in self._pages:
            self._remove(key)
        self._pages[key] = (self._clock.now_ms(), page)
        self._chars += PAGE_CHARS + len(page.text)
        while self._chars > CACHE_CHARS_MAX:
            self._remove(next(iter(self._pages)))

    def _remove(self, key: tuple[str, Format]) -> None:
        _since, page = self._pages.pop(key)
        self._chars -= PAGE_CHARS + len(page.text)


async def _ask(question: EngineRequest) -> bytes:
    import httpx2  # heavy, and needed by those who search only

    body = bytearray()
    try:
        async with (
            httpx2.AsyncClient(timeout=None) as client,  # the caller bounds it
            client.stream(
                "GET", question.url, params=dict(question.parameters), headers=dict(question.headers)
            ) as answer,
        ):
            if answer.status_code == 429:
                raise Overloaded(
                    "the search engine wants to be asked less often; try again in a minute", retry_after_s=60
                )
            if answer.status_code != 200:
                raise Unavailable(
                    f"the search engine answered with HTTP status {answer.status_code}; the operator should check"
                    " [web.search] (its key, and for SearXNG that the format json is allowed)"
                )
            # Cancelled and not left by an error: that would leave generators to the garbage collector.
            with trio.CancelScope() as scope:
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        scope.cancel()
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(f"the search engine cannot be reached ({str(error) or type(error).__name__})") from error
    if len(body) > ANSWER_BYTES_MAX:
        raise Unavailable("the search engine answered more than can be read; ask more narrowly")
    return bytes(body)
