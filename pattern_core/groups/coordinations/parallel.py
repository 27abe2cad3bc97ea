"""`parallel`: all members answer at the same time; the result is all answers, or one that a member makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.groups.coordination import Answer, CommonConfig, Coordination, Member, Question, Room, check_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig(CommonConfig):
    """`aggregator` is the member that combines the others' answers into one."""

    aggregator: str | None = None


def together(answers: Sequence[Answer]) -> str:
    """Return answers as one text, each with the name of its author."""
    return "\n\n".join(f"{one.member.name}: {one.text}" for one in answers if one.is_whole)


async def run(room: Room, config: ParallelConfig) -> str:
    """Ask all that are active, and then the aggregator."""
    aggregator = None if config.aggregator is None else room.named(config.aggregator)
    answers = await room.ask_each([Question(one) for one in room.available() if one != aggregator])
    if aggregator is None:
        return together(answers)
    text = f"Make one answer of these answers to the message {room.message!r}:\n\n{together(answers)}"
    return (await room.ask(aggregator, text, why="aggregator")).text


def trouble(config: ParallelConfig, members: Sequence[Member]) -> list[str]:
    """Return what keeps it from running."""
    return check_names([config.aggregator] if config.aggregator else [], members, "aggregator")


COORDINATION = Coordination(ParallelConfig, run, trouble)
