"""Feeds: RSS, Atom and JSON Feed, asked only for what changed.

Sources: www.rssboard.org/rss-specification; RFC 4287 (Atom); www.jsonfeed.org/version/1.1; RFC 9110, 13.1 (conditional
requests). What HTML defines beyond XML is replaced before it is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from html.entities import name2codepoint
from html.parser import HTMLParser
from typing import Any, ClassVar
from xml.etree.ElementTree import Element

import trio

from pattern_core.errors import InvalidInput
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent, SourceKind, take_fields
from pattern_core.web.download import Download, parse_xml
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json

ENTRIES_MAX = 200  # of a feed, the first ones: they are the newest
TEXT_CHARS_MAX = 20_000  # of an entry, before its markup is removed five times as many
_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]*);")
_OWN = (b"amp", b"lt", b"gt", b"quot", b"apos")
_BLANK_LINES = re.compile(r"\s*\n\s*\n\s*")


class FeedSource(SourceKind):
    """Asks a feed for new entries."""

    fields: ClassVar = {
        "url": "the address of the feed",
        "every_s": "how often to ask, in seconds",
        "first": "how many entries of the first look are delivered",
    }
    every_s_min: ClassVar = 60.0

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"url": None, "every_s": 1800.0, "first": 1})
        settings.check(found["url"])
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return new entries, the oldest first, as `SourceKind.poll`."""
        cursor, wait_s = account.cursor, account.config["every_s"]
        page, after = await account.fetch_changed()
        if page is None:
            return Arrivals(cursor=cursor, wait_s=wait_s)
        if page.is_cut:
            raise InvalidInput("the feed is too long to be read")
        entries = await trio.to_thread.run_sync(read_feed, page)
        first = len(entries) if cursor else account.config["first"]
        events = [SourceEvent(**entry, is_old=place >= first) for place, entry in enumerate(entries)]
        return Arrivals(events=events[::-1], cursor={**after, "seen": True}, wait_s=wait_s)


def read_feed(page: Download) -> list[dict[str, Any]]:
    """Return the entries of a feed in its order, as fields of events.

    Raises:
        InvalidInput: it is not a feed.
    """
    if "json" in page.content_type or page.body.lstrip()[:1] == b"{":
        found = _of_json(page.body)
    else:
        found = _of_xml(page.body)
    entries: list[dict[str, Any]] = []
    for entry in found:
        named = entry["native"] or entry["link"] or f"{entry['title']}\n{entry['text']}"
        text = words(entry["text"][: TEXT_CHARS_MAX * 5])[:TEXT_CHARS_MAX]
        native = named if len(named) < 300 else blake2b(named.encode("utf-8", "replace"), digest_size=16).hexdigest()
        if native:
            entries.append({**entry, "native": native, "text": text, "title": words(entry["title"][:2000])})
        if len(entries) >= ENTRIES_MAX:
            break
    return entries


def _of_json(body: bytes) -> Iterator[dict[str, str]]:
    try:
        feed = json.loads(body)
        items = [item for item in feed["items"] if isinstance(item, dict)]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise InvalidInput("this is not a feed: its JSON has no list `items`") from None
    for item in items:
        authors = item.get("authors") or [item.get("author")]
        author = authors[0] if isinstance(authors, list) and isinstance(authors[0], dict) else {}
        said = {
            "native": item.get("id"),
            "title": item.get("title"),
            "link": item.get("url"),
            "author_name": author.get("name"),
            "text": item.get("content_text") or item.get("content_html") or item.get("summary"),
        }
        yield {name: str(value) if isinstance(value, str | int) else "" for name, value in said.items()}


def _of_xml(body: bytes) -> Iterator[dict[str, str]]:
    root = parse_xml(_ENTITY.sub(_numbered, body.lstrip()), "a feed")
    entries = [one for one in root.iter() if one.tag in ("item", "entry")]
    if not entries and root.tag not in ("rss", "feed", "RDF"):
        raise InvalidInput(f"this is not a feed: it begins with <{root.tag[:40]}>")
    for entry in entries:
        parts: dict[str, Element] = {}
        for one in entry:
            if one.tag != "link" or one.get("rel", "alternate") == "alternate":
                parts.setdefault(one.tag, one)

        def said(*names: str, parts: Mapping[str, Element] = parts) -> str:
            texts = ("".join(parts[name].itertext()).strip() for name in names if name in parts)
            return next(filter(None, texts), "")

        yield {
            "native": said("guid", "id"),
            "title": said("title"),
            "link": said("link") or (parts["link"].get("href", "") if "link" in parts else ""),
            "author_name": said("author", "creator"),
            "text": said("encoded", "content", "description", "summary"),
        }


def _numbered(found: re.Match[bytes]) -> bytes:
    code = None if found[1] in _OWN else name2codepoint.get(found[1].decode())
    return found[0] if code is None else b"&#%d;" % code


class _Reader(HTMLParser):
    """Collects the words of a piece of HTML, with a blank line between its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")
        if tag in ("p", "div", "li", "br", "h1", "h2", "h3", "h4", "blockquote", "tr", "pre"):
            self.words.append("\n" if tag in ("br", "li", "tr") else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in ("script", "style")))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def words(text: str) -> str:
    """Return the words of a text that may be HTML."""
    if "<" not in text and "&" not in text:
        return text.strip()
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return _BLANK_LINES.sub("\n\n", "".join(reader.words)).strip()
