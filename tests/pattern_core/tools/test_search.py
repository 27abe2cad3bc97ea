from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.search import Hit, SearchResult
from pattern_core.tools.builtin.recall import recall
from pattern_core.tools.builtin.search import read_age, search
from pattern_core.tools.hits import ANSWER_CHARS_MAX, excerpt, found, shown_hit
from pattern_db.columns import Json
from pattern_db.enums import Role, SearchKind
from pattern_db.tables import messages
from tests.pattern_core.memory.rig import ALL, BOB
from tests.pattern_core.tools.rig import ToolRig


async def test_everything_is_searched_and_each_hit_says_what_it_is(tools: ToolRig) -> None:
    await tools.said("I love tea")
    await tools.call(recall, op="insert", content="Tea since 1999")
    await tools.rig.block("Tea at five", label="habits")
    await tools.rig.block("Tea for all", owner=ALL)
    await tools.said("tea secret", agent_id=BOB)  # not for this agent
    await tools.rig.block("tea secret", owner=BOB)
    result = await tools.call(search, query="tea")
    assert {(hit["kind"], hit["content"], hit.get("role"), hit.get("label")) for hit in result["hits"]} == {
        ("message", "I love tea", "user", None),
        ("archival", "Tea since 1999", None, None),
        ("block", "Tea at five", None, "habits"),
        ("block", "Tea for all", None, "notes"),
    }
    assert result["message"] == "Found 4 hits"
    for domain, kind in (("conversations", "message"), ("archival_memory", "archival"), ("blocks", "block")):
        found = await tools.call(search, query="tea", domain=domain)
        assert {hit["kind"] for hit in found["hits"]} == {kind}


async def test_the_turns_own_messages_are_not_found(tools: ToolRig) -> None:
    await tools.said("tea, long ago")
    asked = await tools.said("what about tea?")
    tools.batch_id = asked.removeprefix("msg_")
    await tools.said("thinking of tea", role=Role.ASSISTANT)
    assert [hit["content"] for hit in (await tools.call(search, query="tea"))["hits"]] == ["tea, long ago"]


async def test_role_and_time(tools: ToolRig) -> None:
    await tools.said("tea one")
    tools.rig.clock.advance(10 * DAY)
    await tools.said("tea two", role=Role.ASSISTANT)
    await tools.rig.block("tea three")

    async def found(**arguments: object) -> set[str]:
        arguments.setdefault("query", "tea")
        return {str(hit["content"]) for hit in (await tools.call(search, **arguments))["hits"]}

    assert await found(role="assistant") == {"tea two"}
    assert await found(query="tea > 5 days") == {"tea one"}
    assert await found(query="tea < 3 hours") == {"tea two", "tea three"}
    row = (await tools.rig.database.read(messages.recent, "agt_ada", 1))[0]
    assert await found(start_time=row.created_at, domain="conversations") == {"tea two"}
    assert await found(end_time=row.created_at) == {"tea one"}
    with pytest.raises(InvalidInput, match="`since` is not a valid time"):
        await found(start_time="yesterday")


async def test_limit_is_clamped_and_defaults_to_twenty(tools: ToolRig) -> None:
    for number in range(105):
        await tools.said(f"tea {number}")
    for limit, count in ((None, 20), (0, 1), (1, 1), (100, 100), (5000, 100)):
        arguments = {} if limit is None else {"limit": limit}
        assert len((await tools.call(search, query="tea", **arguments))["hits"]) == count


HOUR, DAY, WEEK = 3_600_000, 86_400_000, 7 * 86_400_000
NOW = 100 * WEEK


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tea > 5 days", ("tea", None, NOW - 5 * DAY)),
        ("tea >5 days old", ("tea", None, NOW - 5 * DAY)),
        ("green tea < 3 Hours", ("green tea", NOW - 3 * HOUR, None)),
        ("tea 1-2 weeks", ("tea", NOW - 2 * WEEK, NOW - WEEK)),
        ("tea 2 – 1 weeks old", ("tea", NOW - 2 * WEEK, NOW - WEEK)),
        ("tea 5 days old", ("tea", NOW - 11 * DAY // 2, NOW - 9 * DAY // 2)),
        ("tea > 1 month", ("tea", None, NOW - 30 * DAY)),
        ('tea "5 days old"', ('tea "5 days old"', None, None)),
        ("what happened 5 days ago", ("what happened 5 days ago", None, None)),
        ("we waited 5 days", ("we waited 5 days", None, None)),
        ("> 5 days", ("> 5 days", None, None)),
        ("tea > 5 days and more", ("tea > 5 days and more", None, None)),
        ("", ("", None, None)),
    ],
)
def test_ages(query: str, expected: tuple[str, int | None, int | None]) -> None:
    assert read_age(query, NOW) == expected


@given(st.text(alphabet="tea 12<>-–daysoldweeks"))
def test_any_query_keeps_its_words(query: str) -> None:
    words, _since, _until = read_age(query, NOW)
    assert words in query
    assert words or not query


def hit(content: str = "x", snippet: str = "x") -> Hit:
    return Hit(
        kind=SearchKind.MESSAGE,
        id="msg_0",
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
    assert found(SearchResult(hits=[hit()], notice="by words only"), "hit", "hits") == {
        "success": True,
        "message": "Found 1 hit",
        "notice": "by words only",
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
    assert "notice" not in found(SearchResult(hits=[]), "hit", "hits")


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


def test_an_excerpt_is_centred_on_the_match() -> None:
    content = "a" * 500 + " the match " + "b" * 500
    cut = excerpt(content, "…a the match b…", 60)
    assert len(cut) <= 60
    assert "the match" in cut
    assert cut.startswith("…")
    assert cut.endswith("…")
    for elsewhere in ("", "…", "not there"):
        assert excerpt("abcdef" * 10, elsewhere, 10) == "abcdefab…"


@given(st.text(max_size=50), st.text(max_size=10), st.integers(2, 40))
def test_an_excerpt_is_never_too_long_and_always_of_the_content(content: str, snippet: str, chars_max: int) -> None:
    cut = excerpt(content, snippet, chars_max)
    assert len(cut) <= chars_max
    assert cut.removeprefix("…").removesuffix("…") in content


@example(["y" * 5_000] * 20)
@given(st.lists(st.text(max_size=9000), max_size=30))
def test_a_long_answer_leaves_out_the_last_hits(contents: list[str]) -> None:
    result: dict[str, Any] = found(SearchResult(hits=[hit(content) for content in contents]), "hit", "hits")
    assert len(json.dumps(result, ensure_ascii=False)) <= ANSWER_CHARS_MAX + 300
    shown = len(result["hits"])
    assert shown == len(contents) or 4 <= shown < len(contents)
    left_out = f"; the first {shown} are shown, ask more narrowly for others"
    assert result["message"].endswith(left_out) is (shown < len(contents))
