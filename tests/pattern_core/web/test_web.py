from __future__ import annotations

import json
import sys

import pytest

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, Unavailable
from pattern_core.files import reading
from pattern_core.models.providers.settings import Secret
from pattern_core.testing import StoppedClock
from pattern_core.testing.wire import Play, WireServer
from pattern_core.web import download as downloading
from pattern_core.web import web as module
from pattern_core.web.download import Download
from pattern_core.web.policy import EngineSettings
from pattern_core.web.web import (
    CACHE_AGE_MS_MAX,
    HIT_TITLE_CHARS_MAX,
    QUERY_CHARS_MAX,
    SNIPPET_CHARS_MAX,
    Web,
    WebHit,
    page_of,
    question_of,
    read_answer,
)
from tests.pattern_core.web.rig import Names, at_home, page, redirect


def web(server: WireServer, clock: StoppedClock | None = None, *, timeout_s: float = 5.0) -> Web:
    engine = EngineSettings(kind="searxng", base_url=server.url)
    return Web(at_home(server, search=engine, timeout_s=timeout_s), clock=clock or StoppedClock(), resolve=Names())


async def test_a_page_is_fetched_once_in_five_minutes_and_form() -> None:
    clock = StoppedClock()
    words = page("plain words", "text/plain")
    async with WireServer([page("oh", status=404), words, words, words]) as server:
        service, url = web(server, clock), f"http://example.org:{server.port}/"
        with pytest.raises(NotFound, match="HTTP status 404"):
            await service.fetch(url)
        first = await service.fetch(url)
        assert first.text == "plain words"
        assert await service.fetch(url) is first
        assert len(server.requests) == 2
        await service.fetch(url, "text")
        assert len(server.requests) == 3
        clock.advance(CACHE_AGE_MS_MAX)
        await service.fetch(url)
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("play", "error", "words"),
    [
        (Play(status=429), Overloaded, "rate limit"),
        (Play(status=403), Unavailable, "format json is allowed"),
        (Play(chunks=(b"x" * 1_000,) * 3, never_ends=True), Unavailable, "more than can be read"),
        (Play(never_answers=True), Unavailable, r"not there within 0\.3 s"),
        (redirect("/elsewhere"), Unavailable, "cannot be reached"),
        (page("12345", stops_after=2), Unavailable, "cannot be reached"),
        (page("no json"), Unavailable, "cannot be read"),
    ],
)
async def test_an_engine_in_trouble(
    play: Play, error: type[PatternError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "BYTES_MAX", 2_000)
    timeout_s = 0.3 if play.never_answers else 30.0  # the others answer, however slow the machine
    async with WireServer([play]) as server:
        with pytest.raises(error, match=words):
            await web(server, timeout_s=timeout_s).search("tea", 5)


async def test_odd_queries_are_refused() -> None:
    async with WireServer() as server:
        for query in (" ", "x" * (QUERY_CHARS_MAX + 1)):
            with pytest.raises(InvalidInput, match="1 to 400"):
                await web(server).search(query, 5)
        assert server.connections == 0


@pytest.mark.parametrize(
    ("words", "fetched", "asked"),
    [("1234", "aabbacba", "abca"), ("", "aabbacba", "abca"), ("12345678901", "aab", "aab")],
)
async def test_the_oldest_pages_make_room(
    words: str, fetched: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_CHARS", 1)  # so that pages without a word have an end, too
    monkeypatch.setattr(module, "CACHE_CHARS_MAX", 2 * (1 + len(words[:4])))
    async with WireServer(otherwise=page(words, "text/plain")) as server:
        service = web(server)
        for path in fetched:
            await service.fetch(f"http://example.org:{server.port}/{path}")
        assert "".join(request.path[1:] for request in server.requests) == asked


def download(body: bytes, content_type: str | None = None, *, is_cut: bool = False) -> Download:
    headers = {} if content_type is None else {"content-type": content_type}
    return Download(url="https://example.org/a", status=200, headers=headers, body=body, is_cut=is_cut)


async def test_html_is_read_in_a_child() -> None:
    got = await page_of(
        download("<title>T</title><h1>Grüße</h1>".encode("cp1252"), "text/html; charset=cp1252"), "markdown"
    )
    assert (got.title, got.text, got.content_type, got.format) == ("T", "# Grüße", "text/html", "markdown")
    assert (await page_of(download(b" <!DOCTYPE html><p>tea"), "text")).text == "tea"


async def test_a_page_that_takes_too_long_or_kills_its_reader_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform == "linux":  # elsewhere memory is not bounded
        with monkeypatch.context() as small, pytest.raises(InvalidInput, match="made to do harm"):
            small.setattr(reading, "MEMORY_BYTES", 2**20)
            await page_of(download(b"<p>tea", "text/html"), "markdown")
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.01)
    with pytest.raises(InvalidInput, match="did not finish within"):
        await page_of(download(b"<p>tea", "text/html"), "markdown")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<a/>", "application/atom+xml", "<a/>"),
        ("Grüße".encode(), "text/plain", "Grüße"),
        ("Grüße".encode("latin-1"), "text/plain; charset=latin-1", "Grüße"),
        ("Grüße".encode(), "text/plain; charset=nonsense", "Grüße"),
        (b"words", None, "words"),
        (b"", "text/plain", ""),
    ],
)
async def test_text_is_shown_as_it_is(body: bytes, content_type: str | None, text: str) -> None:
    assert (await page_of(download(body, content_type), "markdown")).text == text


async def test_an_encoding_that_no_page_has_is_not_believed() -> None:
    # 2 MB of it would be decoded for an hour.
    made_to_hang = (b"a-" + b"b9c8" * 500_000)[:2_000_000]
    got = await page_of(download(made_to_hang, "text/plain; charset=Punycode"), "markdown")
    assert got.text.startswith("a-b9c8")
    assert (await page_of(download(b"a\\u0062", "text/plain; charset=unicode_escape"), "text")).text == "a\\u0062"


async def test_what_is_no_text_is_refused() -> None:
    for body, kind in ((b"\x89PNG", "image/png"), (b"%PDF-1.7", "application/octet-stream")):
        with pytest.raises(InvalidInput, match="no text can be made"):
            await page_of(download(body, kind), "markdown")
    with pytest.raises(InvalidInput, match="cannot be read"):
        await page_of(download(b"%PDF-1.7 broken", "application/pdf"), "markdown")


async def test_what_is_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    long = await page_of(download(b"<title>" + b"x" * 10_000 + b"</title><p>tea", "text/html"), "text")
    assert len(long.title) == module.TITLE_CHARS_MAX
    assert len((await page_of(download(b"tea", "text/" + "x" * 10_000), "text")).content_type) < 200
    monkeypatch.setattr(module, "HTML_BYTES_MAX", 10)
    got = await page_of(download(b"<p>one two three", "text/html"), "text")
    assert (got.text, got.is_cut) == ("one two", True)
    assert (await page_of(download(b"words", "text/plain", is_cut=True), "text")).is_cut


SEARXNG = EngineSettings(kind="searxng", base_url="http://127.0.0.1:8888/")
BRAVE = EngineSettings(kind="brave", api_key=Secret("k"))


def test_what_is_asked() -> None:
    assert question_of(SEARXNG, "green tea", 7) == ("http://127.0.0.1:8888/search?q=green+tea&format=json", {})
    url, headers = question_of(BRAVE, "green tea", 7)
    assert url == "https://api.search.brave.com/res/v1/web/search?q=green+tea&count=7"
    assert headers["X-Subscription-Token"] == "k"
    for settings, words in (
        (EngineSettings(), r"sets kind to searxng or brave in the section \[web.search\]"),
        (EngineSettings(kind="searxng"), "set base_url"),
        (EngineSettings(kind="brave"), "set api_key"),
    ):
        with pytest.raises(InvalidInput, match=words):
            question_of(settings, "tea", 1)


def test_answers_are_read() -> None:
    entry = {"title": "Tea", "url": "https://t.org", "score": 1.0}
    hit = WebHit(title="Tea", url="https://t.org", snippet="About tea & cups")
    found: object = {"results": [{**entry, "content": "About <b>tea</b> &amp; cups"}]}
    assert read_answer(SEARXNG, json.dumps(found).encode(), 5) == [hit]
    found = {"web": {"results": [{**entry, "description": "About <strong>tea</strong> &amp; cups"}]}}
    assert read_answer(BRAVE, json.dumps(found).encode(), 5) == [hit]
    assert read_answer(BRAVE, b'{"type": "search"}', 5) == []


def test_answers_are_bounded() -> None:
    many = [{"title": "x" * 999, "url": f"https://t.org/{number}", "content": "y " * 999} for number in range(30)]
    odd = [{"title": "a", "url": "javascript:alert(1)"}, {"title": "b"}, {"url": "https://t.org/" + "z" * 3000}]
    hits = read_answer(SEARXNG, json.dumps({"results": odd + many}).encode(), 5)
    assert [hit.url for hit in hits] == [f"https://t.org/{number}" for number in range(5)]
    assert len(hits[0].title) == HIT_TITLE_CHARS_MAX and len(hits[0].snippet) <= SNIPPET_CHARS_MAX


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"results": 5}', b'{"results": [5]}', b"[" * 100_000])
def test_what_is_no_answer_is_said(body: bytes) -> None:
    with pytest.raises(Unavailable, match=r"check \[web.search\]"):
        read_answer(SEARXNG, body, 5)
