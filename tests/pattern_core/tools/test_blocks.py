from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.memory.edits import ReplaceText
from pattern_core.testing import calls, says
from pattern_core.tools.builtin.block import block
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.enums import BlockType, Permission
from pattern_db.tables import block_versions
from tests.pattern_core.memory.rig import ADA, BY_USER, prompt_blocks
from tests.pattern_core.tools.rig import ToolRig
from tests.support import acting


async def test_load_returns_the_content_and_info_the_settings(tools: ToolRig) -> None:
    block_id = await tools.rig.block("Likes tea.", label="human", description="The user", pinned=True)
    settings = {"label": "human", "description": "The user", "block_type": "core", "pinned": True, "char_limit": 5000}
    loaded = await tools.call(block, op="load", label="human")
    data = {**settings, "content": "Likes tea."}
    assert loaded == {"success": True, "message": "Loaded human", "data": data}
    data = (await tools.call(block, op="info", label="human"))["data"]
    assert {**data, **settings, "id": block_id, "schema": "Text", "permission": "read_write"} == data
    assert (data["chars"], data["version"], data["created_at"]) == (10, 0, data["updated_at"])
    assert "content" not in data
    json.dumps(data)


async def test_info_shows_what_a_structured_block_takes(tools: ToolRig) -> None:
    fields = [{"name": "age", "field_type": "Number", "required": True, "default": 7, "description": "In years"}]
    schema = {"Composite": {"sections": [{"name": "who", "schema": {"Map": {"fields": fields}}, "read_only": True}]}}
    await tools.rig.block(label="c", schema=schema)
    assert (await tools.call(block, op="info", label="c"))["data"]["schema"] == schema


async def test_pin_and_unpin(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    for op, pinned, words in (
        ("pin", True, "Pinned notes; it is in your view from"),
        ("unpin", False, "Unpinned notes"),
    ):
        assert words in (await tools.call(block, op=op, label="notes"))["message"]
        assert (await tools.rig.store.view(ADA, "notes")).pinned is pinned
        assert len(await prompt_blocks(tools.rig.store, ADA)) == int(pinned)
    assert tools.rig.events[-1].data["by"] == "agent:agt_ada"


async def test_a_new_block_is_in_view_when_its_answer_says_so() -> None:
    new = {"op": "create", "label": "dog", "content": "Bruno barks"}
    script = [calls("block", new), says("ok"), says("ok")]
    async with acting(script, tools=[block]) as it:
        await it.say("Note that.")
        await it.say("Hello")
        _first, after, later = map(repr, it.provider.requests)
    assert "Created dog; it is in your view from the next message on" in after
    assert (after.count("Bruno barks"), later.count("Bruno barks")) == (1, 2)  # the call, and then the block, too


async def test_a_working_block_is_put_away_and_pinned_again(tools: ToolRig) -> None:
    await tools.rig.block("x", block_type=BlockType.WORKING)
    await tools.call(block, op="archive", label="notes")
    assert (await tools.rig.store.view(ADA, "notes")).block_type is BlockType.ARCHIVAL
    assert (await tools.call(block, op="load", label="notes"))["data"]["content"] == "x"
    await tools.call(block, op="pin", label="notes")
    view = await tools.rig.store.view(ADA, "notes")
    assert (view.block_type, view.pinned) == (BlockType.WORKING, True)
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


async def test_swap_pins_one_and_unpins_the_other(tools: ToolRig) -> None:
    for label, pinned in (("old", True), ("new", False)):
        await tools.rig.block(label, label=label, block_type=BlockType.WORKING, pinned=pinned)
    await tools.call(block, op="swap", label="new", other="old")
    assert {view.label: view.pinned for view in await tools.rig.store.list(ADA)} == {"old": False, "new": True}
    with pytest.raises(InvalidInput, match="needs `other`"):
        await tools.call(block, op="swap", label="new")


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


@pytest.mark.parametrize(
    ("before", "arguments", "after", "message"),
    [
        ("Hello", {"op": "append", "content": ", world!"}, "Hello, world!", "Appended 8 characters"),
        (
            "foo bar foo baz foo",
            {"op": "replace", "old": "foo", "new": "qux", "mode": "all"},
            "qux bar qux baz qux",
            "Replaced 3 occurrences",
        ),
        (
            "foo bar foo baz foo",
            {"op": "replace", "old": "2: foo", "new": "second", "mode": "nth"},
            "foo bar second baz foo",
            "Replaced occurrence #2 of 3",
        ),
        ("a b", {"op": "replace", "old": " b", "new": ""}, "a", "Replaced the one occurrence"),
        (
            "line one\nline two\nline three",
            {"op": "patch", "patch": "@@ -1,3 +1,3 @@\n line one\n-line two\n+line TWO MODIFIED\n line three\n"},
            "line one\nline TWO MODIFIED\nline three",
            "Applied 1 hunk",
        ),
        (
            "1\n2\n3\n4\n5",
            {"op": "edit_range", "content": "2-4: replaced line A\nreplaced line B"},
            "1\nreplaced line A\nreplaced line B\n5",
            "Replaced lines 2-4",
        ),
    ],
)
async def test_operations(tools: ToolRig, before: str, arguments: dict[str, object], after: str, message: str) -> None:
    await tools.rig.block(before)
    result = await tools.call(block_edit, label="notes", **arguments)
    assert await tools.rig.content() == after
    data = {"label": "notes", "chars": len(after), "char_limit": 5000}
    assert result == {"success": True, "message": message, "data": data}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "append"}, "append needs `content`"),
        ({"op": "replace", "new": "x"}, "replace needs `old`"),
        ({"op": "replace", "old": "x"}, "replace needs `new`"),
        ({"op": "patch"}, "patch needs `patch`"),
        ({"op": "edit_range"}, "edit_range needs `content`"),
        ({"op": "replace", "old": "zzz", "new": "x"}, "'zzz' is not in the block"),
        ({"op": "set_field", "value": "1"}, "set_field needs `field`"),
        ({"op": "set_field", "field": "x"}, "set_field needs `value`"),
        ({"op": "delete_item"}, "delete_item needs `number`"),
        ({"op": "explode"}, "`op` must be"),
    ],
)
async def test_what_does_not_fit_is_refused_and_changes_nothing(
    tools: ToolRig, arguments: dict[str, object], words: str
) -> None:
    await tools.rig.block("Hello")
    with pytest.raises(InvalidInput, match=words):
        await tools.call(block_edit, label="notes", **arguments)
    view = await tools.rig.store.view(ADA, "notes")
    assert (view.content, view.version) == ("Hello", 0)


async def test_unknown_blocks_and_missing_rights(tools: ToolRig) -> None:
    await tools.rig.block("Hello", permission=Permission.APPEND)
    with pytest.raises(PermissionDenied, match="append"):
        await tools.call(block_edit, op="replace", label="notes", old="H", new="h")
    for arguments in ({"op": "append", "content": "x"}, {"op": "set_field", "field": "x", "value": "1"}):
        with pytest.raises(NotFound, match="there are: notes"):
            await tools.call(block_edit, label="note", **arguments)


async def test_the_edit_is_signed_with_message_turn_and_call(tools: ToolRig) -> None:
    block_id = await tools.rig.block("Hello")
    await tools.call(block_edit, op="append", label="notes", content="!")
    [update] = await tools.rig.database.read(block_versions.get_updates_since, block_id, 0)
    assert update.author == "agent:agt_ada"
    assert update.cause == {"message": f"msg_{tools.batch_id}", "turn": "turn_1", "call": "call_1"}


PROFILE = {
    "Map": {
        "fields": [
            {"name": "name", "required": True, "default": "?"},
            {"name": "age", "field_type": "Number"},
            {"name": "likes", "field_type": "List"},
            {"name": "visits", "field_type": "Counter"},
            {"name": "tier", "read_only": True},
        ]
    }
}


async def test_fields_are_set_counted_and_filled(tools: ToolRig) -> None:
    await tools.rig.block(schema=PROFILE)
    for arguments, message in (
        ({"op": "set_field", "field": "name", "value": "Ada"}, "Set name"),
        ({"op": "set_field", "field": "age", "value": "36"}, "Set age"),
        ({"op": "increment", "field": "visits", "value": "5"}, "visits is 5 now"),
        ({"op": "increment", "field": "visits", "value": "-2"}, "visits is 3 now"),
        ({"op": "increment", "field": "visits"}, "visits is 4 now"),
        ({"op": "add_to_field", "field": "likes", "value": "tea"}, "Added to likes"),
        ({"op": "add_to_field", "field": "likes", "value": "7"}, "Added to likes"),
        ({"op": "remove_from_field", "field": "likes", "value": "tea"}, "Removed from likes"),
        ({"op": "set_field", "field": "age", "value": "null"}, "Set age"),
    ):
        assert (await tools.call(block_edit, label="notes", **arguments))["message"] == message
    assert await tools.rig.value() == {"name": "Ada", "age": None, "likes": ["7"], "visits": 4, "tier": None}
    assert await tools.rig.content() == "name: Ada\nage:\nlikes:\n  - 7\nvisits: 4\ntier:"


async def test_lists_and_logs(tools: ToolRig) -> None:
    await tools.rig.block(schema={"List": {"max_items": 2}})
    for arguments in (
        {"op": "append", "content": "eggs"},
        {"op": "insert_item", "number": 1, "value": '{"text": "milk", "done": false}'},
        {"op": "set_item", "number": 1, "value": '{"text": "milk", "done": true}'},
    ):
        await tools.call(block_edit, label="notes", **arguments)
    assert await tools.rig.content() == "1. [x] milk\n2. eggs"
    await tools.call(block_edit, op="delete_item", label="notes", number=1)
    assert await tools.rig.value() == ["eggs"]
    await tools.rig.block(label="diary", block_type=BlockType.LOG)
    await tools.call(block_edit, op="append", label="diary", content="Woke up")
    [entry] = await tools.rig.value("diary")
    assert (entry["text"], entry["agent_id"]) == ("Woke up", ADA)


async def test_sections_are_edited_by_name(tools: ToolRig) -> None:
    sections = [{"name": "notes", "schema": "Text"}, {"name": "profile", "schema": PROFILE}]
    await tools.rig.block(schema={"Composite": {"sections": sections}})
    await tools.call(block_edit, op="append", label="notes", section="notes", content="a b")
    await tools.call(block_edit, op="replace", label="notes", section="notes", old="b", new="c")
    await tools.call(block_edit, op="edit_range", label="notes", section="notes", content="1: x\ny")
    await tools.call(block_edit, op="set_field", label="notes", section="profile", field="name", value="Ada")
    value = await tools.rig.value()
    assert (value["notes"], value["profile"]["name"]) == ("x\ny", "Ada")


async def test_an_agent_takes_back_its_own_edit_only(tools: ToolRig) -> None:
    await tools.rig.block("one")
    await tools.call(block_edit, op="append", label="notes", content=" two")
    await tools.rig.store.edit(ADA, "notes", ReplaceText(old="one", new="ONE"), by=BY_USER)
    undone = await tools.call(block_edit, op="undo", label="notes")
    assert undone["data"]["content"] == "ONE"
    assert (await tools.call(block_edit, op="redo", label="notes"))["data"]["content"] == "ONE two"
    await tools.call(block_edit, op="undo", label="notes")
    with pytest.raises(InvalidInput, match="nothing to undo"):
        await tools.call(block_edit, op="undo", label="notes")
