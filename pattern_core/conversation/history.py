"""An agent's conversation: conversion between rows and messages, and the window of it that is kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

from pattern_core.answers import why_cut
from pattern_core.conversation.opening import Opening, beginning, opening_message, shown_chain
from pattern_core.limits import PromptLimits
from pattern_core.messages import Image, Message, Note, Part, Text, ToolCall, ToolResult, parts_from_json, parts_to_json
from pattern_core.models.tokens import message_tokens
from pattern_core.untrusted import marked_import, marked_result, neutral
from pattern_db.connection import Connection
from pattern_db.enums import BatchType, Role, TrustLevel
from pattern_db.journal import steps, turns
from pattern_db.tables import messages
from pattern_db.tables.messages import PARTIAL, MessageRow

WAITING_RESULT = "There is no result yet: a person has been asked whether this may run, and has not answered."
LOST_RESULT = "There is no result: the call was cut off before it was recorded."
UNANSWERED = "[This was not answered: the turn ended as {}.]"
IMPORTED_TOGETHER_MAX = 20  # imported messages that leave together if no person speaks among them
IMPORTED = "import"  # source of imported messages; no turn has it


_ROLES = {role.value: role for role in Role}


def to_row(
    message: Message,
    *,
    agent_id: str,
    batch_id: str,
    sequence: int,
    batch_type: BatchType | None = None,
    session_id: str | None = None,
    source: str | None = None,
    source_metadata: Mapping[str, object] | None = None,
    arguments: Mapping[str, object] | None = None,
    trust: TrustLevel = TrustLevel.SOURCE,
) -> MessageRow:
    """Return the row of `message`; `arguments` are those of the call of a tool message. For an incomplete message,
    `source_metadata` says why.
    """
    if message.cut_off:
        source_metadata = {PARTIAL: message.cut_off}
    parts = message.parts
    only = parts[0] if len(parts) == 1 else None
    result = only if message.role == "tool" and isinstance(only, ToolResult) else None
    is_plain = not parts or isinstance(only, Text | ToolResult)
    return MessageRow(
        id=message.id,
        agent_id=agent_id,
        position=message.position,
        batch_id=batch_id,
        sequence_in_batch=sequence,
        batch_type=batch_type,
        role=_ROLES[message.role],
        content=message.text or None if result is None else result.content,
        parts=None if is_plain else parts_to_json(parts),
        tool_call_id=None if result is None else result.call_id,
        tool_name=None if result is None else result.tool,
        tool_args=None if arguments is None else dict(arguments),
        tool_result=result and {"is_error": result.is_error, **({"is_ours": True} if result.is_ours else {})},
        source=source,
        source_metadata=dict(source_metadata) if source_metadata else None,
        session_id=session_id,
        is_archived=session_id is not None,  # the agent's main conversation does not show it
        created_at=message.created_at,
        trust=trust,
    )


def from_row(row: MessageRow) -> Message:
    """Return the message of a row.

    Raises:
        ValueError: the row's parts are damaged or of a newer version.
    """
    parts: tuple[Part, ...] = (Text(text=row.content or ""),)
    if row.role is Role.TOOL:
        marks = row.tool_result if isinstance(row.tool_result, dict) else {}
        known = {name: marks.get(name) is True for name in ("is_error", "is_ours")}
        call_id, tool = row.tool_call_id or "", row.tool_name or ""
        parts = (ToolResult(call_id=call_id, tool=tool, content=row.content or "", **known),)
    elif row.parts is not None:
        parts = parts_from_json(row.parts)
    return Message(
        role=row.role.value,
        parts=parts,
        id=row.id,
        position=row.position,
        created_at=row.created_at,
        is_imported=row.batch_id is None and row.source == IMPORTED,
        cut_off=row.finish_reason or "",
        note=row.note or "",
    )


def repair(conversation: Iterable[Message], *, waiting: Collection[str] = ()) -> list[Message]:
    """Return the conversation with a result for every tool call and a call for every result: vendors refuse anything
    else.

    A missing result becomes an error result, with its own text for calls that wait for a person (by their call ids); a
    result without its call is left out. Idempotent.
    """
    repaired: list[Message] = []
    unanswered: dict[str, ToolCall] = {}

    def answer(at: Message) -> None:
        for call in unanswered.values():
            words = WAITING_RESULT if call.call_id in waiting else LOST_RESULT
            lost = ToolResult(call_id=call.call_id, tool=call.tool, content=words, is_error=True, is_ours=True)
            repaired.append(Message(role="tool", parts=(lost,), position=at.position, created_at=at.created_at))

    for message in conversation:
        if message.role == "tool":
            result = message.parts[0]
            if isinstance(result, ToolResult) and unanswered.pop(result.call_id, None) is not None:
                repaired.append(message)
            continue
        answer(message)
        unanswered = {call.call_id: call for call in message.tool_calls} if message.role == "assistant" else {}
        repaired.append(message)
    if repaired:
        answer(repaired[-1])
    return repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGroup:
    """Messages that stay or leave together: a turn, so that no call is separated from its result; or a part of an
    import. `tokens` is an estimate; `is_running`: it is the running turn; `is_held`: it waits for a person and
    continues later.
    """

    messages: tuple[Message, ...]
    tokens: int
    is_running: bool = False
    is_held: bool = False


class _Entry(NamedTuple):
    """A message, its shown form, and the tokens of that; a tuple, since a history has thousands of them.

    `begins`: messages before it may leave without it; `is_short`: its shown form is shortened; `has_image`: it is a
    person's message with an image.
    """

    message: Message
    shown: Message
    tokens: int
    begins: bool
    is_short: bool
    has_image: bool


class History:
    """A conversation of one agent, its main one or a session, as shown to the model: an opening for the archived part,
    then the messages, oldest first; appended as they are stored. Results of tools and imports are marked as untrusted.

    Nothing leaves automatically: `pattern_core.compaction` archives what does not fit into a window, and calls `leave`.
    `opening` represents hidden messages. `tokens` estimates `messages` in a prompt, `opening_tokens` the opening in it;
    0 if there is none. `first` and `cursor` are the positions of the oldest and the newest message, empty if there is
    none. `has_images`: a person's message shows one.
    """

    def __init__(
        self,
        conversation: Sequence[Message] = (),
        *,
        opening: Opening | None = None,
        begins: Collection[str] | None = None,
        hidden: Sequence[str] = (),
        loaded_from: str = "",
        is_untrusted: Callable[[str], bool] = lambda _tool: True,
        session_id: str | None = None,
    ) -> None:
        """`begins` are the ids of messages before which the conversation may be cut (None: users' messages),
        `hidden` positions of messages that no prompt shows, `loaded_from` is the start of the loaded part.
        `is_untrusted` tells for a tool's name whether its results may hold untrusted text.
        """
        self.compacted_at: str | None = None  # the cursor at the last compaction
        self.compactions: tuple[str, int] = ("", 0)  # a turn's batch, and the number of compactions in it
        self.hidden = hidden
        self.loaded_from = loaded_from
        self.session_id = session_id
        self.opening = opening or Opening()
        self._is_untrusted = is_untrusted
        self._opening_tokens_max: int | None = None
        self._set(
            [
                self._entry(message, begins=message.role == "user" if begins is None else message.id in begins)
                for message in conversation
            ]
        )

    @property
    def messages(self) -> Sequence[Message]:
        """The messages as they are shown now, the opening first; later messages are not added."""
        return tuple(self._shown)

    @property
    def question(self) -> Message | None:
        """The last message to the agent, as stored; None without one."""
        for entry in reversed(self._entries):
            if entry.shown.role == "user":
                return entry.message
        return None

    @property
    def words(self) -> str:
        """The text of the question; empty if there is none."""
        return "" if (question := self.question) is None else question.text

    @property
    def digest(self) -> bytes:
        """A 16-byte digest of the opening and the positions of the messages: stored messages never change."""
        return self._digest.digest()

    def append(self, message: Message) -> None:
        """Add a message at the end."""
        entry = self._entry(message, begins=message.role == "user" and self._is_answered())
        if not self._entries:
            self._set([entry])
            return
        self._entries.append(entry)
        self._shown.append(entry.shown)
        self.tokens += entry.tokens
        if entry.has_image:
            self.has_images = True
        self.cursor = message.position
        self._digest.update(message.position.encode())

    def note(self, note: str) -> None:
        """Set the note before the newest message, which is stored with it."""
        before = self._entries[-1]
        said = before.message
        noted = Message(
            role=said.role, parts=said.parts, id=said.id, position=said.position, created_at=said.created_at, note=note
        )
        entry = self._entry(noted, begins=before.begins)
        self._entries[-1] = entry
        self._shown[-1] = entry.shown
        self.tokens += entry.tokens - before.tokens

    def notes(self, count: int) -> str:
        """Return the notes before the newest `count` messages, without the very newest."""
        return "\0".join([entry.message.note for entry in self._entries[-count:-1] if entry.message.note])

    def replace(self, message: Message, other: Message | None, *, is_short: bool = False) -> None:
        """Replace or remove a message; with `is_short` only in the view, not in storage."""
        kept: list[_Entry] = []
        for entry in self._entries:
            if entry.message is not message:
                kept.append(entry)
            elif other is not None:
                kept.append(self._entry(other, begins=entry.begins, is_short=is_short))
        self._set(kept)

    def exchanges(self, running_from: str = "~", held: Collection[str] = ()) -> list[MessageGroup]:
        """Return the messages as exchanges that stay or leave together, oldest first.

        The running turn begins with the message at `running_from`; it and all later ones are one exchange. `held` are
        positions of messages of turns that wait.
        """
        positions = [entry.message.position for entry in self._entries]
        if running_from in positions:
            begin = positions.index(running_from)
        else:
            begin = next((at for at, position in enumerate(positions) if position >= running_from), len(positions))
        groups: list[list[_Entry]] = []
        for entry in self._entries[:begin]:
            if entry.begins or not groups:
                groups.append([entry])
            else:
                groups[-1].append(entry)
        found = [_exchange(group, held) for group in groups]
        running = self._entries[begin:]
        return [*found, _exchange(running, (), is_running=True)] if running else found

    def leave(self, gone: Collection[Message], opening: Opening) -> None:
        """Remove archived messages from the view; `opening` says what is kept of them."""
        away = {id(message) for message in gone}
        self.opening = opening
        if away:
            self._set([entry for entry in self._entries if id(entry.message) not in away])
        else:
            self._reopen()

    def limit_opening(self, tokens_max: int | None) -> None:
        """Limit the opening to this many tokens."""
        if tokens_max != self._opening_tokens_max:
            self._opening_tokens_max = tokens_max
            self._reopen()

    def _entry(self, message: Message, *, begins: bool, is_short: bool = False) -> _Entry:
        if message.is_imported:
            shown = marked_import(message)
        elif message.cut_off:
            shown = _marked_as_cut_off(neutral(message))
        elif (
            message.role == "tool"
            and isinstance(result := message.parts[0], ToolResult)
            and not result.is_ours
            and self._is_untrusted(result.tool)
        ):
            shown = marked_result(message)
        else:
            shown = neutral(message)
        if message.note:
            parts = Note(text=f"{message.note}\n\n"), *shown.parts
            shown = Message(
                role=shown.role, parts=parts, id=shown.id, position=shown.position, created_at=shown.created_at
            )
        has_image = shown.role == "user" and any(isinstance(part, Image) for part in shown.parts)
        return _Entry(message, shown, message_tokens(shown), begins, is_short, has_image)

    def _is_answered(self) -> bool:
        """Return whether the newest calls have all their results."""
        results: list[str] = []
        for entry in reversed(self._entries):
            if entry.begins:
                break
            for part in entry.message.parts:
                if isinstance(part, ToolResult):
                    results.append(part.call_id)
                elif isinstance(part, ToolCall) and part.call_id not in results:
                    return False
        return True

    def _set(self, entries: list[_Entry]) -> None:
        self._entries = entries
        self.has_images = any(entry.has_image for entry in entries)
        self.tokens: int = sum([entry.tokens for entry in entries])
        self.opening_tokens = 0
        self.first = entries[0].message.position if entries else ""
        self.cursor = entries[-1].message.position if entries else ""
        self._reopen()

    def _reopen(self) -> None:
        """Update the opening before the same messages."""
        first = opening_message(self.opening, self._opening_tokens_max)
        if first is None and self._entries and self._entries[0].message.role != "user":
            first = beginning()
        self._shown = [entry.shown for entry in self._entries]
        if first is not None:
            self._shown.insert(0, first)
        before, self.opening_tokens = self.opening_tokens, 0 if first is None else message_tokens(first)
        self.tokens += self.opening_tokens - before
        self._digest: blake2b = blake2b(b"" if first is None else first.text.encode(), digest_size=16)
        self._digest.update("".join(map(_name, self._entries)).encode())


def _marked_as_cut_off(message: Message) -> Message:
    """Return a partial answer as it is shown: only its text, since partial reasoning has no signature."""
    mark = f"[This answer is not complete: {why_cut(message.cut_off)}.]"
    return replace(message, parts=(Text(text=f"{message.text}\n\n{mark}".lstrip()),))


def _name(entry: _Entry) -> str:
    return f"{entry.message.position}~{entry.tokens}" if entry.is_short else entry.message.position


def _exchange(entries: Sequence[_Entry], held: Collection[str], *, is_running: bool = False) -> MessageGroup:
    return MessageGroup(
        messages=tuple(entry.message for entry in entries),
        tokens=sum(entry.tokens for entry in entries),
        is_running=is_running,
        is_held=any(entry.message.position in held for entry in entries),
    )


def keep_turns_whole(rows: Sequence[MessageRow], *, active: str | None) -> list[MessageRow]:
    """Return the rows, oldest first, with those of each turn together at the place of its last one.

    A vendor accepts no message between a call and its result, but there may be some: imports during the call, or other
    turns while one waited for a person. The turn with the batch `active` has no end yet.
    """
    ends = {row.batch_id: index for index, row in enumerate(rows) if row.batch_id is not None}
    if active is not None:
        ends[active] = len(rows)
    places = [index if row.batch_id is None else ends[row.batch_id] for index, row in enumerate(rows)]
    return [rows[index] for index in sorted(range(len(rows)), key=places.__getitem__)]  # a stable sort keeps the order


def load_history(
    connection: Connection,
    agent_id: str,
    limits: PromptLimits,
    *,
    active: str | None,
    is_untrusted: Callable[[str], bool],
    session_id: str | None = None,
) -> History:
    """Return the newest messages of the agent's main conversation, or of a session, that are not archived, as shown to
    the model, repaired; and their opening.

    Older ones beyond the bound are counted for the opening. `active` is the batch of the running turn, if there is one:
    it is read completely, however many turns overtook it while it waited, and the calls of its last decision are not
    repaired, since their results follow. `is_untrusted` is as in `History`.
    """
    limit = limits.history_messages_max
    rows, loaded_from, unloaded = _read(connection, agent_id, limit, active, session_id)
    ordered = keep_turns_whole(rows, active=active)
    first = min((row.batch_id for row in rows if row.batch_id is not None), default="~")
    unanswered = turns.unanswered(connection, agent_id, first)
    conversation = _with_ends([row for row in ordered if not row.is_said_by_call], unanswered)
    own = {row.id for row in ordered if active is not None and row.batch_id == active}
    decisions = [at for at, message in enumerate(conversation) if message.id in own and message.role == "assistant"]
    end = decisions[-1] if decisions else len(conversation)
    asked = steps.waiting_calls(connection, agent_id)
    shown = [*repair(conversation[:end], waiting=asked), *conversation[end:]]
    seen = {message.id for message in shown}
    return History(
        shown,
        opening=Opening(chain=shown_chain(connection, agent_id, session_id), unloaded=unloaded),
        begins=_begins(ordered),
        hidden=[row.position for row in rows if row.id not in seen],
        loaded_from=loaded_from,
        is_untrusted=is_untrusted,
        session_id=session_id,
    )


def _with_ends(rows: Sequence[MessageRow], unanswered: Mapping[str, str]) -> list[Message]:
    """Return the messages of the rows. After the messages of an unanswered turn (in `unanswered`, by batch, with its
    status) a line says so: otherwise a model would answer it together with the next message.
    """
    conversation: list[Message] = []
    ends = {row.batch_id: row.id for row in rows}
    for row in rows:
        message = from_row(row)
        conversation.append(message)
        status = unanswered.get(row.batch_id or "")
        is_open = status is not None and ends[row.batch_id] == row.id
        if is_open and (message.role != "assistant" or message.tool_calls):
            words = (Text(text=UNANSWERED.format(status)),)
            conversation.append(replace(message, role="assistant", parts=words, id="", note=""))
    return conversation


def _read(
    connection: Connection, agent_id: str, limit: int, active: str | None, session_id: str | None
) -> tuple[list[MessageRow], str, int]:
    """Return the newest `limit` messages without cutting a turn, and all of the running turn, oldest first; where the
    others begin; and how many were not read.
    """
    newest = messages.shown(connection, agent_id, limit, session_id=session_id)[::-1]
    if len(newest) < limit:
        return newest, newest[0].position if newest else "", 0
    others = [row for row in newest if active is None or row.batch_id != active]
    others = others[_whole_from(others) :]
    loaded_from = (others or newest)[0].position
    own: list[MessageRow] = []
    if active is not None:
        kept = {*messages.positions_of(connection, agent_id, [active], session_id=session_id)}
        own = [row for row in messages.by_batch(connection, agent_id, active) if row.position in kept]
    before = sum(row.position < loaded_from for row in own)
    unloaded = messages.count_shown(connection, agent_id, before=loaded_from, session_id=session_id) - before
    return sorted([*others, *own], key=attrgetter("position")), loaded_from, unloaded


def _whole_from(rows: Sequence[MessageRow]) -> int:
    """Return the start of the first complete turn; 0 if the first one is complete, or is the only one."""
    batch = rows[0].batch_id if rows else None
    if batch is None or batch == rows[0].position:
        return 0
    last = max(index for index, row in enumerate(rows) if row.batch_id == batch)
    return last + 1 if last + 1 < len(rows) else 0


def _begins(rows: Sequence[MessageRow]) -> set[str]:
    """Return ids of the messages before which the conversation may be cut: the first one of a turn, and in imports a
    person's message, or one after many without a person's.
    """
    begins: set[str] = set()
    batch: str | None = None
    length = 0
    for index, row in enumerate(rows):
        length += 1
        is_other = index == 0 or row.batch_id != batch
        is_long = length > IMPORTED_TOGETHER_MAX and row.role is not Role.TOOL
        if is_other or (row.batch_id is None and (row.role is Role.USER or is_long)):
            begins.add(row.id)
            length = 1
        batch = row.batch_id
    return begins
