"""Pages that change: asked for only if they did, a part or a value of them, and what changed as a difference."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.sources.kinds import kind_of
from pattern_core.sources.kinds.http import pointed, select_html
from pattern_core.sources.source import Arrivals, SourceAccount
from pattern_core.testing.wire import Play, WireRequest, WireServer
from pattern_core.web.policy import SourceSettings
from pattern_db.tables.sources import SourceRow

PAGE = "<html><body><nav>menu {menu}</nav><main><h1>Shop</h1><p id=price>{price}</p><p>more</p></main></body></html>"


class PageServer(WireServer):
    """Serves `body`, and 304 to who has it."""

    def __init__(self, content_type: str) -> None:
        super().__init__(otherwise=self._page)
        self.body = b""
        self.headers = {"content-type": content_type}
        self.is_tagged = True
        self.status = 200

    def _page(self, request: WireRequest) -> Play:
        tag = f'"{sha256(self.body).hexdigest()[:16]}"'
        if self.is_tagged and request.headers.get("if-none-match") == tag:
            return Play(status=304, headers={"etag": tag})
        tags = {"etag": tag} if self.is_tagged else {}
        return Play(chunks=(self.body,), status=self.status, headers={**self.headers, **tags})


class Watching:
    """A source without a constellation: what it returned is its cursor the next time."""

    def __init__(self, server: PageServer, **config: Any) -> None:
        self.kind = kind_of("http")
        reach = SourceSettings(ports=(server.port,), allow_private=True, timeout_s=2.0)
        checked = self.kind.checked({"url": f"{server.url}/page", **config}, reach)
        row = SourceRow("src_page", "page", "http", checked, "", "")
        self.account = SourceAccount(row=row, settings=reach, clock=SystemClock())

    async def poll(self) -> Arrivals:
        """Ask, and keep the cursor as the database would."""
        arrived = await self.account.call(self.kind.poll)
        cursor = json.loads(json.dumps(dict(arrived.cursor)))
        self.account = replace(self.account, row=replace(self.account.row, sync_cursor=cursor))
        return arrived

    async def texts(self) -> list[str]:
        return [event.text for event in (await self.poll()).events]


@asynccontextmanager
async def serving(content_type: str = "text/html") -> AsyncIterator[PageServer]:
    async with PageServer(content_type) as server:
        yield server


async def test_a_value_of_a_document_is_an_event_whenever_it_changes() -> None:
    async with serving("application/json") as server:
        server.body = b'{"price": {"a/b": [1, 20]}, "at": 1}'
        one = Watching(server, select="/price/a~1b/1")
        assert await one.texts() == []
        assert await one.texts() == [] and len(server.exchanges) == 2  # the second time it was not sent again
        server.body = b'{"price": {"a/b": [1, 20]}, "at": 2}'
        assert await one.texts() == []
        natives = []
        for price, was in ((21, 20), (20, 21), (21, 20)):
            server.body = json.dumps({"price": {"a/b": [1, price]}}).encode()
            [event] = (await one.poll()).events
            assert event.text == f"It was: {was}\nIt is: {price}" and event.link == f"{server.url}/page"
            natives.append(event.native)
        assert len(set(natives)) == 3  # a value that returns is an event, too
        server.body = b"{}"
        assert await one.texts() == ["It was: 21\nIt is: [nothing is there]"]


async def test_a_repeated_look_at_the_same_change_is_the_same_event() -> None:
    async with serving("text/plain") as server:
        server.body = b"one"
        one = Watching(server)
        await one.poll()
        before = one.account
        server.body = b"two"
        [first] = (await one.poll()).events
        one.account = before  # as if it was killed before that was stored
        [again] = (await one.poll()).events
        assert first == again


async def test_a_part_of_a_page_and_the_page_itself() -> None:
    async with serving() as server:
        server.is_tagged = False
        server.body = PAGE.format(menu=1, price="10 €").encode()
        part, whole = Watching(server, select="main #price"), Watching(server)
        assert await part.texts() == await whole.texts() == []
        server.body = PAGE.format(menu=2, price="10 €").encode()
        assert await part.texts() == await whole.texts() == []  # the menu is not what the page is about
        server.body = PAGE.format(menu=2, price="12 €").encode()
        assert await part.texts() == ["It was: 10 €\nIt is: 12 €"]
        [text] = await whole.texts()
        assert "-10 €" in text and "+12 €" in text and "+more" not in text


async def test_what_cannot_be_read_or_selected_is_an_error() -> None:
    async with serving() as server:
        server.body = b"<p>hi</p>"
        for select, why in (("#price", "selects nothing"), ("p[", "not a CSS selector"), ("/price", "not JSON")):
            with pytest.raises(InvalidInput, match=why):
                await Watching(server, select=select).poll()
        server.status = 503
        with pytest.raises(Unavailable):
            await Watching(server).poll()
        server.status, server.body = 200, b"[" * 100_000
        with pytest.raises(InvalidInput, match="not JSON"):
            await Watching(server, select="/a").poll()
        server.body = b"[" + b"1," * 5_000_000 + b"1]"
        with pytest.raises(InvalidInput, match="too long"):
            await Watching(server, select="/0").poll()


async def test_deep_and_long_pages_are_read_within_bounds() -> None:
    async with serving() as server:
        server.body = b"<p id=price>1</p>" + b"<div>" * 300 + b"</div>" * 300 + b"<p>x</p>\n" * 20_000
        one = Watching(server, select="#price")
        assert await one.texts() == []
        server.body = server.body.replace(b"1", b"2", 1)
        assert await one.texts() == ["It was: 1\nIt is: 2"]


async def test_a_text_with_very_many_lines_is_not_compared() -> None:
    async with serving("text/plain") as server:
        server.body = b"1\n" * 3_000
        one = Watching(server)
        await one.poll()
        server.body = b"2\n" * 3_000
        assert await one.texts() == ["It has 3000 lines; the differences are not shown."]


@pytest.mark.parametrize("config", [{"every_s": 1}, {"select": "x" * 301}, {"select": 5}, {"url": "file:///etc"}])
async def test_a_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    async with serving() as server:
        with pytest.raises(InvalidInput):
            Watching(server, **config)
        with pytest.raises(PermissionDenied):
            Watching(server, url="http://example.org:81/")


def test_pointers_and_selectors() -> None:
    document = b'{"a": [{"": "x", "01": null}, true], "m~n": {"0": "zero"}}'
    assert [pointed(document, one) for one in ("/a/0/", "/a/0/01", "/a/1", "/m~0n/0")] == ["x", "null", "true", "zero"]
    assert pointed(b'{"~1": "tilde", "/": "slash"}', "/~01") == "tilde"
    assert [pointed(document, one) for one in ("/a/01", "/a/2", "/a/-1", "/b", "/a/0//x")] == [None] * 5
    assert json.loads(select_html(b"<b>one</b><i> two <b>three</b></i>", "b", "")) == "one\nthree"
    assert json.loads(select_html("<b>ü</b>".encode("latin-1"), "b", "latin-1")) == "ü"
