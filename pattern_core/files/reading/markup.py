"""HTML as Markdown: headings, paragraphs, lists, tables, code; no scripts or styles. Runs in the child process only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bs4.element import PageElement, Tag

_LEFT_OUT = frozenset(("script", "style", "noscript", "template", "svg", "head", "title", "iframe", "object", "select"))
_BLOCK_NAMES = (
    "address article aside blockquote body caption dd details dialog div dl dt fieldset figcaption figure footer form"
    " h1 h2 h3 h4 h5 h6 header hr html li main nav ol p pre section summary table tbody tfoot thead tr ul"
)
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_SPACES = re.compile(r"[ \t\r\n\f]+")
_EMPTY_LINES = re.compile(r"\n{3,}")


def read_html(data: bytes) -> str:
    """The page's text as Markdown. Its encoding is what it says, else what it looks like."""
    from bs4 import BeautifulSoup  # heavy, and needed for this format only

    soup = BeautifulSoup(data, "html.parser")
    writer = _Writer()
    title = soup.title.get_text(" ", strip=True) if soup.title is not None else ""
    if title and soup.find("h1") is None:
        writer.lines.append(f"# {title}\n")
    # An own stack: pages nest deeper than Python's.
    stack: list[tuple[PageElement, bool]] = [(soup, False)]
    while stack:
        node, is_end = stack.pop()
        name = getattr(node, "name", None)
        if name is None:
            if type(node).__name__ in ("NavigableString", "CData"):
                writer.words(str(node))
        elif is_end:
            writer.end(name)
        elif name not in _LEFT_OUT:
            tag: Tag = node  # type: ignore[assignment]  # only tags have a name
            writer.start(name)
            stack.append((node, True))
            stack += [(child, False) for child in reversed(tag.contents)]
    return writer.text()


class _Writer:
    """Gathers lines; the current one is written when a block begins or ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._current: list[str] = []
        self._mark = ""
        self._preformatted = 0
        self._cells = 0

    def start(self, name: str) -> None:
        if name in ("td", "th"):
            self._current.append("| " if self._cells == 0 else " | ")
            self._cells += 1
        elif name == "br":
            self._current.append("\n" if self._preformatted else " ")
        elif name in _BLOCKS:
            self._flush()
            self._mark = _HEADINGS.get(name, "- " if name == "li" else self._mark if name in ("p", "div") else "")
            if name == "pre":
                self._preformatted += 1
                self.lines.append("```")
            if name == "tr":
                self._cells = 0

    def end(self, name: str) -> None:
        if name not in _BLOCKS:
            return
        if name == "tr" and self._cells:
            self._current.append(" |")
        self._flush(is_preformatted=name == "pre")
        if name == "pre":
            self._preformatted -= 1
            self.lines.append("```")
        self._mark = ""
        if name not in ("li", "tr", "dt", "html", "body"):
            self.lines.append("")

    def words(self, text: str) -> None:
        self._current.append(text if self._preformatted else _SPACES.sub(" ", text))

    def _flush(self, *, is_preformatted: bool = False) -> None:
        text = "".join(self._current)
        self._current.clear()
        text = text.strip("\n") if is_preformatted or self._preformatted else _SPACES.sub(" ", text).strip()
        if text:
            self.lines.append(self._mark + text)
            self._mark = ""

    def text(self) -> str:
        self._flush()
        return _EMPTY_LINES.sub("\n\n", "\n".join(self.lines)).strip("\n") + "\n"
