"""`round_robin`: the members answer in turn, one for each message to the group.

Who answered last is state, stored with the answer; so no crash repeats or skips a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from pattern_core.groups.coordination import (
    UNAVAILABLE,
    Coordination,
    Member,
    MemberFailed,
    NoMember,
    Room,
    also_spelled,
)

LAST = "last"  # in the state: the id of the member that answered last


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(Coordination):
    """`start_at` is the place of the member that is asked first, from 0. With `skip_unavailable` a member that is not
    active is passed over; else its turn fails.
    """

    skip_unavailable: bool = True
    start_at: Annotated[int, Field(ge=0), also_spelled("start_at", "current_index")] = 0

    async def run(self, room: Room) -> str:
        """Ask the next member."""
        for member in order(room.members, room.state.get(LAST), self.start_at):
            if not member.is_active:
                if self.skip_unavailable:
                    continue
                raise MemberFailed(f"it is the turn of {member.name}, which is not active; activate it")
            room.state[LAST] = member.id
            answer = await room.ask(member, why="its turn")
            if answer.status != UNAVAILABLE or not self.skip_unavailable:
                return answer.text
        raise NoMember("no member of the group could be asked; activate one")


def order(members: Sequence[Member], last: str | None, start_at: int) -> list[Member]:
    """Return the members, the one first that is next after `last`; without it, the one at `start_at`."""
    ids = [member.id for member in members]
    first = ids.index(last) + 1 if last in ids else start_at
    return [members[(first + step) % len(members)] for step in range(len(members))]
