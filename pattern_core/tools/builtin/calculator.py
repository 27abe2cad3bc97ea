"""The tool `calculator`: exact arithmetic with units, and variables that the agent keeps."""

from __future__ import annotations

from pattern_core.calculator import calculate
from pattern_core.errors import InvalidInput
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass
from pattern_db.tables import tool_state

NAME = "calculator"
VARIABLES_MAX = 100  # of one agent
BRIEF = "Calculate or convert, never in your head, as for `What is 12 percent of 90?` Example: `5 mi to km`"


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True, brief=BRIEF, for_strangers=True)
async def calculator(context: ToolContext, expression: str, reset: bool = False) -> dict[str, object]:
    """Calculate and convert exactly, not in your head: `5 mi to km`, `20 degC to degF`,
    `sin(30 degree)`. `x = 5 kg` keeps x until `reset`.
    """
    is_kept = context.sees_only is None
    known = {} if reset or not is_kept else await context.storage.database.read(tool_state.read, context.agent_id, NAME)
    if reset and is_kept:
        context.work.store(tool_state.clear, context.agent_id, NAME)
    found = await calculate(expression, known)
    if len({*known, *found.variables}) > VARIABLES_MAX:
        raise InvalidInput(f"you keep {VARIABLES_MAX} variables already; use a name again, or set `reset`")
    now = context.storage.now()
    for name, value in found.variables.items() if is_kept else ():
        context.work.store(tool_state.put, context.agent_id, NAME, name, value, now=now, names_max=VARIABLES_MAX)
    about = "about " if found.is_approximate else ""
    hint = f"; {found.hint}" if found.hint else ""
    said = f"{expression.strip()} = {about}{found.text}{hint}"
    return done(said, result=found.text, is_approximate=found.is_approximate)
