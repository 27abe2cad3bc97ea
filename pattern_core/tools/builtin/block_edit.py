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


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True, for_strangers=True)
async def block_edit(
    context: ToolContext,
    op: Literal[OfText, OfMap, OfList, Revision],
    label: str,
    content: str | None = None,
    old: str | None = None,
    new: str | None = None,
    mode: edits.ReplaceMode = "first",
    patch: str | None = None,
    field: str | None = None,
    value: Annotated[str | None, "Text or JSON; `null` clears."] = None,
    number: int | None = None,
    section: str | None = None,
) -> dict[str, object]:
    """Change a memory block, in plain sentences.

    Text: append `content` after a line break, replace `old` by `new` (nth: `old` is `N: text`), patch: a unified diff,
    edit_range: `content` is `START-END: text`. Map: `field` and `value` (increment adds it). List: append `content`;
    item `number` from 1. undo, redo: your own edits. `section`: where there are sections.
    """
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
