"""The tool `archive`: a text for small models to store, an entry of the agent's archive."""

from __future__ import annotations

from pattern_core.archive.entries import Terms
from pattern_core.tools.builtin.recall import insert
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, brief="")
async def archive(context: ToolContext, text: str) -> dict[str, object]:
    """Store a long text, as asked in `Store these minutes: …`"""
    return await insert(context, text, (), Terms(now=context.storage.now(), force=True))
