from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.memory.edits import ReplaceText
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.enums import BlockType, Permission
from pattern_db.tables import block_versions
from tests.pattern_core.memory.rig import ADA, BY_USER
from tests.pattern_core.tools.builtin.rig import ToolRig


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
        (
            "The quick brown fox",
            {"op": "replace", "old": r"\b[bB]\w+", "new": "blue", "mode": "regex"},
            "The quick blue fox",
            "Replaced the first match",
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
    assert result == {
        "success": True,
        "message": message,
        "data": {"label": "notes", "chars": len(after), "char_limit": 5000},
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "append"}, "append needs `content`"),
        ({"op": "replace", "new": "x"}, "replace needs `old`"),
        ({"op": "replace", "old": "x"}, "replace needs `new`"),
        ({"op": "patch"}, "patch needs `patch`"),
        ({"op": "edit_range"}, "edit_range needs `content`"),
        ({"op": "edit_range", "content": "all of it"}, "begin with the lines"),
        ({"op": "replace", "old": "zzz", "new": "x"}, "'zzz' is not in the block"),
        ({"op": "patch", "patch": "rubbish"}, "no unified diff"),
        ({"op": "patch", "patch": "@@ -1 +1 @@\n-other\n+x\n"}, "does not match"),
        ({"op": "set_field", "field": "x", "value": "1"}, "the block notes has no fields: it is text; use append"),
        ({"op": "set_field", "value": "1"}, "set_field needs `field`"),
        ({"op": "set_field", "field": "x"}, "set_field needs `value`"),
        ({"op": "delete_item"}, "delete_item needs `number`"),
        ({"op": "delete_item", "number": 1}, "has no items: it is text"),
        ({"op": "append", "content": "x", "section": "y"}, "is a Text without sections; name none"),
        ({"op": "append", "content": "x" * 6000}, "at most 5000 characters; it has 5 and would have 6005"),
        ({"op": "explode"}, "`op` must be"),
    ],
)
async def test_what_does_not_fit_is_told_and_changes_nothing(
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
    assert await tools.rig.value() == {
        "name": "Ada",
        "age": None,
        "likes": ["7"],
        "visits": 4,
        "tier": None,
    }
    assert await tools.rig.content() == "name: Ada\nage:\nlikes:\n  - 7\nvisits: 4\ntier:"


async def test_what_a_map_refuses(tools: ToolRig) -> None:
    await tools.rig.block(schema=PROFILE)
    before = await tools.rig.store.view(ADA, "notes")
    for arguments, words in (
        ({"op": "set_field", "field": "nam", "value": "x"}, "no field 'nam'; there are: name, age, likes"),
        ({"op": "set_field", "field": "age", "value": "old"}, "field age will not do: it takes a number"),
        ({"op": "increment", "field": "age"}, "the field age is a Number, not a Counter"),
        ({"op": "increment", "field": "visits", "value": "1.5"}, "whole numbers"),
        ({"op": "remove_from_field", "field": "likes", "value": "tea"}, 'likes holds no "tea"'),
        ({"op": "append", "content": "x"}, "is a Map; use set_field with one of name, age"),
        ({"op": "replace", "old": "a", "new": "b"}, "is a Map"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await tools.call(block_edit, label="notes", **arguments)
    with pytest.raises(PermissionDenied, match="the field tier is read-only"):
        await tools.call(block_edit, op="set_field", label="notes", field="tier", value="gold")
    assert await tools.rig.store.view(ADA, "notes") == before


async def test_lists_and_logs(tools: ToolRig) -> None:
    await tools.rig.block(schema={"List": {"max_items": 2}})
    for arguments in (
        {"op": "append", "content": "eggs"},
        {"op": "insert_item", "number": 1, "value": '{"text": "milk", "done": false}'},
        {"op": "set_item", "number": 1, "value": '{"text": "milk", "done": true}'},
    ):
        await tools.call(block_edit, label="notes", **arguments)
    assert await tools.rig.content() == "1. [x] milk\n2. eggs"
    with pytest.raises(InvalidInput, match="at most 2 items, not 3; delete one first"):
        await tools.call(block_edit, op="append", label="notes", content="bread")
    await tools.call(block_edit, op="delete_item", label="notes", number=1)
    with pytest.raises(InvalidInput, match="there is no item 2; items are counted from 1 to 1"):
        await tools.call(block_edit, op="delete_item", label="notes", number=2)
    assert await tools.rig.value() == ["eggs"]
    await tools.rig.block(label="diary", block_type=BlockType.LOG)
    await tools.call(block_edit, op="append", label="diary", content="Woke up")
    [entry] = await tools.rig.value("diary")
    assert (entry["text"], entry["agent_id"]) == ("Woke up", ADA)
    with pytest.raises(InvalidInput, match="is a Log, whose entries stay; use append"):
        await tools.call(block_edit, op="replace", label="diary", old="up", new="down")


async def test_sections_are_edited_by_name(tools: ToolRig) -> None:
    sections = [{"name": "notes", "schema": "Text"}, {"name": "profile", "schema": PROFILE}]
    await tools.rig.block(schema={"Composite": {"sections": sections}})
    await tools.call(block_edit, op="append", label="notes", section="notes", content="a b")
    await tools.call(block_edit, op="replace", label="notes", section="notes", old="b", new="c")
    await tools.call(block_edit, op="edit_range", label="notes", section="notes", content="1: x\ny")
    await tools.call(block_edit, op="set_field", label="notes", section="profile", field="name", value="Ada")
    value = await tools.rig.value()
    assert (value["notes"], value["profile"]["name"]) == ("x\ny", "Ada")
    with pytest.raises(InvalidInput, match="no section 'note'; there are: notes, profile"):
        await tools.call(block_edit, op="append", label="notes", section="note", content="x")
    with pytest.raises(InvalidInput, match="a Composite; name one of its sections: notes, profile"):
        await tools.call(block_edit, op="append", label="notes", content="x")


async def test_an_agent_takes_back_its_own_edit_only(tools: ToolRig) -> None:
    await tools.rig.block("one")
    await tools.call(block_edit, op="append", label="notes", content=" two")
    await tools.rig.store.edit(ADA, "notes", ReplaceText(old="one", new="ONE"), author=BY_USER)
    undone = await tools.call(block_edit, op="undo", label="notes")
    assert undone["data"]["content"] == "ONE"
    assert (await tools.call(block_edit, op="redo", label="notes"))["data"]["content"] == "ONE two"
    await tools.call(block_edit, op="undo", label="notes")
    with pytest.raises(InvalidInput, match="nothing to undo"):
        await tools.call(block_edit, op="undo", label="notes")
