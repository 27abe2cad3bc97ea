"""Messages of agents to agents and groups, each within the transaction of the tool call that sends it.

A message that needs an answer is a question: its sender waits. What goes back to the one that asked is the answer and
needs none, unless the sender says otherwise. So that agents do not go round in circles, a question to one that waits
for the sender is refused, as is a second message to the same agent within some seconds, and thanks for an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pattern_core.agents import Agent, Roster
from pattern_core.errors import InvalidInput, LimitReached, NotFound, Overloaded
from pattern_core.events import Event
from pattern_core.groups.group import Group, Groups
from pattern_core.groups.runs import Accept
from pattern_core.ids import earliest_position
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.turns.admission import IncomingMessage
from pattern_core.turns.record import Record
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.journal import asks
from pattern_db.journal.asks import Waiting

NAMED_MAX = 30  # agents that an error lists

Accepting: TypeAlias = Callable[[Agent | Group, IncomingMessage], tuple[str, Accept, Callable[[], None]]]
"""Returns the id of a message's turn, what accepts it within a transaction, and what wakes its target after that."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Delivers the messages of one constellation's agents."""

    journal: Journal
    roster: Roster
    groups: Groups
    limits: Limits
    accepting: Accepting

    async def deliver(
        self, sender: Record, work: UnitOfWork, target: str, content: str, *, needs_response: bool | None = None
    ) -> str:
        """Accept a message with the calling tool's `work`; return the id of its turn.

        Raises:
            PatternError: the target cannot be sent it. For the cool-down, `work` raises it.
        """
        if sender.depth >= self.limits.turn.depth_max:
            raise LimitReached(
                f"this request was passed on {sender.depth} times already; answer it yourself instead of asking"
                f" {target}"
            )
        bound = sender.children_max
        if bound is not None and sender.children >= bound:
            raise LimitReached(f"this turn has asked other agents {bound} times, its limit; continue without them")
        found, agent = await self._named(target), sender.agent
        if found.id == agent.id:
            raise InvalidInput("an agent cannot send itself a message; note it in a memory block instead")
        chain = await self.journal.database.read(asks.chain, sender.key, self.limits.turn.depth_max + 2)
        # What a member answers to its group is what it says.
        is_answer = isinstance(found, Agent) and [one.id for one in chain[1:2]] == [found.id]
        if needs_response is None and is_answer:
            needs_response = False
        is_question = is_needed(chain, found.id, found.name, needs_response)
        about = {"agent_id": agent.id, "agent_name": agent.name, "turn_id": sender.id, "needs_response": is_question}
        incoming = IncomingMessage(
            agent_id=found.id,
            content=f"From {agent.name}, who needs {'an' if is_question else 'no'} answer:\n\n{content}",
            sender=f"agent:{agent.id}",
            source="agent",
            source_metadata=about,
            parent_turn=sender.key,
            depth=sender.depth + 1,
            policy="enqueue",
            session_id=sender.sees_only,  # what strangers lead to sees nothing but their conversation
        )
        turn_id, accept, wake = self.accepting(found, incoming)

        def store(connection: Connection) -> list[Event]:
            if not is_answer:
                self._check_pair(connection, agent.id, found)
            return accept(connection)[1]

        def settled(committed: bool) -> None:
            if committed:
                sender.children += 1
                wake()

        work.store_and_tell(store)
        work.when_settled(settled)
        return turn_id

    def _check_pair(self, connection: Connection, sender: str, target: Agent | Group) -> None:
        """Refuse a second message to the same agent within the cool-down."""
        now_ms, pause_ms = self.journal.clock.now_ms(), round(self.limits.pair_cooldown_s * 1000)
        first_ms = now_ms - pause_ms + 1
        at = asks.newest(connection, sender, target.id, iso(first_ms), earliest_position(first_ms))
        if at is not None and pause_ms:
            left_s = math.ceil((unix_ms(at) + pause_ms - now_ms) / 1000)
            raise Overloaded(
                f"{target.name} got a message from you just now; send the next one in {left_s} seconds, and all that"
                " you have to say in one message",
                retry_after_s=left_s,
            )

    async def _named(self, target: str) -> Agent | Group:
        """Return the agent or group that a model means: by its id or name, or the only one with the name in another
        case.
        """
        try:
            return await self.roster.get(target)
        except NotFound:
            there: list[Agent | Group] = [*await self.roster.all(), *await self.groups.all()]
            wanted = target.strip()
            same = [one for one in there if wanted in (one.id, one.name)]
            same = same or [one for one in there if one.name.casefold() == wanted.casefold()]
            if len(same) == 1:
                return same[0]
            names = ", ".join(one.name for one in there[:NAMED_MAX])
            more = f" and {len(there) - NAMED_MAX} others" if len(there) > NAMED_MAX else ""
            raise NotFound(f"there is no agent {target!r}; the agents are {names}{more}") from None


def is_needed(chain: list[Waiting], target: str, name: str, asked_for: bool | None) -> bool:
    """Return whether a message to the target needs an answer: unless its sender says otherwise (`asked_for`). `chain`
    is the sender, who waits for it, who waits for that, and so on.

    Raises:
        InvalidInput: the target waits for the sender, or it had answered and needs nothing.
    """
    ids = [one.id for one in chain]
    if asked_for is None and len(chain) == 1 and chain[0].sender == f"agent:{target}":
        raise InvalidInput(f"{name} needs no answer; if you have a new question, send it with `needs_response` true")
    if asked_for is not False and target in ids:
        circle = " → ".join([*(one.name for one in reversed(chain[: ids.index(target) + 1])), name])
        raise InvalidInput(
            f"{name} waits for an answer of this request ({circle}); answer with `needs_response` false, or without it"
        )
    return asked_for is not False
