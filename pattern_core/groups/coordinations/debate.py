"""`debate`: the members argue for some rounds, and a judge decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from pattern_core.groups.coordination import Answer, Coordination, Member, MemberName, Room

MEMBERS_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Debate(Coordination):
    """`judge` is the member that decides after `rounds`; without one the last round is the answer. A `blind` judge is
    not shown who said what. With `stop_on_agreement` a round in which all end with the line `AGREED` is the last.
    """

    judge: MemberName | None = None
    rounds: Annotated[int, Field(ge=1, le=20)] = 2
    blind: bool = False
    stop_on_agreement: bool = True

    async def run(self, room: Room) -> str:
        """Let the sides argue, then ask the judge."""
        judge = None if self.judge is None else room.named(self.judge)
        sides = [one for one in room.available() if one != judge]
        end = "\n\nWhen you agree with the others, end with the line AGREED." if self.stop_on_agreement else ""
        answers: list[Answer] = []
        for number in range(1, self.rounds + 1):
            room.tell("group.round", {"round": number, "of": self.rounds})
            text = f"Round {number}. {room.message}{end}"
            answers = [await room.ask(side, text, why=f"round {number}") for side in sides]
            if self.stop_on_agreement and have_agreed(answers):
                break
        arguments = "\n\n".join(
            f"{'Side ' + str(place) if self.blind else one.member.name}: {one.text}"
            for place, one in enumerate(answers, 1)
            if one.is_whole
        )
        if judge is None:
            return arguments
        text = f"Decide, with your reason. The question: {room.message}\n\nThe last arguments:\n\n{arguments}"
        return (await room.ask(judge, text, why="judge")).text

    def trouble(self, members: Sequence[Member]) -> list[str]:
        """Return that there are too few sides."""
        sides = [one for one in members if self.judge not in (one.id, one.name)]
        missing = f"a debate needs {MEMBERS_MIN} members in addition to the judge; add one"
        return [missing] if len(sides) < MEMBERS_MIN else []


def have_agreed(answers: Sequence[Answer]) -> bool:
    """Return whether every answer ends with the line `AGREED`."""
    last = [one.text.strip().rpartition("\n")[2].strip(" .*").upper() for one in answers if one.is_whole]
    return bool(last) and all(line == "AGREED" for line in last)
