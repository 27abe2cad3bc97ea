"""The tools `state_get` and `state_set`: values that all agents of a constellation share."""

from __future__ import annotations

import json

from pattern_core.tools.tool import ToolContext, done, tool
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


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def state_set(context: ToolContext, key: str, value: str, version: int = 0) -> dict[str, object]:
    """Set a value that all agents share: text, or JSON. `version` is that of the value that you read, 0 for a new key;
    if another agent has changed it since, nothing is set.
    """
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    state = context.toolbox.state
    stored = await state.set(key, parsed, expected=version, author=context.by.author, work=context.work)
    return done("Set", version=stored.version)
