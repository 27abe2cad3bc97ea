"""`parallel`: all members answer at the same time; the result is all answers, or one that a member makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.groups.coordination import Coordination, MemberName, Question, Room, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(Coordination):
    """`aggregator` is the member that combines the others' answers into one."""

    aggregator: MemberName | None = None

    async def run(self, room: Room) -> str:
        """Ask all that are active, and then the aggregator."""
        aggregator = None if self.aggregator is None else room.named(self.aggregator)
        answers = await room.ask_each([Question(one) for one in room.available() if one != aggregator])
        if aggregator is None:
            return together(answers)
        text = f"Make one answer of these answers to the message {room.message!r}:\n\n{together(answers)}"
        return (await room.ask(aggregator, text, why="aggregator")).text
