"""The tool `send_message`: words for the person, or for another agent."""

from __future__ import annotations

from typing import Annotated

from pattern_core.errors import InvalidInput
from pattern_core.events import Draft
from pattern_core.ids import message_id
from pattern_core.messages import check_text
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, Role
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow

USER = "user"


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True)
async def send_message(
    context: ToolContext,
    content: str,
    to: str = USER,
    needs_response: Annotated[bool | None, "Whether you need an answer."] = None,
) -> dict[str, object]:
    """Send `content` to the user, or to the agent that `to` names, who answers later."""
    if not content.strip():
        raise InvalidInput("there is nothing to send: `content` is empty")
    check_text(content)
    if to.strip().casefold() == USER:
        return _to_user(context, content)
    turn_id = await context.deliver(context.work, to, content, needs_response=needs_response)
    return done(f"Sent to the agent {to}", turn_id=turn_id)


def _to_user(context: ToolContext, content: str) -> dict[str, object]:
    position = context.storage.ids.position()
    row = MessageRow(
        id=message_id(position),
        agent_id=context.agent_id,
        position=position,
        role=Role.ASSISTANT,
        created_at=context.storage.now(),
        content=content,
        batch_id=context.batch_id,
        batch_type=context.batch_type,
        tool_call_id=context.call_id,
        source="send_message",
        session_id=context.session_id,
        is_archived=context.session_id is not None,
        trust=context.trust,
    )
    context.work.store(messages.append, [row])
    # The words are in the message's row; the stored event only refers to it.
    sent = {"message_id": row.id, "role": row.role.value, "channel": "user"}
    context.work.drafts.append(Draft("message", sent, {"content": content}))
    return done("Sent to the user", message_id=row.id)
