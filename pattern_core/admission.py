"""Accepting a message (T0): checked, bounded and on disk before anybody is told that it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from pattern_core.errors import Conflict, IdempotencyMismatch, InvalidInput, Overloaded
from pattern_core.events import Draft, Event, append
from pattern_core.limits import Limits
from pattern_core.memory.shapes.schema import check_text
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus
from pattern_db.journal import inbox, turns
from pattern_db.journal.turns import NewTurn
from pattern_db.tables.agents import AgentRow

DIGEST_BYTES = 16
KEY_CHARS_MAX = 255
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message for an agent. `sender` is `user:{id}`, `agent:{id}` or `system`; `priority` 0 (low) to 3 (urgent).

    `parent_turn` and `depth` say which turn's tool call asked, and how many agents passed the request on.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The accepted message's turn. `is_replay` says that the idempotency key was seen before: nothing was added."""

    turn_id: str
    is_replay: bool = False


def check(incoming: Incoming, limits: Limits) -> None:
    """Refuse what can never be accepted.

    Raises:
        InvalidInput: the message or its key is empty or too long, or something in it cannot be stored.
    """
    if not incoming.content.strip():
        raise InvalidInput("the message is empty; send some words in `content`")
    if "\0" in incoming.content:
        raise InvalidInput("the message holds a NUL character; remove it")
    if len(incoming.content) > limits.message_chars_max:
        raise InvalidInput(
            f"the message has {len(incoming.content)} characters, and at most {limits.message_chars_max} fit;"
            " split it, or put the text into a memory block"
        )
    check_text(incoming.content)
    _check_origin(incoming)
    if not 0 <= incoming.priority <= 3:
        raise InvalidInput("`priority` is a whole number from 0 (low) to 3 (urgent)")
    if incoming.idempotency_key is not None and not 1 <= len(incoming.idempotency_key) <= KEY_CHARS_MAX:
        raise InvalidInput(f"an idempotency key has 1 to {KEY_CHARS_MAX} characters")


def _check_origin(incoming: Incoming) -> None:
    if incoming.source is None and not incoming.source_metadata:
        return
    try:
        text = to_json([incoming.source, incoming.source_metadata])
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"`source_metadata` is not JSON: {error}") from None
    check_text(text)


def addressed_to(incoming: Incoming, agent_id: str) -> Incoming:
    """The message with its agent's id, whatever name it was sent to."""
    return incoming if incoming.agent_id == agent_id else replace(incoming, agent_id=agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What T0 stored: the ticket for the sender, and for the agent the new turn's key (None for a replay)."""

    ticket: Ticket
    key: int | None = None


def accept(
    connection: Connection, incoming: Incoming, *, turn_id: str, seed: int, now: str, limits: Limits
) -> tuple[Accepted, list[Event]]:
    """T0, within one transaction: the turn, its inbox row and `turn.queued`; or the turn that the key stands for.

    Raises:
        IdempotencyMismatch: the key was used for another message.
        Overloaded: too many messages wait for the agent.
    """
    payload = to_json(payload_of(incoming))
    idempotency, fingerprint = _digests(incoming, payload)
    if idempotency is not None:
        known = turns.by_idempotency(connection, idempotency)
        if known is not None:
            if known.fingerprint != fingerprint:
                raise IdempotencyMismatch(
                    "this idempotency key was used for a different message; use a new key for each message"
                )
            return Accepted(ticket=Ticket(turn_id=known.id, is_replay=True)), []
    if inbox.count(connection, incoming.agent_id) >= limits.inbox_per_agent_max:
        raise Overloaded(
            f"{limits.inbox_per_agent_max} messages wait for this agent; try again later", retry_after_s=RETRY_AFTER_S
        )
    new = NewTurn(
        id=turn_id,
        agent_id=incoming.agent_id,
        sender=incoming.sender,
        seed=seed,
        created_at=now,
        parent_turn=incoming.parent_turn,
        depth=incoming.depth,
        idempotency=idempotency,
        fingerprint=fingerprint,
    )
    key = turns.insert(connection, new)
    inbox.put(
        connection, turn=key, agent_id=incoming.agent_id, priority=incoming.priority, payload=payload, created_at=now
    )
    queued = Draft("turn.queued", {}, {"agent_id": incoming.agent_id, "sender": incoming.sender})
    return Accepted(ticket=Ticket(turn_id=turn_id), key=key), append(
        connection, (key, turn_id), [queued], created_at=now
    )


def payload_of(incoming: Incoming) -> dict[str, object]:
    """What the inbox keeps of the message."""
    payload: dict[str, object] = {"content": incoming.content}
    if incoming.source is not None:
        payload["source"] = incoming.source
    if incoming.source_metadata:
        payload["source_metadata"] = dict(incoming.source_metadata)
    return payload


def _digests(incoming: Incoming, payload: str) -> tuple[bytes | None, bytes | None]:
    """The digest under which a repeated request is found, and the one that shows whether it is the same request."""
    if incoming.idempotency_key is None:
        return None, None
    name = json.dumps([incoming.agent_id, incoming.sender, incoming.idempotency_key]).encode()
    return (
        blake2b(name, digest_size=DIGEST_BYTES).digest(),
        blake2b(payload.encode(), digest_size=DIGEST_BYTES).digest(),
    )


def check_agent(agent: AgentRow) -> None:
    """Refuse messages to an agent that does not take part.

    Raises:
        Conflict: it is hibernated or archived.
    """
    if agent.status != AgentStatus.ACTIVE:
        raise Conflict(f"the agent {agent.name} is {agent.status}; set its status to active first")
