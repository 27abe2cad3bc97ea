from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.tools.builtin.recall import ENTRY_CHARS_MAX, recall
from pattern_db.tables import archival
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.tools.builtin.rig import ToolRig


async def test_insert_then_search(tools: ToolRig) -> None:
    inserted = await tools.call(recall, op="insert", content="Ruth likes Darjeeling tea.")
    entry_id = inserted["data"]["entry_id"]
    assert entry_id.startswith("arch_")
    result = await tools.call(recall, op="search", query="teas of Ruth")
    assert result["message"] == "Found 1 entry"
    [hit] = result["hits"]
    assert (hit["kind"], hit["id"], hit["content"]) == ("archival", entry_id, "Ruth likes Darjeeling tea.")
    assert hit["score"] == 1.0


async def test_nothing_found_is_an_empty_list(tools: ToolRig) -> None:
    result = await tools.call(recall, op="search", query="tea")
    assert result == {"success": True, "message": "Found no entries; try other words", "hits": []}


async def test_limit_and_isolation(tools: ToolRig) -> None:
    for number in range(3):
        await tools.call(recall, op="insert", content=f"tea number {number}")
    tools.agent_id = BOB
    assert (await tools.call(recall, op="search", query="tea"))["hits"] == []
    tools.agent_id = ADA
    assert len((await tools.call(recall, op="search", query="tea", limit=2))["hits"]) == 2
    assert len((await tools.call(recall, op="search", query="tea", limit=0))["hits"]) == 1
    assert len((await tools.call(recall, op="search", query="tea", limit=10_000))["hits"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "insert"}, "insert needs `content`"),
        ({"op": "insert", "content": "  "}, "nothing to store"),
        ({"op": "insert", "content": "x" * (ENTRY_CHARS_MAX + 1)}, "at most 50000 characters"),
        ({"op": "search"}, "search needs `query`"),
        ({"op": "search", "query": " "}, "the query is empty"),
    ],
)
async def test_what_does_not_fit(tools: ToolRig, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await tools.call(recall, **arguments)
    assert await tools.rig.database.read(archival.count, ADA) == 0
