"""Search engines: what is asked of each, and how its answer is read. A new one is a `case` of both.

Sources: the search API of SearXNG (https://docs.searxng.org/dev/search_api.html) and the web search API of Brave
(https://api-dashboard.search.brave.com/app/documentation/web-search).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.models.providers.settings import Secret

EngineKind = Literal["none", "searxng", "brave"]

TITLE_CHARS_MAX = 200
SNIPPET_CHARS_MAX = 500
URL_CHARS_MAX = 2_000
_TAG = re.compile(r"<[^<>]{0,200}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Which engine, where, and its key; the address is the operator's word and not checked as agents' are."""

    kind: EngineKind = "none"  # search engine; `none`: only pages can be read
    base_url: str | None = None  # address of a SearXNG server that allows the format json
    api_key: Secret | None = None  # key of Brave; `api_key_env` names a variable with it


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
                title=_plain(hit.get("title"), TITLE_CHARS_MAX),
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
