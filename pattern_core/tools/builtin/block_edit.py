"""The tool `block_edit`: change the text of a memory block."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

from pattern_core.errors import InvalidInput
from pattern_core.memory.edit import AppendText, BlockEdit, Patch, ReplaceMode, ReplaceText, parse_range
from pattern_core.tools.calling import author_of, cause_of, done, needed
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass

Operation = Literal["append", "replace", "patch", "edit_range", "set_field"]


@tool(effect=EffectClass.LOCAL)
async def block_edit(
    context: ToolContext,
    op: Annotated[
        Operation,
        "append: add `content` at the end, exactly as it is. replace: `old` by `new`. patch: apply a unified diff."
        " edit_range: replace whole lines. set_field: for blocks that have fields, not for text.",
    ],
    label: Annotated[str, "The block's label."],
    content: Annotated[
        str | None,
        "For append: the text; begin it with a line break if it should stand on a line of its own."
        " For edit_range: `START-END: text`, lines from 1, both included.",
    ] = None,
    old: Annotated[
        str | None, "For replace: the text to find; `N: text` for mode nth, a pattern for mode regex."
    ] = None,
    new: Annotated[str | None, "For replace: what stands there instead; empty removes it."] = None,
    mode: Annotated[ReplaceMode, "For replace: which occurrences; regex replaces the first match."] = "first",
    patch: Annotated[str | None, "For patch: the diff, with hunks such as `@@ -1,3 +1,3 @@`."] = None,
) -> dict[str, object]:
    """Change one of your memory blocks. What you write is what you will know about later: whole, plain sentences."""
    if op == "set_field":
        view = await context.memory.view(context.agent_id, label)
        raise InvalidInput(f"the block {view.label} is text without fields; use append, replace, patch or edit_range")
    edit = _edit_of(op, content=content, old=old, new=new, mode=mode, patch=patch)
    edited = await context.memory.edit(
        context.agent_id,
        label,
        edit,
        author=author_of(context),
        cause=cause_of(context),
        work=context.work,
    )
    size = len(edited.block.content)
    return done(edited.note, label=edited.block.label, chars=size, char_limit=edited.block.char_limit)


def _edit_of(
    op: Literal["append", "replace", "patch", "edit_range"],
    *,
    content: str | None,
    old: str | None,
    new: str | None,
    mode: ReplaceMode,
    patch: str | None,
) -> BlockEdit:
    match op:
        case "append":
            return AppendText(text=needed(content, "content", op))
        case "replace":
            return ReplaceText(old=needed(old, "old", op), new=needed(new, "new", op), mode=mode)
        case "patch":
            return Patch(patch=needed(patch, "patch", op))
        case "edit_range":
            return parse_range(needed(content, "content", op))
        case _:
            assert_never(op)
