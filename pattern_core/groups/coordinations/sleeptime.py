"""`sleeptime`: a group that works by itself between conversations, one member at a time, when a trigger says so.

Its times are a schedule of its own: it fires once for any number of times that were missed, its turns wait behind those
of the members' conversations, and where no trigger holds no model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from pattern_core.groups.coordination import CommonConfig, Coordination, Member, Room, check_names
from pattern_core.groups.coordinations import round_robin
from pattern_core.groups.coordinations.round_robin import RoundRobinConfig

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
class SleeptimeConfig(CommonConfig):
    """The `triggers` are checked every `check_interval` seconds, or at the times of `cron` in `zone`. They are the
    conditions of a schedule, as such or below `condition`. If one holds and the group has not worked for `cooldown`
    seconds, or there are none, `intervention_agent` (also `intervention_agent_id`) is sent `prompt`; without one the
    members take turns.
    """

    check_interval: Annotated[float, Field(ge=60, le=366 * 24 * 3600)] = 1_800.0
    cron: str | None = None
    zone: str = "UTC"
    triggers: tuple[dict[str, Any], ...] = ()
    cooldown: Annotated[float, Field(ge=0)] = 0.0
    intervention_agent: str | None = None
    intervention_agent_id: str | None = None
    prompt: str = PROMPT


def condition_of(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger as a condition of a schedule; the original's have a `condition` with a `type`."""
    flat = {**trigger, **trigger.get("condition", {})}
    flat.pop("condition", None)
    flat.pop("time_threshold", None)  # a count is of what happened since the last time
    if "type" in flat:
        kind = flat.pop("type")
        flat["kind"] = _KINDS.get(kind, kind)
    return {_FIELDS.get(name, name): value for name, value in flat.items()}


def schedule_of(config: SleeptimeConfig) -> dict[str, Any]:
    """Return the schedule's plan, and its message."""
    times = {"every": config.check_interval} if config.cron is None else {"cron": config.cron, "zone": config.zone}
    when = [condition_of(trigger) for trigger in config.triggers]
    return {**times, "when": when, "cooldown_s": config.cooldown, "missed": "last", "message": config.prompt}


async def run(room: Room, config: SleeptimeConfig) -> str:
    """Ask one member."""
    named = config.intervention_agent or config.intervention_agent_id
    if named is None:
        return await round_robin.run(room, RoundRobinConfig())
    return (await room.ask(room.named(named), why="it is the intervention agent")).text


def trouble(config: SleeptimeConfig, members: Sequence[Member]) -> list[str]:
    """Return what cannot run."""
    named = config.intervention_agent or config.intervention_agent_id
    return [] if named is None else check_names([named], members, "intervention_agent")


COORDINATION = Coordination(SleeptimeConfig, run, trouble, schedule_of)
