"""The tool `result`: read on in a result that was too long to show whole."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

from pattern_core.tools.results import AROUND_CHARS, PIECE_CHARS_MAX, Extract
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
    limit: Annotated[int, f"For read: at most so many characters, 1 to {PIECE_CHARS_MAX}."] = LIMIT_DEFAULT,
    pattern: Annotated[str | None, "For find: plain words, in any case."] = None,
) -> str:
    """Read on in a tool's result that was shortened, or look for something in it."""
    results = context.toolbox.results
    match op:
        case "read":
            return _read(await results.read(context.agent_id, id, offset=offset, limit=limit))
        case "find":
            words = needed(pattern, "pattern", op)
            places, is_more = await results.find(context.agent_id, id, words, offset=offset)
            if not places:
                return f"Nothing in {id} holds {words!r} from offset {offset} on."
            shown = "\n".join(f"[offset {place.offset}] {place.around}" for place in places)
            more = f"\nThere are more: find again from offset {places[-1].offset + 1}." if is_more else ""
            return f"{len(places)} places, each with up to {AROUND_CHARS} characters around it:\n{shown}{more}"
        case _:
            assert_never(op)


def _read(piece: Extract) -> str:
    end = piece.offset + len(piece.text)
    head = f"Characters {piece.offset} to {end} of {piece.total} of a result of {piece.tool}, {piece.created_at}"
    more = f"; read on with offset={piece.next_offset}" if piece.next_offset is not None else "; this is the end"
    return f"{head}{more}:\n{piece.text}"
