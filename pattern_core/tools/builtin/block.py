"""The tool `block`: look at memory blocks and decide where they show."""

from __future__ import annotations

from typing import Annotated, Literal

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import BlockRow, BlockSettings, NewBlock, shown_schema, with_schema
from pattern_core.memory.schema import TextSchema, Viewport, to_metadata
from pattern_core.tools.tool import ToolContext, done, needed, tool
from pattern_db.enums import BlockType, EffectClass, Permission


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True)
async def block(
    context: ToolContext,
    op: Annotated[
        Literal["load", "info", "pin", "unpin", "swap", "archive", "viewport", "create", "share", "unshare"],
        "load: read its content. info: its settings and size. pin, unpin: keep it in your view, or no longer. swap: pin"
        " it and unpin `other`. archive: put it away; load and search still find it, pin brings it back. viewport: of a"
        " long text, keep only some lines in view. create: make a new one. share: let `agent` see it too. unshare: no"
        " longer.",
    ],
    label: Annotated[str, "The block's label."],
    other: Annotated[str | None, "For swap: the label of the block that leaves your view."] = None,
    start_line: Annotated[int, "For viewport: the first line in view, from 1."] = 1,
    display_lines: Annotated[int | None, "For viewport: how many lines; 0 for the whole text again."] = None,
    content: Annotated[str | None, "For create: what it says at first."] = None,
    description: Annotated[str | None, "For create: what it is for, in a sentence."] = None,
    agent: Annotated[str | None, "For share, unshare: the other agent's name."] = None,
    permission: Annotated[
        Literal["read_only", "append", "read_write"], "For share: what the other agent may do."
    ] = "append",
) -> dict[str, object]:
    """Read or make memory blocks, share them, or change whether they stay in view. block_edit changes what they say."""
    toolbox = context.toolbox
    match op:
        case "load":
            view = await toolbox.memory.view(context.agent_id, label)
            return done(f"Loaded {label}", **_summary(view), content=view.content)
        case "info":
            view = await toolbox.memory.view(context.agent_id, label)
            return done(f"Settings of {label}", **_summary(view), **_details(view))
        case "pin":
            return await _pin(context, label)
        case "unpin":
            return await _set(context, label, BlockSettings(pinned=False), "Unpinned")
        case "swap":
            gone = needed(other, "other", op)
            await _set(context, gone, BlockSettings(pinned=False), "Unpinned")
            await _pin(context, label)
            return done(f"Swapped: {label} is in your view now, {gone} is not")
        case "archive":
            return await _set(context, label, BlockSettings(block_type=BlockType.ARCHIVAL), "Archived")
        case "viewport":
            return await _viewport(context, label, start_line, display_lines)
        case "create":
            return await _create(context, label, content or "", description or "")
        case "share":
            name, can = needed(agent, "agent", op), Permission(permission)
            loan = await toolbox.sharing.share(context.agent_id, label, name, can, by=context.by, work=context.work)
            return done(f"{loan.agent} sees {label} now", agent=loan.agent, permission=loan.permission.value)
        case "unshare":
            name = needed(agent, "agent", op)
            await toolbox.sharing.unshare(context.agent_id, label, name, by=context.by, work=context.work)
            return done(f"{name} does not see {label} any more")


async def _set(context: ToolContext, label: str, settings: BlockSettings, word: str) -> dict[str, object]:
    await context.toolbox.memory.set_metadata(context.agent_id, label, settings, by=context.by, work=context.work)
    return done(f"{word} {label}")


async def _pin(context: ToolContext, label: str) -> dict[str, object]:
    """Keep the block in view; one that was put away comes back as a working block."""
    view = await context.toolbox.memory.view(context.agent_id, label)
    is_away = view.block_type is BlockType.ARCHIVAL
    settings = BlockSettings(pinned=True, block_type=BlockType.WORKING if is_away else None)
    return await _set(context, label, settings, "Pinned")


async def _viewport(context: ToolContext, label: str, first: int, count: int | None) -> dict[str, object]:
    if count is None or count < 0 or first < 1:
        raise InvalidInput("viewport needs `display_lines` (0 for the whole text), and lines count from 1")
    view = await context.toolbox.memory.view(context.agent_id, label)
    if not isinstance(shown_schema(view.metadata), TextSchema):
        raise InvalidInput(f"only a text has lines; {label} is a {shown_schema(view.metadata).kind}")
    total = view.content.count("\n") + 1
    if first > total:
        raise InvalidInput(f"{label} has {total} line{'' if total == 1 else 's'}; there is no line {first}")
    schema = TextSchema(viewport=Viewport(start_line=first, display_lines=count) if count else None)
    settings = BlockSettings(metadata=with_schema(view.metadata, schema))
    await _set(context, label, settings, "Set the view of")
    if not count:
        return done(f"All {total} lines of {label} are in view")
    return done(f"Lines {first} to {min(first + count - 1, total)} of {total} of {label} are in view; load reads all")


async def _create(context: ToolContext, label: str, content: str, description: str) -> dict[str, object]:
    new = NewBlock(label=label, content=content, description=description, block_type=BlockType.WORKING, pinned=True)
    view = await context.toolbox.memory.create(context.agent_id, new, by=context.by, work=context.work)
    return done(f"Created {label}; it is in your view", **_summary(view))


def _summary(view: BlockRow) -> dict[str, object]:
    return {
        "label": view.label,
        "description": view.description,
        "block_type": view.block_type.value,
        "pinned": view.pinned,
        "char_limit": view.char_limit,
    }


def _details(view: BlockRow) -> dict[str, object]:
    return {
        "id": view.id,
        "schema": to_metadata(shown_schema(view.metadata)),
        "permission": view.permission.value,
        "chars": len(view.content),
        "version": view.version,
        "created_at": view.created_at,
        "updated_at": view.updated_at,
    }
