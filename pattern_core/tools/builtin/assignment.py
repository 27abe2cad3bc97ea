"""The tools `assign` and `claim`: work that agents share out."""

from __future__ import annotations

from typing import Annotated

from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, Priority


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, needs_others=True)
async def assign(
    context: ToolContext,
    description: str,
    to: Annotated[str | None, "An agent; any, if you leave it out."] = None,
    priority: Annotated[Priority, "How urgent it is."] = Priority.MEDIUM,
) -> dict[str, object]:
    """Put work on the list that all agents share, for the agent that claims it; it starts no turn."""
    by, work = context.by.author, context.work
    return done(
        "Assigned", id=(await context.toolbox.assignments.add(description, priority, to, author=by, work=work)).id
    )


@tool(effect=EffectClass.LOCAL)
async def claim(
    context: ToolContext, finished: Annotated[str, "The id of what you claimed before, once it is done."] = ""
) -> dict[str, object]:
    """Get the next work from the list that all agents share; no other agent gets the same."""
    by, work = context.by.author, context.work
    found = await context.toolbox.assignments.claim(context.agent_id, finished, author=by, work=work)
    return done("Yours", id=found.id, description=found.description) if found else done("No work is left")
