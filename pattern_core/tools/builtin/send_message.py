"""The tool `send_message`: words for the person, or for another agent."""

from __future__ import annotations

from typing import Annotated

from pattern_core.errors import InvalidInput
from pattern_core.events import Draft
from pattern_core.files.access import AgentFiles
from pattern_core.ids import message_id
from pattern_core.messages import check_text
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, Role
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow

USER = "user"
FILE_BYTES_MAX = 8 * 1024 * 1024  # of a file that is sent; most chat applications accept that
_SOURCE, _FILE = "send_message", "file"  # of its messages, and of the path in what is known about them


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False, enabled_by_default=True, for_strangers=True)
async def send_message(
    context: ToolContext,
    content: str,
    to: str = USER,
    needs_response: Annotated[bool | None, "Whether you need an answer."] = None,
    file: str | None = None,
) -> dict[str, object]:
    """Send `content` to the user, with a `file` (folder/path), or to the agent that `to` names, who answers later."""
    if not content.strip():
        raise InvalidInput("there is nothing to send: `content` is empty")
    check_text(content)
    if to.strip().casefold() == USER:
        return _to_user(context, content, None if file is None else await _checked(context, file))
    if file is not None:
        raise InvalidInput("a file can only be sent to the user; name it in `content`, so that the agent can read it")
    turn_id = await context.deliver(context.work, to, content, needs_response=needs_response)
    return done(f"Sent to the agent {to}", turn_id=turn_id)


async def _checked(context: ToolContext, path: str) -> str:
    """Return the whole path of a file that can be sent."""
    access = AgentFiles(context.storage.database, context.agent_id, context.sees_only)
    place = await access.locate(path)
    size = len(await access.data(place))
    if size > FILE_BYTES_MAX:
        raise InvalidInput(f"a file that is sent has at most {FILE_BYTES_MAX} bytes, this one {size}; split it")
    return place.path


def _to_user(context: ToolContext, content: str, file: str | None) -> dict[str, object]:
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
        source=_SOURCE,
        source_metadata=None if file is None else {_FILE: file},
        session_id=context.session_id,
        is_archived=context.session_id is not None,
        trust=context.trust,
    )
    context.work.store(messages.append, [row])
    # The words are in the message's row; the stored event only refers to it.
    sent = {"message_id": row.id, "role": row.role.value, "channel": "user"}
    context.work.drafts.append(Draft("message", sent, {"content": content}))
    return done("Sent to the user", message_id=row.id)


def sent_file(row: MessageRow) -> str | None:
    """Return the path of the file that a message of an agent is sent with."""
    about = row.source_metadata if row.source == _SOURCE else None
    return str(about[_FILE]) if isinstance(about, dict) and _FILE in about else None
