"""`swarm`: one member answers, and may hand the conversation over to another.

A member hands over with the last line of its answer: `@name: why`. The conversation stays with its holder, also in the
group's next turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from pattern_core.groups.coordination import Coordination, Member, MemberName, Room

HOLDER = "holder"  # in the state: the id of the member that has the conversation
_HANDOFF = re.compile(r"^[ \t]*@([\w-]+)[ \t]*:?[ \t]*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm(Coordination):
    """`start` is the member that has the conversation first, `edges` to whom each may hand over (a member that is not
    named: to all). After `max_handoffs`, or where the last `repeat_window` holders are fewer than `min_unique` members,
    the last answer is the result. With `return_to_start` each message begins with the first member again.
    """

    start: MemberName | None = None
    edges: dict[MemberName, tuple[MemberName, ...]] = field(default_factory=dict)
    max_handoffs: Annotated[int, Field(ge=0, le=100)] = 8
    repeat_window: Annotated[int, Field(ge=2, le=100)] = 6
    min_unique: Annotated[int, Field(ge=1, le=100)] = 3
    return_to_start: bool = False

    async def run(self, room: Room) -> str:
        """Ask the holder of the conversation, and each member that it is handed over to."""
        live = room.available()
        first = room.named(self.start) if self.start else live[0]
        held = None if self.return_to_start else room.state.get(HOLDER)
        holder = next((one for one in live if one.id == held), first)
        holders, text, why = [holder.id], room.message, "has the conversation"
        while True:
            others = reachable(holder, live, self.edges)
            room.state[HOLDER] = holder.id
            answer = await room.ask(holder, text + _how(others), why=why)
            handoff = handoff_of(answer.text, others)
            if handoff is None or len(holders) > self.max_handoffs:
                return answer.text
            target, reason = handoff
            holders.append(target.id)
            newest = holders[-self.repeat_window :]
            if len(newest) == self.repeat_window and len(set(newest)) < self.min_unique:
                return answer.text  # it goes in circles
            room.tell("group.handoff", {"from": holder.name, "to": target.name, "reason": reason})
            text = f"{holder.name} hands over to you: {reason or '(no reason)'}\n\n{room.message}"
            holder, why = target, f"from {holder.name}"


def handoff_of(answer: str, to: Sequence[Member]) -> tuple[Member, str] | None:
    """Return to whom an answer hands over, and why; None if it does not."""
    match = _HANDOFF.match(answer.rstrip().rpartition("\n")[2])
    if match is None:
        return None
    return next(((one, match[2].strip()) for one in to if one.name.casefold() == match[1].casefold()), None)


def reachable(member: Member, members: Sequence[Member], edges: Mapping[str, Sequence[str]]) -> list[Member]:
    """Return to whom a member may hand over."""
    named = edges.get(member.name, edges.get(member.id))
    return [one for one in members if one != member and (named is None or one.name in named or one.id in named)]


def _how(others: Sequence[Member]) -> str:
    if not others:
        return ""
    names = ", ".join(one.name for one in others)
    return f"\n\nTo hand over, end with a line such as\n@{others[0].name}: why\nYou may hand over to {names}."
