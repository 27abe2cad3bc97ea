"""Acceptance of a message (T0): checked, bounded and on disk before the sender gets an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from pattern_core.agent_settings import MessagePolicy, settings_of
from pattern_core.conversation.imports import create_session
from pattern_core.errors import Conflict, IdempotencyMismatch, InvalidInput, NotFound, Overloaded, PatternError
from pattern_core.events import Draft, Event, append
from pattern_core.images import store
from pattern_core.limits import IMAGES_MAX, KEY_CHARS_MAX, Limits
from pattern_core.messages import Image, Part, Text, check_text, parts_from_json, parts_to_json
from pattern_core.models.model import ToolSpec
from pattern_core.outbox import wait_before
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import Json, iso, to_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus, DeliveryStatus
from pattern_db.errors import RowNotFound
from pattern_db.journal import group_runs, turns
from pattern_db.journal.turns import NewTurn, Started, TurnRow
from pattern_db.tables import messages, sessions
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sessions import SessionRow

DIGEST_BYTES = 16
RETRY_AFTER_S = 5
PRIORITY_MAX = 3
ROLLED_BACK = "rolled_back"
REDELIVERY = "redelivery"  # in a message's `source_metadata`: how many attempts to deliver it failed before
PEOPLE = ("user:", "conversant:")  # senders who see that their turn failed
NO_SESSION = "there is no session {!r} of this agent or group; list them, or leave out the session"
USED_KEY = "this idempotency key was used for a different message; use a new key for each message"
_LONGEST = "max_output_tokens"
GROUP_POLICIES = (None, "enqueue", "reject", "interrupt")
STOPS = {"interrupt": "superseded", "rollback": ROLLED_BACK}  # policy → reason of the turn that is stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """What a front end wants of one turn; stored with it until it ends.

    `instructions` are shown after the agent's own, and are in no history. `config` has keys of an agent's config, which
    hold for this turn. Calls of `tools` are answered by the client; the first step must call `force_tool`, if given.
    """

    instructions: str = ""
    config: Mapping[str, Json] = field(default_factory=dict)
    tools: Sequence[ToolSpec] = ()
    force_tool: str | None = None

    @property
    def stored(self) -> str | None:
        """The options as JSON; None if there are none."""
        tools = [[tool.name, tool.description, tool.parameters] for tool in self.tools]
        if not (self.instructions or self.config or tools):
            return None
        return to_json([self.instructions, dict(self.config), tools, self.force_tool])

    def over(self, config: Mapping[str, Json]) -> dict[str, Json]:
        """Return an agent's config with what the request wants instead; its longest answer can only become shorter."""
        longest = [one[_LONGEST] for one in (config, self.config) if one.get(_LONGEST) is not None]
        return {**config, **self.config, **({_LONGEST: min(longest)} if longest else {})}

    @classmethod
    def of(cls, stored: str | None) -> TurnOptions:
        """Return the options of a turn from their stored form."""
        if stored is None:
            return NO_OPTIONS
        instructions, config, tools, force_tool = json.loads(stored)
        specs = [ToolSpec(name=name, description=about, parameters=schema) for name, about, schema in tools]
        return cls(instructions=instructions, config=config, tools=specs, force_tool=force_tool)


NO_OPTIONS = TurnOptions()


class Asker(NamedTuple):
    """What the turn of a group that asks stores in the transactions of the asked turn: `begin` itself, if it is new,
    for its key; `ask` the question, given the asked turn's key, with events that come first; and `proceed`, if that
    turn starts at once, what follows from its end, given its last work, with events that come last.
    """

    begin: Callable[[Connection], int]
    ask: Callable[[Connection, int], list[Event]]
    proceed: Callable[[Connection, UnitOfWork], list[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """A message for an agent. `sender` is `user:{id}`, `conversant:{id}` (a person who may only chat), `agent:{id}`,
    `system`, `system:heartbeat`, `system:task` or `system:reminder`; `priority` 0 (low) to 3 (urgent).

    `parent_turn` and `depth` say which turn's tool call asked, and how many agents passed the request on. `policy` says
    what to do if the agent is busy: queue the message (`enqueue`), refuse it (`reject`), end the running turn at its
    next step (`interrupt`), also removing it from the conversation (`rollback`), or join it there (`steer`); None: the
    agent's policy. `parts` are the texts and images in order of a message with images; `content` is then its text.
    `session_id` names its conversation, None is the agent's main one; a `new_session` is created with it. One that
    `is_alone` is refused while its session has an open turn. `fingerprint` is a digest (16 bytes) of the request that
    it came with, by which a repetition without a key is found; None: one of the message, for its key.
    """

    agent_id: str
    content: str
    sender: str
    idempotency_key: str | None = None
    source: str | None = None
    source_metadata: Mapping[str, object] | None = None
    priority: int = 1
    parent_turn: int | None = None
    depth: int = 0
    policy: MessagePolicy | None = None
    parts: tuple[Text | Image, ...] = ()
    session_id: str | None = None
    new_session: SessionRow | None = None
    is_alone: bool = False
    options: TurnOptions = NO_OPTIONS
    fingerprint: bytes | None = None
    asker: Asker | None = None

    @property
    def images(self) -> tuple[Image, ...]:
        """The images among the parts."""
        return tuple(part for part in self.parts if isinstance(part, Image))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The accepted message's turn. `is_replay`: the idempotency key was used before, and nothing was added.

    `stops` is the turn that must end at its next step, with the reason, if the message requires that.
    """

    turn_id: str
    is_replay: bool = False
    stops: tuple[str, str] | None = None


def check(incoming: IncomingMessage, limits: Limits) -> None:
    """Refuse what can never be accepted.

    Raises:
        InvalidInput: the message or its key is empty or too long, or something in it cannot be stored.
    """
    if not incoming.content.strip() and not incoming.images:
        raise InvalidInput("the message is empty; send a text in `content`")
    if "\0" in incoming.content:
        raise InvalidInput("the message holds a NUL character; remove it")
    if len(incoming.content) > limits.message_chars_max:
        raise InvalidInput(
            f"the message has {len(incoming.content)} characters, more than the limit of "
            f"{limits.message_chars_max}; split it, or put the text into a memory block"
        )
    check_text(incoming.content)
    if incoming.source is not None or incoming.source_metadata:
        try:
            check_text(to_json([incoming.source, incoming.source_metadata]))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"`source_metadata` is not JSON: {error}") from None
    if len(incoming.images) > IMAGES_MAX:
        raise InvalidInput(
            f"the message has {len(incoming.images)} images, more than the limit of {IMAGES_MAX}; send fewer"
        )
    if not 0 <= incoming.priority <= PRIORITY_MAX:
        raise InvalidInput("`priority` must be a whole number from 0 (low) to 3 (urgent)")
    if incoming.idempotency_key is not None and not 1 <= len(incoming.idempotency_key) <= KEY_CHARS_MAX:
        raise InvalidInput(f"an idempotency key must have 1 to {KEY_CHARS_MAX} characters")


class NotAtRest(Exception):
    """The message cannot start a turn in the transaction that accepts it: accept it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message about to be accepted by an agent or a group, and the turn that it gets: its `agent_id` is the id of
    either.
    """

    incoming: IncomingMessage
    turn: NewTurn
    is_to_group: bool = False

    @classmethod
    def of(cls, incoming: IncomingMessage, agent: AgentRow, *, turn_id: str, seed: int, now: str) -> Arrival:
        """Return the message for an agent with its turn; its policy is the agent's if it has none (None: as `enqueue`).
        A message with an idempotency key has digests of the key and of itself.

        Raises:
            Conflict: the agent is archived.
        """
        if agent.status is AgentStatus.ARCHIVED:
            raise Conflict(f"the agent {agent.name} is {agent.status}; set its status to active first")
        policy = incoming.policy
        if policy is None and "message_policy" in agent.config:
            policy = settings_of(agent.config).message_policy
        if (incoming.agent_id, incoming.policy) != (agent.id, policy):
            incoming = replace(incoming, agent_id=agent.id, policy=policy)
        return cls(incoming=incoming, turn=_new_turn(incoming, agent.id, turn_id, seed, now))

    @classmethod
    def to_group(cls, incoming: IncomingMessage, group_id: str, *, turn_id: str, seed: int, now: str) -> Arrival:
        """Return the message for a group with its turn, as `of`.

        Raises:
            InvalidInput: the policy is none that a group has.
        """
        if incoming.policy not in GROUP_POLICIES:
            raise InvalidInput(f"a group has no policy {incoming.policy!r}; use enqueue, reject or interrupt")
        return cls(incoming=incoming, turn=_new_turn(incoming, group_id, turn_id, seed, now), is_to_group=True)

    def store(
        self, connection: Connection, insert: Callable[[Connection, NewTurn], int | None]
    ) -> tuple[int, list[Event]]:
        """Insert its turn, and what its asker stores; return its key, and the events that come before its own.

        Raises:
            NotAtRest: nothing was inserted.
        """
        asker = self.incoming.asker
        turn = self.turn if asker is None else self.turn._replace(parent_turn=asker.begin(connection))
        key = insert(connection, turn)
        if key is None:
            raise NotAtRest
        return key, [] if asker is None else asker.ask(connection, key)

    @property
    def queued(self) -> Draft:
        """The event that it was accepted."""
        owner = "group_id" if self.is_to_group else "agent_id"
        return Draft("turn.queued", {}, {owner: self.turn.agent_id, "sender": self.turn.sender})


def _new_turn(incoming: IncomingMessage, owner_id: str, turn_id: str, seed: int, now: str) -> NewTurn:
    idempotency, fingerprint = None, incoming.fingerprint
    if incoming.idempotency_key is not None:
        idempotency, fingerprint = digests(incoming, owner_id)
    return NewTurn(
        id=turn_id,
        agent_id=owner_id,
        sender=incoming.sender,
        seed=seed,
        created_at=now,
        parent_turn=incoming.parent_turn,
        depth=incoming.depth,
        idempotency=idempotency,
        fingerprint=fingerprint,
        session_id=incoming.session_id,
        options=incoming.options.stored,
    )


def digests(incoming: IncomingMessage, owner_id: str) -> tuple[bytes | None, bytes | None]:
    """Return digests of the idempotency key of a message to an agent or a group (`owner_id`), and of the message."""
    texts = json.dumps([owner_id, incoming.sender, incoming.idempotency_key]), to_json(payload_of(incoming))
    name, payload = (blake2b(text.encode(), digest_size=DIGEST_BYTES).digest() for text in texts)
    return name, incoming.fingerprint or payload


def accepted_before(connection: Connection, incoming: IncomingMessage, owner_id: str, since: str | None) -> str | None:
    """Return the turn of a request that was accepted before: under its key or, if it may be a repetition without one,
    since a time (None: it is none). `incoming` has a fingerprint.

    Raises:
        IdempotencyMismatch: the key was used for another request.
    """
    if incoming.idempotency_key is not None:
        known = turns.by_idempotency(connection, digests(incoming, owner_id)[0] or b"")
        if known is not None and known.fingerprint != incoming.fingerprint:
            raise IdempotencyMismatch(USED_KEY)
    else:
        known = None if since is None else turns.repeated(connection, incoming.fingerprint or b"", since)
    return None if known is None else known.id


def accept(connection: Connection, arrival: Arrival, limits: Limits) -> tuple[Ticket, list[Event]]:
    """T0, within one transaction: the turn, its message, which waits, and `turn.queued`; or the key's existing turn.

    Raises:
        NotFound: the agent or group has no such session.
        Conflict: the session is archived; or the agent or group is busy, and the message must not wait.
        IdempotencyMismatch: the key was used for another message.
        Overloaded: too many messages wait.
    """
    incoming, turn, who = arrival.incoming, arrival.turn, "group" if arrival.is_to_group else "agent"
    if (known := replayed(connection, turn)) is not None:
        return known, []
    check_session(connection, incoming, turn.agent_id)
    stops = _make_way(connection, arrival, who)
    count = group_runs.count_open if arrival.is_to_group else turns.count_messages
    if count(connection, turn.agent_id) >= limits.inbox_per_agent_max:
        message = f"{limits.inbox_per_agent_max} messages wait for this {who}; try again later"
        raise Overloaded(message, retry_after_s=RETRY_AFTER_S)
    before, payload = list[Event](), to_json(payload_of(incoming))
    if arrival.is_to_group:
        key = group_runs.accept(connection, turn, payload)
    else:
        key, before = arrival.store(connection, turns.insert)
        turns.put_message(
            connection,
            turn=key,
            agent_id=turn.agent_id,
            priority=incoming.priority if stops is None else PRIORITY_MAX,  # an interrupting message is next
            payload=payload,
            created_at=turn.created_at,
        )
    store(connection, incoming.images, turn.created_at)
    events = append(connection, (key, turn.id), [arrival.queued], created_at=turn.created_at)
    return Ticket(turn_id=turn.id, stops=stops), [*before, *events]


def replayed(connection: Connection, turn: NewTurn) -> Ticket | None:
    """Return the ticket of the message that was accepted with this turn's idempotency key before, if one was.

    Raises:
        IdempotencyMismatch: it was another message.
    """
    known = None if turn.idempotency is None else turns.by_idempotency(connection, turn.idempotency)
    if known is not None and known.fingerprint != turn.fingerprint:
        raise IdempotencyMismatch(
            "this idempotency key was used for a different message; use a new key for each message"
        )
    return None if known is None else Ticket(turn_id=known.id, is_replay=True)


def accept_at_rest(
    connection: Connection, arrival: Arrival, started: Started, plan: str = ""
) -> tuple[int, list[Event]]:
    """T0 and T1 of a message for an idle agent, or for an idle group with the `plan` of its run: the turn alone, which
    does not wait. Return its key, and the events that come before its own.

    Raises:
        NotAtRest: the agent or group is busy, the message's idempotency key is known, or its session is none to write
            to; `accept` the message.
    """
    incoming, turn, before = arrival.incoming, arrival.turn, list[Event]()
    if turn.idempotency is not None and turns.by_idempotency(connection, turn.idempotency) is not None:
        raise NotAtRest
    if turn.session_id is not None:
        try:
            check_session(connection, incoming, turn.agent_id)
        except PatternError:
            raise NotAtRest from None
    if not arrival.is_to_group:
        key, before = arrival.store(connection, partial(turns.insert_started, started=started))
    elif group_runs.count_open(connection, turn.agent_id) == 0:
        key = group_runs.accept(connection, turn, to_json(payload_of(incoming)), (started, plan))
    else:
        raise NotAtRest
    if incoming.images:
        store(connection, incoming.images, turn.created_at)
    return key, before


def check_session(connection: Connection, incoming: IncomingMessage, owner_id: str) -> None:
    """Create the message's new session, or refuse a session that its agent or group (`owner_id`) has not. What a group
    asks its members is not checked: it is part of a turn that was accepted.

    Raises:
        NotFound: there is no such session.
        Conflict: it is archived, or has an open turn and the message must be alone.
        InvalidInput: there are too many.
    """
    if incoming.new_session is not None:
        create_session(connection, owner_id, incoming.new_session)
        return
    if incoming.session_id is None or incoming.parent_turn is not None:
        return
    try:
        session = sessions.find(connection, owner_id, incoming.session_id)
    except RowNotFound:
        raise NotFound(NO_SESSION.format(incoming.session_id)) from None
    if session.is_archived:
        raise Conflict(f"the session {session.id} is archived; set `archived` to false first, or use another one")
    if incoming.is_alone and turns.open_in_session(connection, session.id):
        raise Conflict(f"the session {session.id} is busy; wait for its turn to end, or stop it", busy=True)


def _make_way(connection: Connection, arrival: Arrival, who: str) -> tuple[str, str] | None:
    """Apply the message's policy for a busy agent or group; return the turn that must stop, and why."""
    policy, owner_id = arrival.incoming.policy, arrival.turn.agent_id
    is_busy = group_runs.count_open if arrival.is_to_group else turns.is_busy
    if policy == "reject" and is_busy(connection, owner_id):
        raise Conflict(
            f"the {who} is busy; wait for its turn to end, or send the message with another policy, such as enqueue",
            busy=True,
        )
    if (reason := STOPS.get(policy or "")) is None:
        return None
    find_running = group_runs.oldest_open if arrival.is_to_group else turns.running
    running = find_running(connection, owner_id)
    if running is None or running.session_id != arrival.turn.session_id:
        return None  # an answer in another conversation is not for this sender to stop
    turns.request_cancel(connection, running.key, reason)
    return running.id, reason


def payload_of(incoming: IncomingMessage) -> dict[str, object]:
    """Return the inbox payload of the message."""
    payload: dict[str, object] = {"content": incoming.content}
    if incoming.images:
        payload["parts"] = parts_to_json(incoming.parts)
    if incoming.source is not None:
        payload["source"] = incoming.source
    if incoming.source_metadata:
        payload["source_metadata"] = dict(incoming.source_metadata)
    if incoming.policy == "steer":
        payload["policy"] = incoming.policy
    if incoming.session_id is not None:
        payload["session_id"] = incoming.session_id
    return payload


def undelivered(
    turn: TurnRow, payload: Mapping[str, Any], *, error: str, now: str, is_final: bool = False
) -> OutboxRow:
    """Return the message of a turn that cannot be answered, to be delivered later by another turn; where that
    `is_final`, or was tried often enough, only if a person wants it.
    """
    about = payload.get("source_metadata") or {}
    attempts = about.get(REDELIVERY, 0) + 1 if isinstance(about.get(REDELIVERY, 0), int) else 1
    wait_s = None if is_final else wait_before(turn.id, attempts)
    return OutboxRow(
        id=turn.id,
        target=f"agent:{turn.agent_id}" if turn.group_id is None else f"group:{turn.group_id}",
        payload=to_json({**payload, "sender": turn.sender, "depth": turn.depth, "session_id": turn.session_id}),
        next_at=now if wait_s is None else iso(unix_ms(now) + round(wait_s * 1000)),
        created_at=now,
        turn=turn.parent_turn,
        status=DeliveryStatus.DEAD if wait_s is None else DeliveryStatus.PENDING,
        attempts=attempts,
        last_error=error,
    )


def is_asked(connection: Connection, turn: TurnRow) -> bool:
    """Return whether a group's turn asked for this one: it sees how this ends, and no one waits for it afterwards."""
    return turn.parent_turn is not None and turns.by_key(connection, turn.parent_turn).group_id is not None


def unanswered(connection: Connection, key: int, *, error: str, now: str, is_final: bool) -> OutboxRow | None:
    """Return the message of a started turn that failed, as `undelivered`, if no one else knows of it: not if a person
    sent it, or a group's turn asked.
    """
    turn = turns.by_key(connection, key)
    if turn.sender.startswith(PEOPLE) or is_asked(connection, turn):
        return None
    first = messages.by_batch(connection, turn.agent_id, turn.batch_id or "")[0]
    payload = {"content": first.content, "source": first.source, "source_metadata": first.source_metadata}
    return undelivered(turn, payload, error=error, now=now, is_final=is_final)


def again(row: OutboxRow) -> IncomingMessage:
    """Return a message from the outbox, to be accepted again."""
    payload = json.loads(row.payload)
    parts = tuple(part for part in parts_of(payload) if isinstance(part, Text | Image)) if "parts" in payload else ()
    return IncomingMessage(
        agent_id=row.target.partition(":")[2],
        content=str(payload["content"]),
        parts=parts,
        sender=payload["sender"],
        source=payload.get("source"),
        source_metadata={**(payload.get("source_metadata") or {}), REDELIVERY: row.attempts},
        parent_turn=row.turn,
        depth=payload["depth"],
        policy="enqueue",
        session_id=payload.get("session_id"),
    )


def parts_of(payload: Mapping[str, object]) -> tuple[Part, ...]:
    """Return the message's parts from an inbox row's payload; images have digests, not bytes.

    Raises:
        ValueError: the row was written by a newer version or is damaged.
    """
    stored = payload.get("parts")
    return parts_from_json(stored) if isinstance(stored, list) else (Text(text=str(payload["content"])),)
