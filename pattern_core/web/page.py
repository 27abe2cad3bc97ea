"""What a downloaded page says: HTML and PDF read in a child process, text and data as they are."""

from __future__ import annotations

import codecs
import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import trio
from trio.lowlevel import RunVar

from pattern_core.errors import InvalidInput
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading.document import clean
from pattern_core.files.reading.read import read_document
from pattern_core.files.reading.readers import read_text
from pattern_core.web.download import Download

Format = Literal["markdown", "html", "text"]

CHILDREN_MAX = 2  # at once, of all constellations
READ_TIMEOUT_S = 20.0  # of wall time; the child bounds its own processor time
TEXT_CHARS_MAX = 5_000_000
TITLE_CHARS_MAX = 300
KIND_CHARS_MAX = 100
HTML_BYTES_MAX = 2 * 1024 * 1024  # reading a megabyte of HTML takes seconds; what is beyond is cut
_CHILD = "pattern_core.web.page_child"
_ROOT = Path(__file__).resolve().parents[2]
_HTML = ("text/html", "application/xhtml+xml")
_TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/yaml", "application/x-ndjson")
# Encodings that Python knows and no page is in; decoding some of them takes hours for what is long and made for it.
_NO_TEXT = frozenset(("punycode", "idna", "undefined", "unicode-escape", "raw-unicode-escape"))
_children: RunVar[trio.CapacityLimiter] = RunVar("pattern_core.web.page.children")


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


async def read_page(download: Download, wanted: Format) -> WebPage:
    """The page in the wanted form. What is no HTML is given as the text that it is.

    Raises:
        InvalidInput: it holds no text, or cannot be read.
    """
    kind = download.content_type[:KIND_CHARS_MAX]
    try:
        if kind in _HTML or (
            not kind and download.body.lstrip()[:200].lower().startswith((b"<!doctype html", b"<html"))
        ):
            title, text = await _html(download, wanted)
            download = replace(download, is_cut=download.is_cut or len(download.body) > HTML_BYTES_MAX)
        elif kind == "application/pdf" and not download.is_cut:
            title, text = "", (await read_document("page.pdf", download.body)).text
        elif not kind or kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml")):
            title, text = "", await trio.to_thread.run_sync(partial(_decoded, download.body, download.charset))
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
        try:
            if codecs.lookup(charset).name not in _NO_TEXT:
                return data.decode(charset, errors="replace")
        except (LookupError, ValueError):
            pass  # a name that nobody knows: the bytes tell better
    return read_text(data)


async def _html(download: Download, wanted: Format) -> tuple[str, str]:
    charset = [] if download.charset is None else [download.charset]
    with trio.move_on_after(READ_TIMEOUT_S):  # cancelling kills the child
        async with _limiter():
            done = await trio.run_process(
                [sys.executable, "-m", _CHILD, wanted, download.url, *charset],
                stdin=download.body[:HTML_BYTES_MAX],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd=_ROOT,
            )
        if done.returncode == 0:
            answer = json.loads(done.stdout)
            return answer["title"], answer["text"]
        raise InvalidInput(
            f"{download.url} is damaged or made to do harm: reading it in a separate process ended that process"
        )
    raise InvalidInput(f"reading {download.url} took longer than {READ_TIMEOUT_S:g} s")


def _limiter() -> trio.CapacityLimiter:
    try:
        return _children.get()
    except LookupError:
        limiter = trio.CapacityLimiter(CHILDREN_MAX)
        _children.set(limiter)
        return limiter
