"""Imports: past messages are added to an agent's conversation at their own times, without a turn.

A position is the Snowflake of a message's time, so imported messages are sorted among the others. Their sequence within
a millisecond begins in its upper half; the lower half is for running turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple

import trio

from pattern_core.conversation.history import IMPORTED
from pattern_core.errors import IdempotencyMismatch, InvalidInput, NotFound, instead_of
from pattern_core.events import Draft, Event, append
from pattern_core.ids import POSITION_DIGITS, SEQUENCE_BITS, SNOWFLAKE_EPOCH_MS, Ids, message_id, ulid
from pattern_core.journal import Journal
from pattern_core.limits import IMPORT_MESSAGES_MAX, KEY_CHARS_MAX, Limits
from pattern_core.messages import check_text
from pattern_core.untrusted import plain
from pattern_db.columns import Json, iso, to_json
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.errors import RowNotFound
from pattern_db.tables import messages, sessions
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.messages import ImportRow, MessageRow
from pattern_db.tables.sessions import SessionRow

DIGEST_BYTES = 16
SESSIONS_MAX = 100_000  # of one agent or group
TITLE_CHARS_MAX = 200  # of a session
NO_OWNER = "a session needs an agent or a group, and a fork its session; name existing ones"
NAME_CHARS_MAX = 500  # of a session, a workspace, a speaker
CHECKED_AT_ONCE = 500  # messages between two checkpoints
_EPOCH, _MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_HALF = 1 << (SEQUENCE_BITS - 1)
_LAST = (1 << SEQUENCE_BITS) - 1


class PastMessage(NamedTuple):
    """A message from elsewhere. `created_at` is RFC 3339 with an offset; None is now. `name` is who spoke."""

    role: Role
    content: str
    created_at: str | None = None
    session_id: str | None = None
    name: str | None = None
    metadata: Mapping[str, Json] | None = None
    workspace: str | None = None


class PastSession(NamedTuple):
    """A conversation from elsewhere, known by its `id` in the program `origin` and by when it began (RFC 3339)."""

    id: str
    origin: str
    created_at: str
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The ids of the messages in their order, and how many were `added`; `is_replay`: they were already imported."""

    ids: Sequence[str]
    added: int = 0
    is_replay: bool = False


@dataclass(kw_only=True)
class HistoryImports:
    """Adds past messages to the conversations of a constellation's agents.

    `forget` drops an agent's conversation from memory, so that its next turn reads the rows again.
    """

    journal: Journal
    find_agent: Callable[[str], Awaitable[AgentRow]]
    forget: Callable[[str], None]
    limits: Limits

    async def add(
        self,
        agent: str,
        past: Sequence[PastMessage],
        *,
        author: str,
        idempotency_key: str | None = None,
        session: PastSession | None = None,
    ) -> Imported:
        """Store the messages in one transaction, in the order of their times; all of them, or none. With a `session`,
        which is created if it is not there, only those that have another `id` in their metadata than its messages.

        A running turn does not see them, the agent's next one does. Times in the future are treated as now: the next
        message comes after all imported ones.

        Raises:
            InvalidInput: there are none or too many, or one of them is invalid; the message names it.
            NotFound: there is no such agent.
            IdempotencyMismatch: the key was used for other messages.
        """
        if not 1 <= len(past) <= IMPORT_MESSAGES_MAX:
            raise InvalidInput(f"a request must have 1 to {IMPORT_MESSAGES_MAX} messages, not {len(past)}; split it")
        if idempotency_key is not None and not 1 <= len(idempotency_key) <= KEY_CHARS_MAX:
            raise InvalidInput(f"an idempotency key must have 1 to {KEY_CHARS_MAX} characters")
        agent_id = (await self.find_agent(agent)).id
        now_ms = self.journal.clock.now_ms()
        chat = None if session is None else _session(agent_id, session, now_ms)
        past = past if chat is None else [one._replace(session_id=chat.id) for one in past]
        moments = await self._checked(past, now_ms)
        order = sorted(range(len(past)), key=moments.__getitem__)
        times = [min(_unix_ms(moment), now_ms) for moment in moments]
        digests = None if idempotency_key is None else _digests(agent_id, author, idempotency_key, past)
        ids = self.journal.ids
        floor = reserve(ids, sorted(times))

        def store(connection: Connection) -> tuple[Imported, list[Event]]:
            known = None if digests is None else _replayed(connection, *digests)
            if known is not None:
                return known, []
            now = iso(now_ms)
            said = {} if chat is None else _said(connection, agent_id, chat)
            live = sessions.known(connection, agent_id, {one.session_id for one in past if one.session_id})
            there = [said.get(str((one.metadata or {}).get("id"))) for one in past]
            new = [index for index in order if there[index] is None]
            free = free_positions(connection, agent_id, [times[index] for index in new], floor)
            positions = dict(zip(new, free, strict=True))
            rows = [_row(agent_id, past[at], moments[at], position, live) for at, position in positions.items()]
            messages.append(connection, rows)
            by_index = [int(position or positions[index]) for index, position in enumerate(there)]
            if digests is not None:
                messages.note_import(connection, ImportRow(*digests, agent_id, now, by_index))
            drafts = [Draft("history.imported", {"agent_id": agent_id, "count": len(rows)})] if rows else []
            return replace(_imported(by_index), added=len(rows)), append(connection, None, drafts, created_at=now)

        imported = await self.journal.commit(store)
        ids.pass_by(max(int(one.removeprefix("msg_")) for one in imported.ids))
        if not imported.is_replay:
            self.forget(agent_id)
        return imported

    async def _checked(self, past: Sequence[PastMessage], now_ms: int) -> list[datetime]:
        """Check the messages and return their times."""
        moments = []
        for index, message in enumerate(past):
            if index % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            try:
                _check(message, self.limits)
                moments.append(_EPOCH + now_ms * _MS if message.created_at is None else _moment(message.created_at))
            except InvalidInput as error:
                raise InvalidInput(f"messages[{index}]: {error.message}", index=index) from None
        return moments


def create_session(connection: Connection, owner_id: str, session: SessionRow) -> None:
    """Create a session of an agent or a group.

    Raises:
        InvalidInput: there are too many.
        NotFound: there is no such agent or group.
    """
    if sessions.count(connection, owner_id) >= SESSIONS_MAX:
        raise InvalidInput(f"an agent or group has at most {SESSIONS_MAX} sessions; delete some")
    with instead_of(RowNotFound, NotFound(NO_OWNER)):
        sessions.create(connection, owner_id, session)


def _session(agent_id: str, past: PastSession, now_ms: int) -> SessionRow:
    """Return the session that a conversation from elsewhere is here; its id is always the same."""
    began_ms = max(0, min(_unix_ms(_moment(past.created_at)), now_ms))
    digest = blake2b(to_json([agent_id, past.origin, past.id]).encode(), digest_size=10).digest()
    title, origin = (plain(text or "")[:TITLE_CHARS_MAX] or None for text in (past.title, past.origin))
    session_id, began = f"ses_{ulid(began_ms, int.from_bytes(digest))}", iso(began_ms)
    return SessionRow(id=session_id, title=title, origin=origin, created_at=began, updated_at=began)


def _said(connection: Connection, agent_id: str, chat: SessionRow) -> dict[str, str]:
    """Create a session from elsewhere, or return the positions of what it has by the ids there."""
    if sessions.known(connection, agent_id, [chat.id]):
        return messages.imported(connection, agent_id, chat.id)
    create_session(connection, agent_id, chat)
    return {}


def _check(message: PastMessage, limits: Limits) -> None:
    if not message.content.strip():
        raise InvalidInput("the message is empty; leave it out")
    if len(message.content) > limits.message_chars_max:
        raise InvalidInput(
            f"the message has {len(message.content)} characters, more than the limit of "
            f"{limits.message_chars_max}; split it"
        )
    for name, value in (("session_id", message.session_id), ("name", message.name), ("workspace", message.workspace)):
        if value is not None and not 1 <= len(value) <= NAME_CHARS_MAX:
            raise InvalidInput(f"`{name}` must have 1 to {NAME_CHARS_MAX} characters")
    try:
        details = to_json([message.session_id, message.name, message.workspace, message.metadata])
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"`metadata` is not JSON: {error}") from None
    if len(details) > limits.message_chars_max:
        raise InvalidInput(f"`metadata` has more than {limits.message_chars_max} characters; put less into it")
    if any("\0" in (text or "") for text in (message.content, message.session_id, message.name, message.workspace)):
        raise InvalidInput("the message holds a NUL character; remove it")
    check_text(message.content)
    check_text(details)


def _moment(text: str) -> datetime:
    """Return the time with its full resolution, so that messages of one millisecond keep their order."""
    try:
        moment = datetime.fromisoformat(text.upper())
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"`created_at` is not a valid time: {error}") from None
    raise InvalidInput(f"`created_at` {text!r} has no offset from UTC; write for example 2026-11-21T22:24:40Z")


def _unix_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS


def _row(agent_id: str, message: PastMessage, moment: datetime, position: str, live: Collection[str]) -> MessageRow:
    """Return the row of an imported message; one that names a session of the agent (`live`) is said in that."""
    details = dict(message.metadata or {})
    if message.name is not None:
        details["name"] = message.name
    return MessageRow(
        id=message_id(position),
        agent_id=agent_id,
        position=position,
        role=message.role,
        content=message.content,
        created_at=iso(_unix_ms(moment)),
        source=IMPORTED,
        source_metadata=details or None,
        session_id=message.session_id,
        workspace=message.workspace,
        is_archived=message.session_id in live,
    )


def _digests(agent_id: str, author: str, key: str, past: Sequence[PastMessage]) -> tuple[bytes, bytes]:
    """Return the digest by which a repeated import is found, and the digest of its content."""
    name = to_json([agent_id, author, key]).encode()
    said = blake2b(digest_size=DIGEST_BYTES)
    for one in past:
        said.update(to_json(one).encode())  # in this order, as in stored digests
    return blake2b(name, digest_size=DIGEST_BYTES).digest(), said.digest()


def _replayed(connection: Connection, idempotency: bytes, fingerprint: bytes) -> Imported | None:
    known = messages.find_import(connection, idempotency)
    if known is None:
        return None
    if known.fingerprint != fingerprint:
        raise IdempotencyMismatch("this idempotency key was used for other messages; use a new key for each import")
    return _imported(known.positions, is_replay=True)


def _imported(positions: Sequence[int], *, is_replay: bool = False) -> Imported:
    return Imported(ids=[message_id(_text(position)) for position in positions], is_replay=is_replay)


def reserve(ids: Ids, times: Sequence[int]) -> int:
    """Keep positions of other messages behind those of an import with these times (unix ms, rising); return the floor
    for `free_positions`.
    """
    newest = _first_position(times[-1])
    floor = ids.pass_by(newest)
    ids.pass_by(max(floor, newest) + len(times))
    return floor


def free_positions(connection: Connection, agent_id: str, times: Sequence[int], floor: int) -> list[str]:
    """Return a free position for each time (unix ms, rising), rising; in its own millisecond unless that is full.

    Positions up to `floor` may have been assigned to messages that are not stored yet; those are in the lower half of
    their milliseconds, except in that of `floor` itself.
    """
    positions: list[str] = []
    last, full_to = -1, -1
    for time_ms in times:
        wanted = max(_first_position(time_ms), last + 1)
        while wanted > full_to:
            # One query per millisecond: positions after the greatest used one are free.
            end = wanted | _LAST
            wanted = max(wanted, end - _LAST + _HALF)
            taken = messages.newest_between(connection, agent_id, _text(end - _LAST), _text(end))
            wanted = max(wanted, -1 if taken is None else int(taken) + 1)
            if wanted >> SEQUENCE_BITS == floor >> SEQUENCE_BITS:
                wanted = max(wanted, floor + 1)
            full_to = end
        positions.append(_text(wanted))
        last = wanted
    return positions


def _first_position(time_ms: int) -> int:
    """Return the first position of imported messages in this millisecond; times before the epoch share its first."""
    return (max(time_ms - SNOWFLAKE_EPOCH_MS, 0) << SEQUENCE_BITS) + _HALF


def _text(position: int) -> str:
    return f"{position:0{POSITION_DIGITS}d}"
