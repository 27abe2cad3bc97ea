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

from pattern_core.groups.coordination import CommonConfig, Coordination, Member, Room, check_names

HOLDER = "holder"  # in the state: the id of the member that has the conversation
_HANDOFF = re.compile(r"^[ \t]*@([\w-]+)[ \t]*:?[ \t]*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConfig(CommonConfig):
    """`start` is the member that has the conversation first, `edges` to whom each may hand over (a member that is not
    named: to all). After `max_handoffs`, or where the last `repeat_window` holders are fewer than `min_unique` members,
    the last answer is the result. With `return_to_start` each message begins with the first member again.
    """

    start: str | None = None
    edges: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_handoffs: Annotated[int, Field(ge=0, le=100)] = 8
    repeat_window: Annotated[int, Field(ge=2, le=100)] = 6
    min_unique: Annotated[int, Field(ge=1, le=100)] = 3
    return_to_start: bool = False


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


def goes_in_circles(holders: Sequence[str], window: int, min_unique: int) -> bool:
    """Return whether too few different members are among the last holders."""
    return len(holders) >= window and len(set(holders[-window:])) < min_unique


async def run(room: Room, config: SwarmConfig) -> str:
    """Ask the holder of the conversation, and each member that it is handed over to."""
    live = room.available()
    first = room.named(config.start) if config.start else live[0]
    held = None if config.return_to_start else room.state.get(HOLDER)
    holder = next((one for one in live if one.id == held), first)
    holders, text, why = [holder.id], None, "has the conversation"
    for number in range(config.max_handoffs + 1):
        others = reachable(holder, live, config.edges)
        how = f"\n\nTo hand over, end with a line such as\n@{others[0].name}: why" if others else ""
        names = f"\nYou may hand over to {', '.join(one.name for one in others)}." if others else ""
        answer = await room.ask(holder, (text or room.message) + how + names, why=why)
        handoff = handoff_of(answer.text, others)
        room.state[HOLDER] = holder.id
        if handoff is None or number == config.max_handoffs:
            return answer.text
        target, reason = handoff
        holders.append(target.id)
        if goes_in_circles(holders, config.repeat_window, config.min_unique):
            return answer.text
        room.tell("group.handoff", {"from": holder.name, "to": target.name, "reason": reason})
        text, why = (
            f"{holder.name} hands over to you: {reason or '(no reason)'}\n\n{room.message}",
            f"from {holder.name}",
        )
        holder = target
    raise AssertionError("the last round returns")


def trouble(config: SwarmConfig, members: Sequence[Member]) -> list[str]:
    """Return what keeps it from running."""
    found = check_names([config.start] if config.start else [], members, "start")
    for name, targets in config.edges.items():
        found += check_names([name, *targets], members, f"edges.{name}")
    return found


COORDINATION = Coordination(SwarmConfig, run, trouble)
