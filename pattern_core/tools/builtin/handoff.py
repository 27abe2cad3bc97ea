"""The tool `handoff`: a note for another agent, which it reads when it works next."""

from __future__ import annotations

from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, needs_others=True)
async def handoff(context: ToolContext, text: str, to: str = "") -> dict[str, object]:
    """Leave a note for the agent `to`, or without `to` for the agent that works next. It is shown when that agent gets
    its next message; it starts no turn.
    """
    note = await context.toolbox.handoffs.add(
        text, author=context.by.author, from_agent=context.agent_id, to=to or None, work=context.work
    )
    return done("The note is left", note_id=note.id)
