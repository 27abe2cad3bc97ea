"""The pieces that a prompt is put together from. Each knows what it is, where it comes from and why it is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pattern_core.models.tokens import estimate_text


class Kind(StrEnum):
    """What a part is."""

    INSTRUCTIONS = "instructions"
    GUIDE = "guide"  # how memory works, and what foreign text is
    RULES = "rules"  # of the agent's tools, in words
    CORE = "core"  # blocks that are always shown
    PINNED = "pinned"  # working blocks that are kept in view, or lent to the agent
    REFERRED = "referred"  # working blocks that the message names
    LOGS = "logs"  # the newest lines of log blocks
    RECALLED = "recalled"  # found beyond the conversation that is shown
    TASKS = "tasks"
    ACTIVITY = "activity"  # of other agents
    TIME = "time"
    REMINDER = "reminder"  # of what the rules or the limits want of this step


class Place(StrEnum):
    """Where a part stands: with the instructions, which vendors cache, or behind the conversation and never stored."""

    SYSTEM = "system"
    TAIL = "tail"


# What is the same for long comes first in the system's part. The tail changes with every call.
PLACES = {
    Kind.INSTRUCTIONS: Place.SYSTEM,
    Kind.GUIDE: Place.SYSTEM,
    Kind.RULES: Place.SYSTEM,
    Kind.CORE: Place.SYSTEM,
    Kind.PINNED: Place.SYSTEM,
    Kind.REFERRED: Place.TAIL,
    Kind.LOGS: Place.TAIL,
    Kind.RECALLED: Place.TAIL,
    Kind.TASKS: Place.TAIL,
    Kind.ACTIVITY: Place.TAIL,
    Kind.TIME: Place.TAIL,
    Kind.REMINDER: Place.TAIL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece, shown whole or not at all.

    `ref` is the id of the row that its text comes from (empty for none), `version` the block's version, `name` what
    people call it. `reason` says in words why it is there. `tokens` is an estimate, `place` where its kind stands.
    """

    kind: Kind
    text: str
    reason: str
    ref: str = ""
    version: int | None = None
    name: str = ""
    tokens: int = field(init=False)
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", estimate_text(self.text))
        object.__setattr__(self, "place", PLACES[self.kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A piece that is not shown, and in `reason` why not."""

    kind: Kind
    reason: str
    ref: str = ""
    version: int | None = None
    name: str = ""
    tokens: int = 0


def left_out(part: Part, reason: str) -> LeftOut:
    """The part as one that is not shown."""
    return LeftOut(
        kind=part.kind, reason=reason, ref=part.ref, version=part.version, name=part.name, tokens=part.tokens
    )
