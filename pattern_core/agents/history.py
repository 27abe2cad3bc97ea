"""An agent's conversation: between rows and messages, and the window of it that is kept in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from pattern_core.ids import message_id
from pattern_core.limits import PromptLimits
from pattern_core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, parts_from_json, parts_to_json
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow

LOST_RESULT = "There is no result: the call was cut off before it was recorded."
SENT_BY_TOOL = "send_message"  # source of words that a tool call said; the call itself is what a prompt shows


def to_row(
    message: Message,
    *,
    agent_id: str,
    batch_id: str,
    sequence: int,
    source: str | None = None,
    source_metadata: Mapping[str, object] | None = None,
    arguments: Mapping[str, object] | None = None,
) -> MessageRow:
    """The row of `message`; `arguments` are those of the call that a tool message answers."""
    result = message.parts[0] if message.role == "tool" else None
    plain = message.parts == (Text(text=message.text),) or not message.parts
    return MessageRow(
        id=message.id,
        agent_id=agent_id,
        position=message.position,
        batch_id=batch_id,
        sequence_in_batch=sequence,
        role=Role(message.role),
        content=result.content if isinstance(result, ToolResult) else message.text or None,
        parts=None if plain or isinstance(result, ToolResult) else parts_to_json(message.parts),
        tool_call_id=result.call_id if isinstance(result, ToolResult) else None,
        tool_name=result.tool if isinstance(result, ToolResult) else None,
        tool_args=None if arguments is None else dict(arguments),
        tool_result={"is_error": result.is_error} if isinstance(result, ToolResult) else None,
        source=source,
        source_metadata=dict(source_metadata) if source_metadata else None,
        created_at=message.created_at,
    )


def from_row(row: MessageRow) -> Message:
    """The message of a row.

    Raises:
        ValueError: the row's parts are damaged or of a newer version.
    """
    role = row.role
    if role == "tool":
        result = row.tool_result
        parts: tuple[object, ...] = (
            ToolResult(
                call_id=row.tool_call_id or "",
                tool=row.tool_name or "",
                content=row.content or "",
                is_error=bool(isinstance(result, dict) and result.get("is_error")),
            ),
        )
    elif row.parts is not None:
        parts = parts_from_json(row.parts)
    else:
        parts = (Text(text=row.content or ""),)
    return Message(
        role=role,  # type: ignore[arg-type]  # the column's CHECK holds the same four words
        parts=parts,  # type: ignore[arg-type]  # every branch above makes a tuple of parts
        id=row.id,
        position=row.position,
        created_at=row.created_at,
    )


def make_message(role: str, parts: Sequence[Part], *, position: str, created_at: str) -> Message:
    """A message at `position` with the id that belongs to it."""
    return Message(
        role=role,  # type: ignore[arg-type]  # callers pass one of the four roles
        parts=tuple(parts),
        id=message_id(position),
        position=position,
        created_at=created_at,
    )


def repair(conversation: Iterable[Message]) -> list[Message]:
    """The conversation with every tool call answered and every answer asked for: vendors refuse anything else.

    A missing result becomes an error result; a result without its call is left out. Idempotent.
    """
    repaired: list[Message] = []
    waiting: dict[str, ToolCall] = {}
    for message in conversation:
        if message.role == "tool":
            result = message.parts[0]
            if isinstance(result, ToolResult) and waiting.pop(result.call_id, None) is not None:
                repaired.append(message)
            continue
        repaired.extend(_lost(message, waiting))
        waiting = {call.call_id: call for call in message.tool_calls}
        repaired.append(message)
    if repaired:
        repaired.extend(_lost(repaired[-1], waiting))
    return repaired


def _lost(at: Message, waiting: Mapping[str, ToolCall]) -> list[Message]:
    return [
        Message(
            role="tool",
            parts=(ToolResult(call_id=call.call_id, tool=call.tool, content=LOST_RESULT, is_error=True),),
            position=at.position,
            created_at=at.created_at,
        )
        for call in waiting.values()
    ]


class History:
    """The newest messages of one agent, oldest first, as the model is shown them; appended to as they are stored.

    When a bound is passed, the older half is forgotten at once: the beginning of the prompt then stays the same for
    many turns, which is what vendors' prompt caches need. `digest` names what is shown: stored messages never
    change, so their positions stand for their words.
    """

    def __init__(self, conversation: Sequence[Message], limits: PromptLimits) -> None:
        self._limits = limits
        self._set(list(conversation))
        if self._chars > limits.history_chars_max:
            self._forget()

    @property
    def messages(self) -> Sequence[Message]:
        """The messages now; what is appended later does not show in it."""
        return tuple(self._messages)

    @property
    def cursor(self) -> str:
        """The position of the newest message, empty if there is none."""
        return self._messages[-1].position if self._messages else ""

    @property
    def digest(self) -> bytes:
        """16 bytes over the positions of the messages."""
        return self._digest.digest()

    def append(self, message: Message) -> None:
        """Add a message at the end; before a user's message, forget the older half if a bound is passed."""
        limits = self._limits
        is_full = len(self._messages) >= limits.history_messages_max or self._chars > limits.history_chars_max
        if message.role == "user" and is_full:
            self._forget()
        self._messages.append(message)
        self._chars += message_chars(message)
        self._digest.update(message.position.encode())

    def drop(self, message: Message) -> None:
        """Take back a message whose commit failed; others may have been appended since."""
        self._set([other for other in self._messages if other is not message])

    def _forget(self) -> None:
        """Keep about half of both bounds, from a user's message on: no tool result stands without its call."""
        limits = self._limits
        chars, start = 0, len(self._messages)
        for index in range(len(self._messages) - 1, -1, -1):
            chars += message_chars(self._messages[index])
            count = len(self._messages) - index
            if 2 * count > limits.history_messages_max or 2 * chars > limits.history_chars_max:
                break
            if self._messages[index].role == "user":
                start = index
        if start == len(self._messages):  # one exchange alone passes half of a bound: it stays whole
            users = [index for index, message in enumerate(self._messages) if message.role == "user"]
            start = users[-1] if users else 0
        self._set(self._messages[start:])

    def _set(self, conversation: list[Message]) -> None:
        self._messages = conversation
        self._chars = sum(map(message_chars, conversation))
        self._digest = blake2b("".join(message.position for message in conversation).encode(), digest_size=16)


def message_chars(message: Message) -> int:
    """Roughly how many characters the message takes in a prompt."""
    total = 0
    for part in message.parts:
        match part:
            case Text() | Reasoning():
                total += len(part.text)
            case ToolResult():
                total += len(part.content)
            case ToolCall():
                total += len(part.tool) + sum(len(key) + len(str(value)) for key, value in part.arguments.items())
    return total


def keep_turns_whole(rows: Sequence[MessageRow], *, is_unfinished: bool) -> list[MessageRow]:
    """The rows, oldest first, with what was imported into the middle of a turn moved before it.

    A vendor takes no word between a call and its result. The newest turn, if it is unfinished, has no end yet.
    """
    ends = {row.batch_id: index for index, row in enumerate(rows) if row.batch_id is not None}
    if is_unfinished and ends:
        ends[next(reversed(ends))] = len(rows)
    ordered: list[MessageRow] = []
    batch, begin, end = None, 0, -1
    for index, row in enumerate(rows):
        if row.batch_id is None and index < end:
            ordered.insert(begin, row)
            begin += 1
            continue
        if row.batch_id is not None and row.batch_id != batch:
            batch, begin, end = row.batch_id, len(ordered), ends[row.batch_id]
        ordered.append(row)
    return ordered


def load_history(connection: Connection, agent_id: str, limits: PromptLimits, *, is_unfinished: bool) -> History:
    """The agent's newest messages as the model is shown them, repaired, from a user's message on.

    The calls of an unfinished turn's last decision are not repaired away: their results follow.
    """
    rows = messages.recent(connection, agent_id, limit=limits.history_messages_max)[::-1]
    ordered = keep_turns_whole(rows, is_unfinished=is_unfinished)
    conversation = [from_row(row) for row in ordered if row.source != SENT_BY_TOOL]
    first = next((index for index, message in enumerate(conversation) if message.role == "user"), 0)
    end = len(conversation)
    if is_unfinished:
        decisions = [index for index, message in enumerate(conversation) if message.role == "assistant"]
        end = decisions[-1] if decisions else first
    return History([*repair(conversation[first:end]), *conversation[max(first, end) :]], limits)
