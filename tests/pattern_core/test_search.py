from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.search import KINDS, Mode, SearchRequest, search
from pattern_db import template
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import Role, SearchKind
from pattern_db.migrate import migrations_of
from tests.pattern_core.memory.rig import ADA, BOB, NOW, Rig, add_agents, constellation
from tests.pattern_core.tools.builtin.rig import ToolRig


@pytest.fixture
async def past() -> AsyncIterator[ToolRig]:
    async with Database.in_memory(constellation()) as database:
        yield ToolRig(Rig(database))


async def test_hits_say_why_and_the_best_has_one(past: ToolRig) -> None:
    await past.said("green tea and green apples")
    await past.said("some tea")
    await past.said("nothing of the kind")
    result = await search(past.rig.database, SearchRequest(query="green tea"))
    assert [hit.content for hit in result.hits] == ["green tea and green apples", "some tea"]
    assert result.hits[0].score == 1.0
    assert result.hits[0].parts == {"words": 1.0}
    assert result.hits[0].reason == "words: 1.00 of the best message"
    assert result.notice is None


async def test_a_tools_result_comes_after_what_it_repeats(past: ToolRig) -> None:
    await past.said("tea", role=Role.TOOL)
    said = await past.said("tea")
    assert [hit.id for hit in (await search(past.rig.database, SearchRequest(query="tea"))).hits] == [said]
    result = await search(past.rig.database, SearchRequest(query="tea", roles=list(Role)))
    assert result.hits[0].id == said
    assert result.hits[1].score == pytest.approx(0.7)
    assert "×0.7 as a tool's result" in result.hits[1].reason


async def test_filters(past: ToolRig) -> None:
    await past.said("tea of ada")
    past.rig.clock.advance(1000)
    late = await past.said("tea of bob", agent_id=BOB, role=Role.ASSISTANT)
    await past.rig.block("tea block")

    async def found(**fields: object) -> set[str]:
        request = SearchRequest(query="tea", **fields)  # type: ignore[arg-type]  # the tests know the fields
        return {hit.content for hit in (await search(past.rig.database, request)).hits}

    everything = {"tea of ada", "tea of bob", "tea block"}
    assert await found() == everything
    assert await found(agents=[ADA]) == {"tea of ada", "tea block"}
    assert await found(agents=[]) == set()
    assert await found(roles=[Role.ASSISTANT], kinds=[SearchKind.MESSAGE]) == {"tea of bob"}
    assert await found(kinds=[SearchKind.BLOCK]) == {"tea block"}
    assert await found(before=late.removeprefix("msg_")) == {"tea of ada", "tea block"}
    assert len(await found(limit=1)) == 1
    assert await found(since="2030-01-01T00:00:00+01:00") == set()
    assert await found(until="2030-01-01T00:00:00+01:00") == everything


@pytest.mark.parametrize("mode", [Mode.HYBRID, Mode.MEANING])
async def test_without_an_embedder_words_are_compared_and_the_notice_says_so(past: ToolRig, mode: Mode) -> None:
    await past.said("tea")
    result = await search(past.rig.database, SearchRequest(query="tea", mode=mode))
    assert len(result.hits) == 1
    assert result.notice == f"searched by words only, not by {mode.value}: no embedder is configured"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SearchRequest(query="  "), "the query is empty"),
        (SearchRequest(query="x" * 4001), "at most 4000"),
        (SearchRequest(query="x", limit=0), "between 1 and 500"),
        (SearchRequest(query="x", limit=501), "between 1 and 500"),
        (SearchRequest(query="x", kinds=[]), "name at least one kind: message, block"),
        (SearchRequest(query="x", since="2026-01-01T00:00:00"), "`since` cannot be read: .* has no offset"),
        (SearchRequest(query="x", until="soon"), "`until` cannot be read"),
    ],
)
async def test_what_cannot_be_asked(past: ToolRig, request_: SearchRequest, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await search(past.rig.database, request_)


async def test_a_query_without_words_finds_nothing(past: ToolRig) -> None:
    await past.said("tea")
    assert (await search(past.rig.database, SearchRequest(query="?!"))).hits == []
    assert KINDS


async def test_on_a_file_what_was_acknowledged_is_found(tmp_path: Path) -> None:
    path = tmp_path / "pattern.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    with DatabaseThreads() as threads:
        async with await Database.open(path, threads) as database:
            await database.write(add_agents)
            past = ToolRig(Rig(database))
            await past.said("tea")
            assert len((await search(database, SearchRequest(query="tea"))).hits) == 1
            await past.said("more tea")
            assert len((await search(database, SearchRequest(query="tea"))).hits) == 2
