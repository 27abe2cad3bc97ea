"""The tool `notable`: what other agents and people should know later, too."""

from __future__ import annotations

from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, NotableKind


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, needs_others=True)
async def notable(context: ToolContext, kind: NotableKind, text: str) -> dict[str, object]:
    """Record in one sentence what was decided or reached, or what went wrong. Other agents are shown it."""
    made = await context.toolbox.record(kind, text, author=context.by.author, work=context.work)
    return done("It is recorded", event_id=made.id)
