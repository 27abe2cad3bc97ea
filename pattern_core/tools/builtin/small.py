"""The tools `remember`, `archive` and `tell`: those that small models have in the place of longer ones."""

from __future__ import annotations

from pattern_core.archive.entries import Terms
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.memory.block import NewBlock, shown_schema
from pattern_core.memory.edits import AppendText
from pattern_core.memory.schema import TextSchema
from pattern_core.tools.builtin.recall import insert
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass

LABEL = "human"
KEPT = "Kept in memory"


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, brief="", for_strangers=True)
async def remember(context: ToolContext, text: str) -> dict[str, object]:
    """Keep a fact, as asked in `Remember that I like tea` or `Note: the key is under the mat`."""
    memory, by, work, fact = context.toolbox.memory, context.by, context.work, text.strip()
    if not fact:
        raise InvalidInput("there is nothing to remember: `text` is empty")
    try:
        view = await memory.view(context.agent_id, LABEL)
        if fact in view.content.splitlines():
            return done("You knew this already")
        is_next_line = isinstance(shown_schema(view.metadata), TextSchema) and view.content.strip("\n") != ""
        edit = AppendText(text=f"\n{fact}" if is_next_line and not view.content.endswith("\n") else fact)
        edited = await memory.edit(context.agent_id, LABEL, edit, by=by, work=work)
        return done(edited.note if edited.block.version == view.version else KEPT)
    except NotFound:
        new = NewBlock(label=LABEL, description="What you know about the person.", content=fact)
        await memory.create(context.agent_id, new, by=by, work=work)
        return done(KEPT)
    except InvalidInput as error:
        if "limit" not in error.details:
            raise
        raise InvalidInput("your memory is full; store this text with the tool archive instead") from None


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, brief="", for_strangers=True)
async def archive(context: ToolContext, text: str) -> dict[str, object]:
    """Store a long text, as asked in `Store these minutes: …`"""
    return await insert(context, text, (), Terms(now=context.storage.now(), force=True))


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, brief="", needs_others=True, for_strangers=True)
async def tell(context: ToolContext, agent: str, text: str) -> object:
    """Message another agent, as asked in `Tell anna that I agree` or `Ask anna for the news`."""
    return await send_message.run(context, content=text, to=agent)
