"""The tool `block_edit`: change the content of a memory block, whatever its shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pattern_core.memory import edits
from pattern_core.memory.fields import Written
from pattern_core.tools.tool import ToolContext, done, needed, tool
from pattern_db.enums import EffectClass, HistoryKind

OfText = Literal["append", "replace", "patch", "edit_range"]
OfMap = Literal["set_field", "increment", "add_to_field", "remove_from_field"]
OfList = Literal["insert_item", "set_item", "delete_item"]
Revision = Literal["undo", "redo"]


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True)
async def block_edit(
    context: ToolContext,
    op: Annotated[
        Literal[OfText, OfMap, OfList, Revision],
        "append: add `content` at the end of a text, exactly as it is; in a list it is a new item, in a log an entry."
        " replace: `old` by `new`. patch: apply a unified diff. edit_range: replace whole lines."
        " For maps: set_field: set `field` to `value`; increment: add `value` to the counter `field`; add_to_field,"
        " remove_from_field: the item `value` of the list `field`."
        " For lists: insert_item, set_item: put `value` in place `number`; delete_item: remove item `number`."
        " undo: take back the newest of your own edits, never another author's; redo: make it again.",
    ],
    label: Annotated[str, "The block's label."],
    content: Annotated[
        str | None,
        "For append: the text; begin it with a line break if it should stand on a line of its own. An item or entry"
        " with fields is a JSON object."
        " For edit_range: `START-END: text`, lines from 1, both included.",
    ] = None,
    old: Annotated[
        str | None, "For replace: the text to find; `N: text` for mode nth, a pattern for mode regex."
    ] = None,
    new: Annotated[str | None, "For replace: what stands there instead; empty removes it."] = None,
    mode: Annotated[edits.ReplaceMode, "For replace: which occurrences; regex replaces the first match."] = "first",
    patch: Annotated[str | None, "For patch: the diff, with hunks such as `@@ -1,3 +1,3 @@`."] = None,
    field: Annotated[str | None, "For operations on a map: the field's name."] = None,
    value: Annotated[
        str | None,
        "The value of a field or item, written as text: a number as `3`, a list as `[1, 2]`, an object as JSON;"
        " `null` takes a field's value away.",
    ] = None,
    number: Annotated[int | None, "For operations on a list: the item's number as the block shows it, from 1."] = None,
    section: Annotated[str | None, "The section to edit, for blocks that have sections."] = None,
) -> dict[str, object]:
    """Change one of your memory blocks. What you write is what you will know about later: whole, plain sentences."""
    if op in ("undo", "redo"):
        return await _revise(context, op, label)
    written = None if value is None else Written(value)
    given = {
        "content": content,
        "old": old,
        "new": new,
        "mode": mode,
        "patch": patch,
        "field": field,
        "value": written,
        "delta": written or 1,
        "number": number,
    }
    make, names = _EDITS[op]
    edit = replace(make(**{name: needed(given[name], name, op) for name in names}), section=section)
    edited = await context.toolbox.memory.edit(context.agent_id, label, edit, by=context.by, work=context.work)
    size = len(edited.block.content)
    return done(edited.note, label=edited.block.label, chars=size, char_limit=edited.block.char_limit)


async def _revise(context: ToolContext, op: Revision, label: str) -> dict[str, object]:
    revised = await context.toolbox.revisions.revert(
        context.agent_id, label, context.by, HistoryKind(op), work=context.work
    )
    return done(
        revised.note,
        label=label,
        content=revised.block.content,
        undo_remaining=revised.undo_remaining,
        redo_remaining=revised.redo_remaining,
    )


# What makes each operation's edit, of the arguments that it needs.
_EDITS: Mapping[str, tuple[Callable[..., edits.BlockEdit], Sequence[str]]] = {
    "append": (lambda content: edits.AppendText(text=content), ["content"]),
    "replace": (edits.ReplaceText, ["old", "new", "mode"]),
    "patch": (edits.Patch, ["patch"]),
    "edit_range": (lambda content: edits.parse_range(content), ["content"]),
    "set_field": (edits.SetField, ["field", "value"]),
    "increment": (edits.Increment, ["field", "delta"]),
    "add_to_field": (edits.ListAppend, ["field", "value"]),
    "remove_from_field": (edits.ListRemove, ["field", "value"]),
    "insert_item": (edits.InsertItem, ["number", "value"]),
    "set_item": (edits.SetItem, ["number", "value"]),
    "delete_item": (edits.DeleteItem, ["number"]),
}
