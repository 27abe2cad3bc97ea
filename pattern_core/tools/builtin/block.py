"""The tool `block`: look at memory blocks and decide where they show."""

from __future__ import annotations

from typing import Literal

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import BlockRow, BlockSettings, NewBlock, shown_schema, with_schema
from pattern_core.memory.schema import TextSchema, Viewport, to_metadata
from pattern_core.tools.tool import ToolContext, done, needed, tool
from pattern_db.enums import BlockType, EffectClass, Permission

_WHEN = "from the next message on"  # which working blocks a prompt shows is looked up once per turn


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True, for_strangers=True)
async def block(
    context: ToolContext,
    op: Literal["load", "info", "pin", "unpin", "swap", "archive", "viewport", "create", "share", "unshare"],
    label: str,
    other: str | None = None,
    start_line: int = 1,
    display_lines: int | None = None,
    content: str | None = None,
    description: str | None = None,
    agent: str | None = None,
    permission: Literal["read_only", "append", "read_write"] = "append",
) -> dict[str, object]:
    """See memory blocks and choose what stays in view; block_edit changes them.

    swap: pin `label`, unpin `other`. archive: put away; pin brings it back. viewport: show
    `display_lines` from `start_line`; 0: all. create: `content`, its purpose as `description`.
    """
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
            return done(f"Swapped: {label} is in your view instead of {gone} {_WHEN}")
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


async def _set(
    context: ToolContext, label: str, settings: BlockSettings, word: str, more: str = ""
) -> dict[str, object]:
    await context.toolbox.memory.set_metadata(context.agent_id, label, settings, by=context.by, work=context.work)
    return done(f"{word} {label}{more}")


async def _pin(context: ToolContext, label: str) -> dict[str, object]:
    """Keep the block in view; one that was put away comes back as a working block."""
    view = await context.toolbox.memory.view(context.agent_id, label)
    is_away = view.block_type is BlockType.ARCHIVAL
    settings = BlockSettings(pinned=True, block_type=BlockType.WORKING if is_away else None)
    return await _set(context, label, settings, "Pinned", f"; it is in your view {_WHEN}")


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
    return done(f"Created {label}; it is in your view {_WHEN}", **_summary(view))


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
