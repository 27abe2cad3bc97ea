"""The tool `state_set`: change a value that all agents of a constellation share, unless another one has changed it."""

from __future__ import annotations

import json

from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass


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
