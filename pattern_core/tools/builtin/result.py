"""The tool `result`: read on in a result that was too long to show whole."""

from __future__ import annotations

from typing import Literal

from pattern_core.tools import results
from pattern_core.tools.tool import ToolContext, needed, tool
from pattern_db.enums import EffectClass

LIMIT_DEFAULT = 8_000


@tool(effect=EffectClass.PURE, enabled_by_default=True, reads_results=True, for_strangers=True)
async def result(
    context: ToolContext,
    op: Literal["read", "find"],
    id: str,  # noqa: A002 - the model's word
    offset: int = 0,
    limit: int = LIMIT_DEFAULT,
    pattern: str | None = None,
) -> str:
    """Read a shortened result by its `id`, from character `offset`, or find the words `pattern`."""
    read_aside = context.storage.database.read_aside  # it may be long
    match op:
        case "read":
            return await read_aside(results.read, context.agent_id, id, offset=offset, limit=limit)
        case "find":
            words = needed(pattern, "pattern", op)
            return await read_aside(results.find, context.agent_id, id, words, offset=offset)
