"""The tool `tell`: words for another agent, from small models."""

from __future__ import annotations

from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, brief="", needs_others=True)
async def tell(context: ToolContext, agent: str, text: str) -> object:
    """Message another agent, as asked in `Tell anna that I agree` or `Ask anna for the news`."""
    return await send_message.run(context, content=text, to=agent)
