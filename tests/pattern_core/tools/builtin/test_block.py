from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.tools.builtin.block import block
from pattern_db.enums import BlockType
from tests.pattern_core.memory.rig import ADA, ALL
from tests.pattern_core.tools.builtin.rig import ToolRig


async def test_load_returns_the_content(tools: ToolRig) -> None:
    await tools.rig.block("Likes tea.", label="human", description="The user", pinned=True)
    assert await tools.call(block, op="load", label="human") == {
        "success": True,
        "message": "Loaded human",
        "data": {
            "label": "human",
            "description": "The user",
            "block_type": "core",
            "pinned": True,
            "char_limit": 5000,
            "content": "Likes tea.",
        },
    }


async def test_info_returns_settings_and_no_content(tools: ToolRig) -> None:
    block_id = await tools.rig.block("Likes tea.")
    data = (await tools.call(block, op="info", label="notes"))["data"]
    assert data["id"] == block_id
    assert (data["schema"], data["permission"], data["chars"], data["version"]) == ("Text", "read_write", 10, 0)
    assert data["created_at"] == data["updated_at"]
    assert "content" not in data
    json.dumps(data)


async def test_pin_and_unpin(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    for op, pinned in (("pin", True), ("unpin", False)):
        assert (await tools.call(block, op=op, label="notes"))["success"]
        assert (await tools.rig.store.view(ADA, "notes")).pinned is pinned
        assert len(await tools.rig.store.prompt_blocks(ADA)) == int(pinned)
    assert tools.rig.told[-1].data["by"] == "agent:agt_ada"


async def test_archive_puts_a_working_block_away_and_refuses_a_core_one(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    await tools.call(block, op="archive", label="notes")
    assert (await tools.rig.store.view(ADA, "notes")).block_type is BlockType.ARCHIVAL
    assert (await tools.call(block, op="load", label="notes"))["data"]["content"] == "x"
    await tools.rig.block("y", label="core", block_type=BlockType.CORE)
    with pytest.raises(InvalidInput, match="cannot be archived"):
        await tools.call(block, op="archive", label="core")


async def test_an_unknown_label_is_answered_with_the_known_ones(tools: ToolRig) -> None:
    await tools.rig.block("x")
    for op in ("load", "info", "pin", "unpin", "archive"):
        with pytest.raises(NotFound, match="there are: notes"):
            await tools.call(block, op=op, label="note")


async def test_everybodys_blocks_are_read_but_not_pinned(tools: ToolRig) -> None:
    await tools.rig.block("x", owner=ALL)
    assert (await tools.call(block, op="load", label="notes"))["data"]["content"] == "x"
    with pytest.raises(PermissionDenied):
        await tools.call(block, op="pin", label="notes")


async def test_misfitting_arguments_are_named(tools: ToolRig) -> None:
    with pytest.raises(InvalidInput, match="`op` must be 'load', 'pin'"):
        await tools.call(block, op="delete", label="notes")
    with pytest.raises(InvalidInput, match="`source_id` is not an argument"):
        await tools.call(block, op="load", label="notes", source_id="x")
