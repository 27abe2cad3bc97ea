"""A page, or a value within one, that changes: asked for only if it did, and shown as a difference.

Sources: RFC 9110, 13.1 (conditional requests); RFC 6901 (JSON Pointer); www.w3.org/TR/selectors-4, as far as the
library of the reader of pages knows it. Pages are read in a child process, as everywhere.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar

from pattern_core.errors import InvalidInput
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading import read_in_child
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent, SourceKind, take_fields
from pattern_core.web.download import Download
from pattern_core.web.policy import SourceSettings
from pattern_core.web.web import READ_TIMEOUT_S, page_of
from pattern_db.columns import Json, check_depth

KEPT_CHARS_MAX = 50_000  # of the text that the next one is compared with; of a longer one the rest is not watched
LINES_MAX = 2_000  # of which differences are shown: comparing takes quadratic time
SHOWN_CHARS_MAX = 2_000  # of a line of a difference: a long one that is gone does not hide what came
LINE_CHARS_MAX = 200  # of a value that is shown as it was and as it is
SELECT_CHARS_MAX = 300
HTML_BYTES_MAX = 1_000_000
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class PageSource(SourceKind):
    """Watches a page, a part of one, or a value of a JSON document."""

    fields: ClassVar = {
        "url": "the address of the page",
        "select": "what is watched: a JSON pointer such as /price/0, or a CSS selector such as #price; empty: all",
        "every_s": "how often to ask, in seconds",
    }
    every_s_min: ClassVar = 30.0  # reading a long page costs seconds of a core

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"url": None, "select": "", "every_s": 900.0})
        if len(found["select"]) > SELECT_CHARS_MAX:
            raise InvalidInput(f"`select` has at most {SELECT_CHARS_MAX} characters")
        settings.check(found["url"])
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what changed since the last look, as `SourceKind.poll`; the first look only remembers."""
        cursor, config = account.cursor, account.config
        page, after = await account.fetch_changed()
        if page is None:
            return Arrivals(cursor=cursor, wait_s=config["every_s"])
        found = await _selected(page, config["select"])
        if found is None and not cursor:
            raise InvalidInput(f"{config['select']!r} selects nothing on {config['url']}")
        text = "[nothing is there]" if found is None else found[:KEPT_CHARS_MAX]
        if cursor and cursor["text"] == text:
            return Arrivals(cursor={**cursor, **after}, wait_s=config["every_s"])
        number = cursor.get("number", 0) + 1  # a value may return, and is an event then, too
        events = []
        if cursor:
            native = f"{number}:{blake2b(text.encode(), digest_size=16).hexdigest()}"
            shown = _difference(cursor["text"], text)
            events.append(SourceEvent(native=native, title="The page changed", link=config["url"], text=shown))
        return Arrivals(events=events, cursor={**after, "text": text, "number": number}, wait_s=config["every_s"])


async def _selected(page: Download, select: str) -> str | None:
    """Return the text of what is watched; None if it is not there.

    Raises:
        InvalidInput: the page cannot be read, or the selector is none.
    """
    if select.startswith("/"):
        if page.is_cut:
            raise InvalidInput("the document is too long to be read")
        return pointed(page.body, select)
    if not select:
        return (await page_of(page, "text")).text
    bounds: Any = {"what": "the page", "timeout_s": READ_TIMEOUT_S}
    try:
        found = await read_in_child(select_html, page.body[:HTML_BYTES_MAX], select, page.charset or "", **bounds)
    except UnreadableFile as error:
        raise InvalidInput(f"{page.url} cannot be read: {error.message}") from None
    return None if found is None else str(found)


def pointed(body: bytes, pointer: str) -> str | None:
    """Return the value that a JSON pointer names, a text as it is and others as JSON; None if there is none.

    Raises:
        InvalidInput: the body is not JSON.
    """
    try:
        value = json.loads(body)
        check_depth(value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the page is not JSON: {error}"[:200]) from None
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return text.encode("utf-8", "replace").decode()  # halves of characters cannot be stored, and so not be compared


def select_html(data: bytes, select: str, charset: str) -> bytes:
    """Return the text of the elements that a CSS selector selects as JSON, null if there are none. Called in a child.

    Raises:
        InvalidInput: it is not a selector.
    """
    from bs4 import BeautifulSoup  # heavy, and needed in the child only
    from soupsieve import SelectorSyntaxError

    try:
        found = BeautifulSoup(data, "html.parser", from_encoding=charset or None).select(select)
    except SelectorSyntaxError as error:
        raise InvalidInput(f"{select!r} is not a CSS selector: {str(error).splitlines()[0]}") from None
    texts = [" ".join(one.get_text(" ").split()) for one in found]
    return json.dumps("\n".join(texts) if texts else None).encode()


def _difference(before: str, now: str) -> str:
    """Return what changed: both values if they are short, else lines that were removed and added."""
    if max(len(before), len(now)) <= LINE_CHARS_MAX and "\n" not in before + now:
        return f"It was: {before}\nIt is: {now}"
    old, new = before.splitlines(), now.splitlines()
    if len(old) + len(new) > LINES_MAX:
        return f"It has {len(new)} lines; the differences are not shown."
    lines = difflib.unified_diff(old, new, "before", "now", lineterm="", n=2)
    return "\n".join(line if len(line) <= SHOWN_CHARS_MAX else f"{line[:SHOWN_CHARS_MAX]}…" for line in lines)
