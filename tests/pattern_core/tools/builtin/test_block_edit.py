from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.enums import Permission
from pattern_db.tables import memory_blocks
from tests.pattern_core.memory.rig import ADA
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
        ({"op": "set_field"}, "text without fields"),
        ({"op": "append", "content": "x" * 6000}, "at most 5000 characters; it has 5 and would have 6005"),
        ({"op": "undo"}, "`op` must be"),
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
    for arguments in ({"op": "append", "content": "x"}, {"op": "set_field"}):
        with pytest.raises(NotFound, match="there are: notes"):
            await tools.call(block_edit, label="note", **arguments)


async def test_the_edit_is_signed_with_message_turn_and_call(tools: ToolRig) -> None:
    block_id = await tools.rig.block("Hello")
    await tools.call(block_edit, op="append", label="notes", content="!")
    [update] = await tools.rig.database.read(memory_blocks.get_updates_since, block_id, 0)
    assert update.author == "agent:agt_ada"
    assert update.cause == {"message": f"msg_{tools.batch_id}", "turn": "turn_1", "call": "call_1"}
