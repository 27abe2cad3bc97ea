"""The tool `emergency_halt`: for agents that watch over the others."""

from __future__ import annotations

from typing import Annotated

from pattern_core.halt import Severity
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def emergency_halt(
    context: ToolContext,
    reason: Annotated[str, "What is wrong, so that a person who was not there can judge it."],
    severity: Annotated[Severity, "How grave it is."] = "critical",
) -> dict[str, object]:
    """Stop all agents at once, yourself included, until a person lets them continue. For harm that cannot wait: to
    people, to data, or by agents out of control. A person reads your reason; for anything less send a message instead.
    """
    asker = {"agent_id": context.agent_id, "agent_name": context.agent_name, "turn_id": context.turn_id}
    halt = context.toolbox.halt.request(context.work, **asker, reason=reason, severity=severity)
    return done("All agents are halted until a person resumes them", status="halt_initiated", halt_id=halt.id)
