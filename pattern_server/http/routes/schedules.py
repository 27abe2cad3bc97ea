"""Schedules: messages that agents and groups get by themselves."""

from __future__ import annotations

from typing import Any, get_type_hints

from fastapi import Response
from pydantic import BaseModel

from pattern_core.errors import InvalidInput
from pattern_core.schedule.plan import Missed, SchedulePlan, plan_of
from pattern_core.schedule.schedules import Occurrence, Schedule
from pattern_db.enums import ScheduleStatus
from pattern_server.http.bodies import Paged, RequestModel, answer_of, fields_with, page_of, require_values
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/schedules", tags=["schedules"])

SCHEDULE = answer_of(
    Schedule,
    f"id name agent_id group_id message status due_at {' '.join(get_type_hints(SchedulePlan))} created_at updated_at",
    due_at=str | None,
    **get_type_hints(SchedulePlan),
)
OCCURRENCE = answer_of(Occurrence, "nominal_at status reason turn_id count at")


class ScheduleTimes(RequestModel):
    """When a schedule is due, by one of `cron`, `every`, `at` and `rrule`, and when it then fires."""

    cron: str | None = None
    every: float | None = None
    at: str | None = None
    rrule: str | None = None
    zone: str | None = None
    starts_at: str | None = None
    jitter_s: float | None = None
    quiet: str | None = None
    missed: Missed | None = None
    catch_up_max: int | None = None
    when: list[dict[str, Any]] | None = None
    cooldown_s: float | None = None


class ScheduleCreateRequest(ScheduleTimes):
    """The schedule to create, for an agent or for a group."""

    name: str
    message: str
    agent: str | None = None
    group: str | None = None


class ScheduleUpdateRequest(ScheduleTimes):
    """The fields of a schedule to change; null sets the default."""

    name: str | None = None
    message: str | None = None


class StartedTurn(BaseModel):
    """A turn that was started."""

    turn_id: str


def _shown(row: Schedule, due_at: str | None) -> dict[str, Any]:
    return {**fields_with(plan_of(row.plan)), **fields_with(row, due_at=due_at)}


@router.get("", response_model=page_of(SCHEDULE))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List the schedules of the constellation by name."""
    shown = [_shown(*one) for one in await home.constellation.schedules.all()]
    return paging.of_all(shown, lambda one: (one["name"], one["id"]))


@router.post("", status_code=201, response_model=SCHEDULE)
async def create(body: ScheduleCreateRequest, home: ToWrite, response: Response) -> dict[str, Any]:
    """Create a schedule.

    The agent or group gets the message at each time that the schedule names, from now on. With `when` it gets it only
    if one of these conditions holds; without a change no model is asked.
    """
    constellation = home.constellation
    if (body.agent is None) == (body.group is None):
        raise InvalidInput("a schedule is for an agent or for a group; give one of `agent` and `group`")
    target = await (
        constellation.roster.get(body.agent) if body.agent is not None else constellation.groups.get(body.group or "")
    )
    row, due_at = await constellation.schedules.create(
        name=body.name,
        target=target,
        message=body.message,
        plan=body.model_dump(exclude={"name", "message", "agent", "group"}, exclude_unset=True),
    )
    home.locate(response, "schedules", row.id)
    return _shown(row, due_at)


@router.get("/{s}", response_model=SCHEDULE)
async def get(s: str, home: ToRead) -> dict[str, Any]:
    """Show a schedule."""
    return _shown(*await home.constellation.schedules.get(s))


@router.patch("/{s}", response_model=SCHEDULE)
async def update(s: str, body: ScheduleUpdateRequest, home: ToWrite) -> dict[str, Any]:
    """Update a schedule; it is due again from now on, also after it was finished if there is a next time."""
    changes = body.model_dump(exclude_unset=True)
    require_values(changes, "name", "message")
    return _shown(*await home.constellation.schedules.update(s, changes))


@router.delete("/{s}", status_code=204)
async def delete(s: str, home: ToWrite) -> None:
    """Delete a schedule with the list of its occurrences; the turns that it started stay."""
    await home.constellation.schedules.delete(s)


@router.post("/{s}/run", status_code=202)
async def run(s: str, home: ToWrite) -> StartedTurn:
    """Run a schedule now, whatever its times, conditions and status say; its next occurrence stays."""
    return StartedTurn(turn_id=await home.constellation.schedules.run(s))


@router.post("/{s}/pause", response_model=SCHEDULE)
async def pause(s: str, home: ToWrite) -> dict[str, Any]:
    """Pause a schedule until it is resumed; occurrences during the pause do not count as missed."""
    return _shown(*await home.constellation.schedules.update(s, {"status": ScheduleStatus.PAUSED}))


@router.post("/{s}/resume", response_model=SCHEDULE)
async def resume(s: str, home: ToWrite) -> dict[str, Any]:
    """Resume a schedule; it is due again from now on."""
    return _shown(*await home.constellation.schedules.update(s, {"status": ScheduleStatus.ACTIVE}))


@router.get("/{s}/occurrences", response_model=page_of(OCCURRENCE))
async def list_occurrences(s: str, home: ToRead, paging: Paged) -> object:
    """List occurrences of a schedule: what happened at each nominal time, newest first: the last 1,000."""
    row, _ = await home.constellation.schedules.get(s)
    found = await home.constellation.schedules.occurrences(row.id, paging.one_more, before=paging.after)
    return paging.cut(found, lambda one: one.nominal_at)
