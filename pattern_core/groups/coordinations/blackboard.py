"""`blackboard`: the members work on a block that all of them see, and each is woken by the changes of the others.

A message wakes all. Members that have not seen the newest change by another are asked again, until none changes the
block. Changes by others than the group wake it, too, soon after the first of several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from pattern_core.groups.coordination import Answer, Coordination, Question, Room, together
from pattern_db.tables.schedules import DEBOUNCE_S

CHECK_S = 24 * 3600.0  # between regular checks: each change sets the timer earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Blackboard(Coordination):
    """`label` is the block's, which belongs to the group or the constellation. It has up to `max_rounds`. The group
    is woken `debounce_s` after a change by others.
    """

    label: Annotated[str, Field(min_length=1, max_length=200)]
    max_rounds: Annotated[int, Field(ge=1, le=50)] = 5
    debounce_s: Annotated[float, Field(ge=0, le=24 * 3600)] = DEBOUNCE_S

    async def run(self, room: Room) -> str:
        """Ask all, and then those who have not seen the newest changes."""
        how = f"\n\nWork on the memory block `{self.label}`, which all members share. If nothing is to be done, say so."
        waking, text, why = room.available(), room.message, "a message"
        said: dict[str, Answer] = {}
        for number in range(1, self.max_rounds + 1):
            room.tell("group.round", {"round": number, "of": self.max_rounds})
            answers = await room.ask_each([Question(one, text + how, why) for one in waking])
            said |= {answer.member.id: answer for answer in answers}
            authors = [answer.member for answer in answers if self.label in answer.changed]
            waking = [one for one in room.available() if set(authors) - {one}]
            if not waking:
                break
            why = f"{', '.join(one.name for one in authors)} changed {self.label}"
            text = f"{why}. The message was: {room.message}"
        return together(list(said.values()))

    def own_plan(self) -> dict[str, Any]:
        """Return the schedule's plan, and its message."""
        when = [{"kind": "block", "label": self.label}]
        message = f"The memory block `{self.label}` was changed."
        return {"every": CHECK_S, "when": when, "missed": "last", "message": message}
