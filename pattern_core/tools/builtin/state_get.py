"""The tool `state_get`: values that all agents of a constellation share."""

from __future__ import annotations

from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass

KEYS_SHOWN_MAX = 100


@tool(effect=EffectClass.PURE)
async def state_get(context: ToolContext, key: str = "") -> dict[str, object]:
    """Read a value that all agents share, and its version; without `key`, list the keys."""
    state = context.toolbox.state
    if not key:
        return {"versions": {one.key: one.version for one in await state.page(KEYS_SHOWN_MAX)}}
    found = await state.get(key)
    return {"value": found.value, "version": found.version}
