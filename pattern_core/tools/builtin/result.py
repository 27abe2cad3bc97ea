"""The tool `result`: read on in a result that was too long to show whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pattern_core.tools import results
from pattern_core.tools.tool import ToolContext, needed, tool
from pattern_db.enums import EffectClass

LIMIT_DEFAULT = 8_000


@tool(effect=EffectClass.PURE, enabled_by_default=True, reads_results=True)
async def result(
    context: ToolContext,
    op: Annotated[
        Literal["read", "find"],
        "read: the text from `offset` on. find: the places that hold `pattern`, with the text around them.",
    ],
    id: Annotated[str, "The result's id, such as res_01…, as the shortened result gave it."],  # noqa: A002 - the model's word
    offset: Annotated[int, "From this character on, counted from 0."] = 0,
    limit: Annotated[int, f"For read: at most so many characters, 1 to {results.PIECE_CHARS_MAX}."] = LIMIT_DEFAULT,
    pattern: Annotated[str | None, "For find: plain words, in any case."] = None,
) -> str:
    """Read on in a tool's result that was shortened, or look for something in it."""
    read_aside = context.storage.database.read_aside  # it may be long
    match op:
        case "read":
            return await read_aside(results.read, context.agent_id, id, offset=offset, limit=limit)
        case "find":
            words = needed(pattern, "pattern", op)
            return await read_aside(results.find, context.agent_id, id, words, offset=offset)
