from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.search import Hit, SearchResult
from pattern_core.tools.hits import ANSWER_CHARS_MAX, clamp, excerpt, found, shown_hit
from pattern_db.columns import Json
from pattern_db.enums import Role, SearchKind


def hit(content: str = "x", snippet: str = "x", number: int = 0) -> Hit:
    return Hit(
        kind=SearchKind.MESSAGE,
        id=f"msg_{number}",
        agent_id="agt_ada",
        content=content,
        snippet=snippet,
        score=0.51234,
        parts={"words": 0.51234},
        reason="words",
        created_at="2026-11-21T22:24:40.123Z",
        role=Role.USER,
    )


def test_a_hit_as_the_model_sees_it() -> None:
    assert found(SearchResult(hits=[hit()]), "hit", "hits") == {
        "success": True,
        "message": "Found 1 hit",
        "hits": [
            {
                "kind": "message",
                "id": "msg_0",
                "content": "x",
                "snippet": "x",
                "score": 0.512,
                "created_at": "2026-11-21T22:24:40.123Z",
                "role": "user",
            }
        ],
    }


def test_a_summary_says_where_its_messages_are() -> None:
    metadata: Json = {"message_count": 12, "started_at": "2026-11-20T00:00:00.000Z"}
    summary = replace(hit(), kind=SearchKind.SUMMARY, role=None, metadata=metadata)
    entry = shown_hit(summary, 100)
    assert "12 messages from 2026-11-20T00:00:00.000Z to 2026-11-21T22:24:40.123Z" in str(entry["stands_for"])
    assert "stands_for" not in shown_hit(hit(), 100)


def test_the_first_are_shown_at_length_and_the_rest_shorter() -> None:
    sizes = [1_000, *[500] * 14, *[1_000] * 3]
    result = found(SearchResult(hits=[hit("é" * size) for size in sizes]), "hit", "hits")
    entries = result["hits"]
    assert isinstance(entries, list)
    shorter = 800 - 1  # the room for a mark at its other end stays empty
    assert [len(entry["content"]) for entry in entries] == [1_000, *[500] * 14, *[shorter] * 3]


def test_a_long_answer_leaves_out_the_last_hits_and_stays_json() -> None:
    result = found(SearchResult(hits=[hit("y" * 5_000, number=number) for number in range(20)]), "hit", "hits")
    text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    assert len(text) < 20_000
    entries = result["hits"]
    assert isinstance(entries, list)
    assert 4 <= len(entries) < 20
    assert result["message"] == f"Found 20 hits; the first {len(entries)} are shown, ask more narrowly for others"


def test_a_notice_is_passed_on() -> None:
    assert found(SearchResult(hits=[], notice="by words only"), "hit", "hits")["notice"] == "by words only"
    assert "notice" not in found(SearchResult(hits=[]), "hit", "hits")


def test_clamp() -> None:
    assert [clamp(limit) for limit in (-5, 0, 1, 50, 100, 101)] == [1, 1, 1, 50, 100, 100]


def test_an_excerpt_is_centred_on_the_match() -> None:
    content = "a" * 500 + " the match " + "b" * 500
    cut = excerpt(content, "…a the match b…", 60)
    assert len(cut) <= 60
    assert "the match" in cut
    assert cut.startswith("…")
    assert cut.endswith("…")


@pytest.mark.parametrize("snippet", ["", "…", "not there"])
def test_without_a_place_the_excerpt_is_the_beginning(snippet: str) -> None:
    assert excerpt("abcdef" * 10, snippet, 10) == "abcdefab…"


@given(st.text(max_size=50), st.text(max_size=10), st.integers(2, 40))
def test_an_excerpt_is_never_too_long_and_always_of_the_content(content: str, snippet: str, chars_max: int) -> None:
    cut = excerpt(content, snippet, chars_max)
    assert len(cut) <= chars_max
    assert cut.removeprefix("…").removesuffix("…") in content or cut == content


@given(st.lists(st.text(max_size=9000), max_size=30))
def test_the_answer_stays_within_its_bound(contents: list[str]) -> None:
    result = found(SearchResult(hits=[hit(content) for content in contents]), "hit", "hits")
    assert len(json.dumps(result, ensure_ascii=False)) <= ANSWER_CHARS_MAX + 300
