"""The child process that reads pages: `python -m pattern_core.web.page_child markdown|text|html URL [CHARSET]`.

The page's bytes come on standard input; the answer on standard output is JSON, `{"title", "text"}`. A page made to
exhaust memory or time, or one that trips a parser, ends this process and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from pattern_core.files.reading.child import limit_resources

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from bs4.element import Tag

DEPTH_MAX = 150  # elements within each other; what is deeper is kept as words
RECURSION_MAX = 4_000  # the converter calls itself some ten times per level
MAIN_CHARS_MIN = 200  # a main part with less is not the page's point
_LEFT_OUT_NAMES = (
    "script style noscript template svg canvas iframe frame object embed audio video button input select textarea"
    " dialog nav aside link meta head title"
)
_LEFT_OUT = frozenset(_LEFT_OUT_NAMES.split())
_ROLES = frozenset(("navigation", "banner", "contentinfo", "complementary", "search", "dialog", "alertdialog"))
# What pages call the parts that nobody came for.
_NOISE_NAMES = (
    "ad ads advert advertisement adsbygoogle ad-container ad-slot sponsored promo cookie cookies cookie-banner"
    " cookie-consent cookie-notice breadcrumbs share-buttons social-share newsletter-signup"
)
_NOISE = frozenset(_NOISE_NAMES.split())
_EMPTY_LINES = re.compile(r"\n\s*\n(?:\s*\n)+")
_PLAIN = ["a", "img", "b", "strong", "em", "i", "code", "del", "s", "sub", "sup", "u"]


def main(arguments: list[str]) -> int:
    """Read the page on standard input as the arguments say and return the exit code."""
    limit_resources()
    sys.setrecursionlimit(RECURSION_MAX)
    wanted, url, *charset = arguments
    title, text = read(sys.stdin.buffer.read(), wanted, url, charset[0] if charset else None)
    sys.stdout.buffer.write(json.dumps({"title": title, "text": text}).encode())
    return 0


def read(data: bytes, wanted: str, url: str, charset: str | None) -> tuple[str, str]:
    """The page's title, and what it says as Markdown, as plain text or as tidied HTML."""
    from bs4 import BeautifulSoup  # heavy, and needed in the child only

    soup = BeautifulSoup(data, "html.parser", from_encoding=charset)
    title = " ".join(soup.title.get_text(" ").split()) if soup.title is not None else ""
    base = soup.find("base", href=True)
    address = url if base is None else urljoin(url, str(base["href"]))
    _tidy(soup)
    _flatten(soup)
    body = _main_part(soup)
    _complete_links(body, address)
    if wanted == "html":
        return title, _EMPTY_LINES.sub("\n\n", str(body)).strip()
    return title, _markdown(body, is_plain=wanted == "text")


def _tidy(soup: BeautifulSoup) -> None:
    """Take out what is not the page's content."""
    from bs4.element import PreformattedString

    for text in soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
        text.extract()  # comments, doctypes
    for tag in soup.find_all(lambda tag: tag.name in _LEFT_OUT or _is_noise(tag)):
        if not tag.decomposed:
            tag.decompose()
    for tag in soup.find_all(["header", "footer"]):
        if tag.find_parent(["article", "main", "section"]) is None:
            tag.decompose()


def _is_noise(tag: Tag) -> bool:
    if tag.name in ("html", "body", "main", "article"):
        return False
    names = {*_words(tag.get("class")), *_words(tag.get("id"))}
    style = "".join(_words(tag.get("style"))).lower()
    return (
        bool(names & _NOISE)
        or bool(_ROLES & set(_words(tag.get("role"))))
        or tag.has_attr("hidden")
        or tag.get("aria-hidden") == "true"
        or "display:none" in style
        or "visibility:hidden" in style
    )


def _words(attribute: object) -> list[str]:
    if attribute is None:
        return []
    return str(attribute).split() if not isinstance(attribute, list) else [str(word) for word in attribute]


def _flatten(soup: BeautifulSoup) -> None:
    """Replace what is nested beyond all measure by its words: the converter calls itself for every level."""
    level: list[Tag] = [soup]
    for _ in range(DEPTH_MAX):
        level = [child for tag in level for child in tag.find_all(True, recursive=False)]
    for tag in level:
        tag.string = tag.get_text(" ")


def _main_part(soup: BeautifulSoup) -> Tag:
    """The element that holds what the page is about."""
    for found in (soup.find_all("main"), soup.find_all(None, {"role": "main"}), soup.find_all("article")):
        if len(found) == 1 and len(found[0].get_text(strip=True)) >= MAIN_CHARS_MIN:
            return found[0]
    return soup.body or soup


def _complete_links(body: Tag, address: str) -> None:
    """Whole addresses, and no link or picture that nobody can follow from here."""
    for tag in body.find_all(["a", "img"]):
        name = "href" if tag.name == "a" else "src"
        try:
            whole = urljoin(address, str(tag.get(name) or ""))
        except ValueError:
            whole = ""
        if not whole.startswith(("http://", "https://", "mailto:")):
            whole = ""
        if tag.name == "img" and (not tag.get("alt") or not whole):
            tag.replace_with(str(tag.get("alt") or ""))
        elif not whole or str(tag.get(name) or "").startswith("#"):
            tag.unwrap()
        else:
            tag[name] = whole


def _markdown(body: Tag, *, is_plain: bool) -> str:
    from markdownify import MarkdownConverter

    converter = MarkdownConverter(
        heading_style="atx",
        bullets="-",
        escape_asterisks=False,
        escape_underscores=False,
        escape_misc=False,
        strip=_PLAIN if is_plain else None,
    )
    text = converter.convert_soup(body)
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return _EMPTY_LINES.sub("\n\n", lines).strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
