"""The tool `block`: look at memory blocks and decide where they show."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

from pattern_core.memory.block import BlockSettings, BlockView
from pattern_core.memory.schema import kind_of
from pattern_core.tools.calling import author_of, cause_of, done
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import BlockType, EffectClass


@tool(effect=EffectClass.LOCAL)
async def block(
    context: ToolContext,
    op: Annotated[
        Literal["load", "pin", "unpin", "archive", "info"],
        "load: read its content. pin, unpin: keep it in your view, or no longer. archive: put it away; load still finds"
        " it. info: its settings and size.",
    ],
    label: Annotated[str, "The block's label."],
) -> dict[str, object]:
    """Read one of your memory blocks, or change whether it stays in view. Its text is changed with block_edit."""
    match op:
        case "load":
            view = await context.memory.view(context.agent_id, label)
            return done(f"Loaded {label}", **_summary(view), content=view.content)
        case "info":
            view = await context.memory.view(context.agent_id, label)
            return done(f"Settings of {label}", **_summary(view), **_details(view))
        case "pin":
            return await _set(context, label, BlockSettings(pinned=True), "Pinned")
        case "unpin":
            return await _set(context, label, BlockSettings(pinned=False), "Unpinned")
        case "archive":
            return await _set(context, label, BlockSettings(block_type=BlockType.ARCHIVAL), "Archived")
        case _:
            assert_never(op)


async def _set(context: ToolContext, label: str, settings: BlockSettings, word: str) -> dict[str, object]:
    await context.memory.set_metadata(
        context.agent_id,
        label,
        settings,
        author=author_of(context),
        cause=cause_of(context),
        work=context.work,
    )
    return done(f"{word} {label}")


def _summary(view: BlockView) -> dict[str, object]:
    return {
        "label": view.label,
        "description": view.description,
        "block_type": view.block_type.value,
        "pinned": view.pinned,
        "char_limit": view.char_limit,
    }


def _details(view: BlockView) -> dict[str, object]:
    return {
        "id": view.id,
        "schema": kind_of(view.metadata).value,
        "permission": view.permission.value,
        "chars": len(view.content),
        "version": view.version,
        "created_at": view.created_at,
        "updated_at": view.updated_at,
    }
