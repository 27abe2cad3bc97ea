"""`debate`: the members argue for some rounds, and a judge decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from pattern_core.groups.coordination import Answer, CommonConfig, Coordination, Member, Room, check_names

MEMBERS_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DebateConfig(CommonConfig):
    """`judge` is the member that decides after `rounds`; without one the last round is the answer. A `blind` judge is
    not shown who said what. With `stop_on_agreement` a round in which all end with the line `AGREED` is the last.
    """

    judge: str | None = None
    rounds: Annotated[int, Field(ge=1, le=20)] = 2
    blind: bool = False
    stop_on_agreement: bool = True


def have_agreed(answers: Sequence[Answer]) -> bool:
    """Return whether every answer ends with the line `AGREED`."""
    last = [one.text.strip().rpartition("\n")[2].strip(" .*").upper() for one in answers if one.is_whole]
    return bool(last) and all(line == "AGREED" for line in last)


async def run(room: Room, config: DebateConfig) -> str:
    """Let the sides argue, then ask the judge."""
    judge = None if config.judge is None else room.named(config.judge)
    sides = [one for one in room.available() if one != judge]
    shown = room.message
    answers: list[Answer] = []
    for number in range(1, config.rounds + 1):
        room.tell("group.round", {"round": number, "of": config.rounds})
        end = "\n\nWhen you agree with the others, end with the line AGREED." if config.stop_on_agreement else ""
        answers = [await room.ask(side, f"Round {number}. {shown}{end}", why=f"round {number}") for side in sides]
        if config.stop_on_agreement and have_agreed(answers):
            break
    arguments = "\n\n".join(
        f"{'Side ' + str(place) if config.blind else one.member.name}: {one.text}"
        for place, one in enumerate(answers, 1)
        if one.is_whole
    )
    if judge is None:
        return arguments
    text = f"Decide, with your reason. The question: {room.message}\n\nThe last arguments:\n\n{arguments}"
    return (await room.ask(judge, text, why="judge")).text


def trouble(config: DebateConfig, members: Sequence[Member]) -> list[str]:
    """Return what keeps it from running."""
    sides = [one for one in members if config.judge not in (one.id, one.name)]
    found = check_names([config.judge] if config.judge else [], members, "judge")
    if len(sides) < MEMBERS_MIN:
        found.append(f"a debate needs {MEMBERS_MIN} members in addition to the judge; add one")
    return found


COORDINATION = Coordination(DebateConfig, run, trouble)
