from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.tools.builtin.block import block
from pattern_db.enums import BlockType
from tests.pattern_core.memory.rig import ADA, ALL, prompt_blocks
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


async def test_info_shows_what_a_structured_block_takes(tools: ToolRig) -> None:
    fields = [
        {"name": "name", "required": True, "default": "?", "description": "What to call them"},
        {"name": "age", "field_type": "Number", "read_only": True},
    ]
    shown = [
        {"name": "name", "type": "Text", "required": True, "description": "What to call them"},
        {"name": "age", "type": "Number", "read_only": True},
    ]
    sections = [{"name": "who", "schema": {"Map": {"fields": fields}}, "read_only": True}, {"name": "rest"}]
    for label, schema, data in (
        ("m", {"Map": {"fields": fields}}, {"schema": "Map", "fields": shown}),
        ("l", {"List": {"max_items": 3}}, {"schema": "List", "max_items": 3}),
        ("i", {"List": {"item_schema": {"Map": {"fields": fields}}}}, {"schema": "List", "fields": shown}),
        ("g", {"Log": {"entry_schema": {"fields": fields}}}, {"fields": shown, "entries_shown": 10}),
        (
            "c",
            {"Composite": {"sections": sections}},
            {
                "sections": [
                    {"name": "who", "schema": "Map", "fields": shown, "read_only": True},
                    {"name": "rest", "schema": "Text"},
                ]
            },
        ),
    ):
        await tools.rig.block(label=label, schema=schema)
        told = (await tools.call(block, op="info", label=label))["data"]
        assert {name: told[name] for name in data} == data


async def test_pin_and_unpin(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    for op, pinned in (("pin", True), ("unpin", False)):
        assert (await tools.call(block, op=op, label="notes"))["success"]
        assert (await tools.rig.store.view(ADA, "notes")).pinned is pinned
        assert len(await prompt_blocks(tools.rig.store, ADA)) == int(pinned)
    assert tools.rig.told[-1].data["by"] == "agent:agt_ada"


async def test_archive_puts_a_working_block_away_and_refuses_a_core_one(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    await tools.call(block, op="archive", label="notes")
    assert (await tools.rig.store.view(ADA, "notes")).block_type is BlockType.ARCHIVAL
    assert (await tools.call(block, op="load", label="notes"))["data"]["content"] == "x"
    await tools.rig.block("y", label="core", block_type=BlockType.CORE)
    with pytest.raises(InvalidInput, match="cannot be archived"):
        await tools.call(block, op="archive", label="core")


async def test_a_viewport_keeps_some_lines_of_a_text_in_view(tools: ToolRig) -> None:
    await tools.rig.block("one\ntwo\nthree\nfour", pinned=True)
    for start, count, words, shown in (
        (2, 2, "Lines 2 to 3 of 4", "[lines 2-3 of 4]\ntwo\nthree"),
        (3, 9, "Lines 3 to 4 of 4", "[lines 3-4 of 4]\nthree\nfour"),
        (1, 0, "All 4 lines", "one\ntwo\nthree\nfour"),
    ):
        said = await tools.call(block, op="viewport", label="notes", start_line=start, display_lines=count)
        assert said["message"].startswith(words)
        [seen] = await prompt_blocks(tools.rig.store, ADA)
        assert shown in seen
        assert ("four" in seen) is ("four" in shown)
    assert (await tools.call(block, op="load", label="notes"))["data"]["content"] == "one\ntwo\nthree\nfour"


async def test_a_viewport_that_shows_nothing_is_refused(tools: ToolRig) -> None:
    await tools.rig.block("one\ntwo")
    await tools.rig.block("", label="list", metadata={"schema": "List"})
    for arguments, words in (
        ({"label": "notes"}, "needs `display_lines`"),
        ({"label": "notes", "display_lines": -1}, "needs `display_lines`"),
        ({"label": "notes", "start_line": 0, "display_lines": 1}, "count from 1"),
        ({"label": "notes", "start_line": 3, "display_lines": 1}, "has 2 lines; there is no line 3"),
        ({"label": "list", "display_lines": 1}, "list is a List"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await tools.call(block, op="viewport", **arguments)


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
    with pytest.raises(InvalidInput, match="`op` must be 'load', 'info'"):
        await tools.call(block, op="delete", label="notes")
    with pytest.raises(InvalidInput, match="`source_id` is not known"):
        await tools.call(block, op="load", label="notes", source_id="x")


async def test_swap_pins_one_and_unpins_the_other(tools: ToolRig) -> None:
    for label, pinned in (("old", True), ("new", False)):
        await tools.rig.block(label, label=label, block_type=BlockType.WORKING, pinned=pinned)
    await tools.call(block, op="swap", label="new", other="old")
    pins = {view.label: view.pinned for view in await tools.rig.store.list(ADA)}
    assert pins == {"old": False, "new": True}
    with pytest.raises(InvalidInput, match="needs `other`"):
        await tools.call(block, op="swap", label="new")


async def test_what_was_put_away_comes_back(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    await tools.call(block, op="archive", label="notes")
    await tools.call(block, op="pin", label="notes")
    view = await tools.rig.store.view(ADA, "notes")
    assert (view.block_type, view.pinned) == (BlockType.WORKING, True)


async def test_an_agent_makes_blocks_of_its_own(tools: ToolRig) -> None:
    await tools.call(block, op="create", label="garden", content="Peas in bed two.", description="What grows where")
    view = await tools.rig.store.view(ADA, "garden")
    assert (view.content, view.block_type, view.pinned) == ("Peas in bed two.", BlockType.WORKING, True)
    with pytest.raises(InvalidInput, match="cannot be a label"):
        await tools.call(block, op="create", label="<b>")


async def test_a_block_is_shared_and_given_back(tools: ToolRig) -> None:
    await tools.rig.block("Our plan.", label="plan")
    shared = await tools.call(block, op="share", label="plan", agent="bob")
    assert shared["data"] == {"agent": "bob", "permission": "append"}
    assert (await tools.rig.store.view("agt_bob", "plan")).content == "Our plan."
    await tools.call(block, op="unshare", label="plan", agent="bob")
    with pytest.raises(NotFound):
        await tools.rig.store.view("agt_bob", "plan")
    for arguments, error in (({}, InvalidInput), ({"agent": "eve"}, NotFound), ({"agent": "ada"}, InvalidInput)):
        with pytest.raises(error):
            await tools.call(block, op="share", label="plan", **arguments)
