"""`sleeptime`: a group that works by itself between conversations, one member at a time, when a trigger says so.

Its times are a schedule of its own: it fires once for any number of times that were missed, its turns wait behind those
of the members' conversations, and where no trigger holds no model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from pattern_core.groups.coordination import Coordination, MemberName, Room, also_spelled
from pattern_core.groups.coordinations.round_robin import RoundRobin

PROMPT = (
    "No one has written: this is time for your own work. Look at what happened recently and at your memory. Keep what"
    " matters, correct what is wrong and note what needs attention. If there is nothing to do, say so in a few words."
)
# The original's types of conditions and their fields, as kinds of a schedule's conditions.
_KINDS = {
    "time_elapsed": "elapsed",
    "constellation_activity": "activity",
    "pattern_detected": "pattern",
    "threshold_exceeded": "threshold",
    "metric_threshold": "threshold",
}
_FIELDS = {"duration": "seconds", "message_threshold": "count", "threshold": "count"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeptime(Coordination):
    """The `triggers` are checked every `check_interval` seconds, or at the times of `cron` in `zone`. They are the
    conditions of a schedule, as such or below `condition`. If one holds and the group has not worked for `cooldown`
    seconds, or there are none, `intervention_agent` is sent `prompt`; without one the members take turns.
    """

    check_interval: Annotated[float, Field(ge=60, le=366 * 24 * 3600)] = 1_800.0
    cron: str | None = None
    zone: str = "UTC"
    triggers: tuple[dict[str, Any], ...] = ()
    cooldown: Annotated[float, Field(ge=0)] = 0.0
    intervention_agent: Annotated[MemberName | None, also_spelled("intervention_agent", "intervention_agent_id")] = None
    prompt: str = PROMPT

    async def run(self, room: Room) -> str:
        """Ask one member."""
        if self.intervention_agent is None:
            return await RoundRobin().run(room)
        return (await room.ask(room.named(self.intervention_agent), why="it is the intervention agent")).text

    def own_plan(self) -> dict[str, Any]:
        """Return the schedule's plan, and its message."""
        times = {"every": self.check_interval} if self.cron is None else {"cron": self.cron, "zone": self.zone}
        when = [condition_of(trigger) for trigger in self.triggers]
        return {**times, "when": when, "cooldown_s": self.cooldown, "missed": "last", "message": self.prompt}


def condition_of(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger as a condition of a schedule; the original's have a `condition` with a `type`."""
    flat = {**trigger, **trigger.get("condition", {})}
    flat.pop("condition", None)
    flat.pop("time_threshold", None)  # a count is of what happened since the last time
    if "type" in flat:
        kind = flat.pop("type")
        flat["kind"] = _KINDS.get(kind, kind)
    return {_FIELDS.get(name, name): value for name, value in flat.items()}
