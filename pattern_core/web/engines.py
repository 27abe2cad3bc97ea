"""Search engines: what is asked of each, and how its answer is read. A new one is a class and a line in `ENGINES`.

Sources: the search API of SearXNG (https://docs.searxng.org/dev/search_api.html) and the web search API of Brave
(https://api-dashboard.search.brave.com/app/documentation/web-search).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias
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

    kind: EngineKind = "none"
    base_url: str | None = None
    api_key: Secret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request to an engine."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHit:
    """A page that was found, its texts without markup."""

    title: str
    url: str
    snippet: str


class Searxng:
    """A SearXNG server, which must allow the format json.

    An engine is asked by `question`, which raises `InvalidInput` where its configuration lacks something; `hits` gives
    the results of an answer, each with `title`, `url` and the snippet under `text`, or fails as lookups do.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    def question(self, query: str, limit: int) -> EngineRequest:
        """GET /search; SearXNG has pages of its own length, so `limit` is not sent."""
        if self._settings.base_url is None:
            raise InvalidInput(
                "web search lacks its address: set base_url in [web.search], such as http://127.0.0.1:8888"
            )
        parameters = urlencode({"q": query, "format": "json"})
        return EngineRequest(url=f"{self._settings.base_url.rstrip('/')}/search?{parameters}")

    def hits(self, answer: Any) -> list[Mapping[str, Any]]:  # Any: JSON from outside
        """`{"results": [{"title", "url", "content"}]}`."""
        return [{**hit, "text": hit.get("content")} for hit in answer["results"]]


class Brave:
    """Brave Search, which needs a key."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    def question(self, query: str, limit: int) -> EngineRequest:
        """GET /res/v1/web/search with the key in a header."""
        if self._settings.api_key is None:
            raise InvalidInput("web search lacks its key: set api_key or api_key_env in [web.search]")
        base = (self._settings.base_url or "https://api.search.brave.com").rstrip("/")
        return EngineRequest(
            url=f"{base}/res/v1/web/search?{urlencode({'q': query, 'count': limit})}",
            headers={"X-Subscription-Token": self._settings.api_key.reveal(), "Accept": "application/json"},
        )

    def hits(self, answer: Any) -> list[Mapping[str, Any]]:  # Any: JSON from outside
        """`{"web": {"results": [{"title", "url", "description"}]}}`; without `web`, nothing was found."""
        return [{**hit, "text": hit.get("description")} for hit in answer.get("web", {"results": []})["results"]]


Engine: TypeAlias = Searxng | Brave
ENGINES: Mapping[EngineKind, type[Engine]] = MappingProxyType({"searxng": Searxng, "brave": Brave})


def engine_of(settings: EngineSettings) -> Engine:
    """The engine that is configured.

    Raises:
        InvalidInput: none is; the message says what the operator can do.
    """
    if settings.kind not in ENGINES:
        raise InvalidInput(
            "web search is not configured on this server: the operator sets kind to searxng or brave in the section"
            " [web.search] of pattern.toml. Pages whose address you know can be fetched"
        )
    return ENGINES[settings.kind](settings)


def read_answer(engine: Engine, body: bytes, limit: int) -> Sequence[WebHit]:
    """The first `limit` results of an answer.

    Raises:
        Unavailable: it is not what the engine answers.
    """
    try:
        raw = engine.hits(json.loads(body))
        found = [
            WebHit(
                title=_plain(hit.get("title"), TITLE_CHARS_MAX),
                url=str(hit.get("url") or ""),
                snippet=_plain(hit.get("text"), SNIPPET_CHARS_MAX),
            )
            for hit in raw
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unavailable("the search engine's answer cannot be read; the operator should check [web.search]") from None
    kept = [hit for hit in found if hit.url.startswith(("http://", "https://")) and len(hit.url) <= URL_CHARS_MAX]
    return kept[:limit]


def _plain(text: object, chars_max: int) -> str:
    words = " ".join(html.unescape(_TAG.sub("", str(text or "")[: 8 * chars_max])).split())
    return words if len(words) <= chars_max else words[: chars_max - 1] + "…"
