"""The web of one constellation: fetching pages, reading what they say, and searching for them.

HTML and PDF are read in a child process, text and data are shown as they are. A new search engine is a `case` of
`question_of` and of `read_answer`.

Sources: the search API of SearXNG (https://docs.searxng.org/dev/search_api.html) and the web search API of Brave
(https://api-dashboard.search.brave.com/app/documentation/web-search).
"""

from __future__ import annotations

import codecs
import html
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import trio

from pattern_core.errors import InvalidInput, Overloaded, PatternError, Unavailable
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.readers import TEXT_CHARS_MAX, Format, clean, read_page, read_text
from pattern_core.files.reading import read_document, read_in_child
from pattern_core.ids import Clock
from pattern_core.web.download import Download, Downloader, Resolve, check_status, look_up
from pattern_core.web.policy import URL_CHARS_MAX, EngineSettings, WebPolicy, WebSettings

FETCHES_MAX = 4  # of one constellation at once
QUERY_CHARS_MAX = 400
CACHE_AGE_MS_MAX = 5 * 60_000
CACHE_CHARS_MAX = 8_000_000  # of all pages together
PAGE_CHARS = 1_000  # that a page counts besides its text: its addresses, its title
READ_TIMEOUT_S = 20.0  # of wall time
TITLE_CHARS_MAX = 300
HIT_TITLE_CHARS_MAX, SNIPPET_CHARS_MAX = 200, 500
KIND_CHARS_MAX = 100
HTML_BYTES_MAX = 2 * 1024 * 1024  # reading a megabyte of HTML takes seconds; what is beyond is cut
_TAG = re.compile(r"<[^<>]{0,200}>")
_HTML = ("text/html", "application/xhtml+xml")
_TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/yaml", "application/x-ndjson")
# Encodings that Python knows and no page is in; decoding some of them takes hours for what is long and made for it.
_NO_TEXT = frozenset(("punycode", "idna", "undefined", "unicode-escape", "raw-unicode-escape"))


class Web:
    """Fetches and searches; keeps pages for five minutes. It owns no socket between calls and need not be closed."""

    def __init__(self, settings: WebSettings, *, clock: Clock, resolve: Resolve = look_up) -> None:
        self._settings = settings
        self._downloader = Downloader(settings, timeout_s=settings.timeout_s, resolve=resolve)
        # Where the engine is, is the operator's word: it may be in the private network, at any port.
        policy = WebPolicy(ports=tuple(range(1, 2**16)), allow_private=True)
        self._engine = Downloader(policy, timeout_s=settings.timeout_s, resolve=resolve)
        self._clock = clock
        self._pages: dict[tuple[str, Format], tuple[int, WebPage]] = {}  # with the time in ms; the oldest first
        self._slots = trio.CapacityLimiter(FETCHES_MAX)

    async def fetch(self, url: str, wanted: Format = "markdown") -> WebPage:
        """Return the whole page at `url`, from the cache if it was there within five minutes.

        Raises:
            InvalidInput: it is not an address of a page, or the page holds no text.
            PermissionDenied: it may not be visited, or is not public.
            NotFound: there is no such host or page.
            Unavailable: its server does not answer, or not now.
        """
        since, kept = self._pages.get((url, wanted), (0, None))
        if kept is not None and 0 <= self._clock.now_ms() - since < CACHE_AGE_MS_MAX:
            return kept
        async with self._slots:
            download = await self._downloader.get(url)
            check_status(download)
            page = await page_of(download, wanted)
        self._pages.pop((url, wanted), None)
        self._pages[url, wanted] = (self._clock.now_ms(), page)
        while sum(PAGE_CHARS + len(kept.text) for _since, kept in self._pages.values()) > CACHE_CHARS_MAX:
            del self._pages[next(iter(self._pages))]
        return page

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Return at most `limit` pages that the configured engine finds.

        Raises:
            InvalidInput: the query is empty or too long, or no engine is configured.
            Overloaded: the engine wants to be asked less often.
            Unavailable: the engine does not answer, or not so that it can be read.
        """
        if not query.strip() or len(query) > QUERY_CHARS_MAX:
            raise InvalidInput(f"a query has 1 to {QUERY_CHARS_MAX} characters, this one {len(query)}")
        url, headers = question_of(self._settings.search, query.strip(), limit)
        try:
            async with self._slots:
                # Redirected, it would take the key along.
                answer = await self._engine.get(url, headers=headers, redirects_max=0)
        except PatternError as error:
            raise Unavailable(f"the search engine cannot be reached: {error.message}") from error
        if answer.status == 429:
            raise Overloaded("the rate limit of the search engine is reached; try again in a minute", retry_after_s=60)
        if answer.status != 200:
            raise Unavailable(
                f"the search engine answered with HTTP status {answer.status}; the operator should check [web.search]"
                " (its key, and for SearXNG that the format json is allowed)"
            )
        if answer.is_cut:
            raise Unavailable("the search engine answered more than can be read; ask more narrowly")
        return read_answer(self._settings.search, answer.body, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page as an agent reads it. `url` is where it was in the end; `is_cut`: it was longer than what is read."""

    url: str
    status: int
    content_type: str
    format: Format
    title: str
    text: str
    is_cut: bool = False


async def page_of(download: Download, wanted: Format) -> WebPage:
    """Return the page in the wanted form. What is not HTML is given as the text that it is.

    Raises:
        InvalidInput: it holds no text, or cannot be read.
    """
    kind = download.content_type[:KIND_CHARS_MAX]
    try:
        if kind in _HTML or (
            not kind and download.body.lstrip()[:200].lower().startswith((b"<!doctype html", b"<html"))
        ):
            arguments = (wanted, download.url, download.charset or "")
            data, what = download.body[:HTML_BYTES_MAX], "the page"
            found = await read_in_child(read_page, data, *arguments, what=what, timeout_s=READ_TIMEOUT_S)
            title, text = found["title"], found["text"]
            download = replace(download, is_cut=download.is_cut or len(download.body) > HTML_BYTES_MAX)
        elif kind == "application/pdf" and not download.is_cut:
            title, text = "", (await read_document("page.pdf", download.body)).text
        elif not kind or kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml")):
            title, text = "", await trio.to_thread.run_sync(_decoded, download.body, download.charset)
        else:
            raise InvalidInput(f"{download.url} is {kind}, of which no text can be made here")
        text = clean(text)[:TEXT_CHARS_MAX] if text.strip() else ""
    except UnreadableFile as error:
        raise InvalidInput(f"{download.url} cannot be read: {error.message}") from None
    return WebPage(
        url=download.url,
        status=download.status,
        content_type=kind or "unknown",
        format=wanted,
        title=title if len(title) <= TITLE_CHARS_MAX else title[: TITLE_CHARS_MAX - 1] + "…",
        text=text,
        is_cut=download.is_cut,
    )


def _decoded(data: bytes, charset: str | None) -> str:
    if not data:
        return ""
    if charset is not None:
        with suppress(LookupError, ValueError):  # an unknown name: the bytes say more
            if codecs.lookup(charset).name not in _NO_TEXT:
                return data.decode(charset, errors="replace")
    return read_text(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHit:
    """A page that was found, its texts without markup."""

    title: str
    url: str
    snippet: str


def question_of(settings: EngineSettings, query: str, limit: int) -> tuple[str, Mapping[str, str]]:
    """Return the address and the headers by which the configured engine is asked.

    Raises:
        InvalidInput: none is configured, or something is missing; the message tells the operator what.
    """
    base = (settings.base_url or "").rstrip("/")
    match settings.kind:
        case "searxng":  # which must allow the format json, and has pages of its own length
            if not base:
                raise InvalidInput(
                    "web search lacks its address: set base_url in [web.search], such as http://127.0.0.1:8888"
                )
            return f"{base}/search?{urlencode({'q': query, 'format': 'json'})}", {}
        case "brave":
            if settings.api_key is None:
                raise InvalidInput("web search lacks its key: set api_key or api_key_env in [web.search]")
            where = f"{base or 'https://api.search.brave.com'}/res/v1/web/search"
            headers = {"X-Subscription-Token": settings.api_key.get_secret_value(), "Accept": "application/json"}
            return f"{where}?{urlencode({'q': query, 'count': limit})}", headers
        case _:
            raise InvalidInput(
                "web search is not configured on this server: the operator sets kind to searxng or brave in the section"
                " [web.search] of pattern.toml. Pages with a known address can be fetched"
            )


def read_answer(settings: EngineSettings, body: bytes, limit: int) -> Sequence[WebHit]:
    """Return the first `limit` results of an answer.

    Raises:
        Unavailable: it is not what the engine answers.
    """
    try:
        answer = json.loads(body)
        if settings.kind == "brave":  # without `web`, nothing was found
            results, snippet = answer.get("web", {"results": []})["results"], "description"
        else:
            results, snippet = answer["results"], "content"
        found = [
            WebHit(
                title=_plain(hit.get("title"), HIT_TITLE_CHARS_MAX),
                url=str(hit.get("url") or ""),
                snippet=_plain(hit.get(snippet), SNIPPET_CHARS_MAX),
            )
            for hit in results
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unavailable("the search engine's answer cannot be read; the operator should check [web.search]") from None
    kept = [hit for hit in found if hit.url.startswith(("http://", "https://")) and len(hit.url) <= URL_CHARS_MAX]
    return kept[:limit]


def _plain(text: object, chars_max: int) -> str:
    words = " ".join(html.unescape(_TAG.sub("", str(text or "")[: 8 * chars_max])).split())
    return words if len(words) <= chars_max else words[: chars_max - 1] + "…"
