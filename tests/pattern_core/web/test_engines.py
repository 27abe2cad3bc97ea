from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.models.providers.settings import Secret
from pattern_core.web.engines import (
    SNIPPET_CHARS_MAX,
    TITLE_CHARS_MAX,
    EngineSettings,
    WebHit,
    question_of,
    read_answer,
)

SEARXNG = EngineSettings(kind="searxng", base_url="http://127.0.0.1:8888/")
BRAVE = EngineSettings(kind="brave", api_key=Secret("k"))


def test_what_is_asked() -> None:
    assert question_of(SEARXNG, "green tea", 7) == ("http://127.0.0.1:8888/search?q=green+tea&format=json", {})
    url, headers = question_of(BRAVE, "green tea", 7)
    assert url == "https://api.search.brave.com/res/v1/web/search?q=green+tea&count=7"
    assert headers["X-Subscription-Token"] == "k"


def test_what_is_not_configured_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"sets kind to searxng or brave in the section \[web.search\]"):
        question_of(EngineSettings(), "tea", 1)
    with pytest.raises(InvalidInput, match="set base_url"):
        question_of(EngineSettings(kind="searxng"), "tea", 1)
    with pytest.raises(InvalidInput, match="set api_key"):
        question_of(EngineSettings(kind="brave"), "tea", 1)


def test_answers_are_read() -> None:
    found: object = {
        "results": [{"title": "Tea", "url": "https://t.org", "content": "About <b>tea</b> &amp; cups", "score": 1.0}]
    }
    hit = WebHit(title="Tea", url="https://t.org", snippet="About tea & cups")
    assert read_answer(SEARXNG, json.dumps(found).encode(), 5) == [hit]
    found = {
        "web": {
            "results": [
                {"title": "Tea", "url": "https://t.org", "description": "About <strong>tea</strong> &amp; cups"}
            ]
        }
    }
    assert read_answer(BRAVE, json.dumps(found).encode(), 5) == [hit]
    assert read_answer(BRAVE, b'{"type": "search"}', 5) == []


def test_answers_are_bounded() -> None:
    many = [{"title": "x" * 999, "url": f"https://t.org/{number}", "content": "y " * 999} for number in range(30)]
    odd = [{"title": "a", "url": "javascript:alert(1)"}, {"title": "b"}, {"url": "https://t.org/" + "z" * 3000}]
    hits = read_answer(SEARXNG, json.dumps({"results": odd + many}).encode(), 5)
    assert [hit.url for hit in hits] == [f"https://t.org/{number}" for number in range(5)]
    assert len(hits[0].title) == TITLE_CHARS_MAX and len(hits[0].snippet) <= SNIPPET_CHARS_MAX


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"results": 5}', b'{"results": [5]}', b"[" * 100_000])
def test_what_is_no_answer_is_said(body: bytes) -> None:
    with pytest.raises(Unavailable, match=r"check \[web.search\]"):
        read_answer(SEARXNG, body, 5)
