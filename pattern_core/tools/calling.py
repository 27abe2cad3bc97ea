"""What the builtin tools share: who did it, what is missing, and the shape of their answers."""

from __future__ import annotations

from pattern_core.errors import InvalidInput
from pattern_core.ids import message_id
from pattern_core.memory.block import agent_author
from pattern_core.memory.store import Cause
from pattern_core.tools.tool import ToolContext


def author_of(context: ToolContext) -> str:
    """The author of what the call changes."""
    return agent_author(context.agent_id)


def cause_of(context: ToolContext) -> Cause:
    """What led to the call: the message that started the turn, the turn, the call."""
    return {"message": message_id(context.batch_id), "turn": context.turn_id, "call": context.call_id}


def needed(value: str | None, name: str, op: str) -> str:
    """`value`, an argument that this operation cannot do without; it may be empty text.

    Raises:
        InvalidInput: it was left out.
    """
    if value is None:
        raise InvalidInput(f"the operation {op} needs `{name}`")
    return value


def done(message: str, **data: object) -> dict[str, object]:
    """A tool's answer: `{"success": true, "message": words, "data"?: …}`."""
    answer: dict[str, object] = {"success": True, "message": message}
    return {**answer, "data": data} if data else answer
