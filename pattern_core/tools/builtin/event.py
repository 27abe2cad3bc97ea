"""The tools `event_create`, `event_list` and `event_update`: the calendar."""

from __future__ import annotations

from typing import Annotated

from pattern_core.errors import InvalidInput
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, EventOccurrenceStatus

LISTED_MAX = 50


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def event_create(
    context: ToolContext,
    title: str,
    starts_at: Annotated[str, "Local time in `zone`, such as 2026-11-21T09:00; a date alone lasts all day."],
    ends_at: str | None = None,
    zone: Annotated[str, "Such as Europe/Berlin."] = "UTC",
    rrule: Annotated[str | None, "Such as FREQ=WEEKLY;BYDAY=MO."] = None,
    reminder_minutes: Annotated[int | None, "You get a message so many minutes before."] = None,
    location: str | None = None,
    description: str | None = None,
) -> dict[str, object]:
    """Add an event to the calendar."""
    fields = {
        "title": title,
        "starts_at": starts_at,
        "ends_at": ends_at,
        "zone": zone,
        "all_day": "T" not in starts_at,
        "rrule": rrule,
        "reminder_minutes": reminder_minutes,
        "location": location,
        "description": description,
        "agent_id": context.agent_id,
    }
    row, reminder_at = await context.toolbox.calendar.create(fields, work=context.work)
    return done("Added to the calendar", event=row.id, starts_at=row.starts_at, reminder_at=reminder_at)


@tool(effect=EffectClass.PURE)
async def event_list(
    context: ToolContext,
    since: Annotated[str | None, "From this time on, such as 2026-11-21T09:00Z; by default now."] = None,
    until: Annotated[str | None, "By default 30 days later."] = None,
) -> dict[str, object]:
    """List what takes place, with ids for event_update."""
    found = await context.toolbox.calendar.between(since, until, LISTED_MAX)
    return {
        "events": [
            {
                "event": one.event_id,
                "occurrence": one.nominal_at,
                "title": one.title,
                "local": one.local,
                "zone": one.zone,
                "ends_at": one.ends_at,
                **({"location": one.location} if one.location else {}),
                **({"notes": one.notes} if one.notes else {}),
            }
            for one in found
        ]
    }


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def event_update(
    context: ToolContext,
    event: Annotated[str, "Id or title."],
    occurrence: Annotated[str | None, "Only this one of a repeated event, as event_list shows it."] = None,
    starts_at: Annotated[str | None, "Move it to this local time."] = None,
    ends_at: str | None = None,
    title: str | None = None,
    rrule: str | None = None,
    reminder_minutes: int | None = None,
    notes: Annotated[str | None, "Of the one occurrence."] = None,
    cancel: bool = False,
) -> dict[str, object]:
    """Change, move or cancel an event, or one occurrence of it."""
    calendar, work = context.toolbox.calendar, context.work
    times = {"starts_at": starts_at, "ends_at": ends_at}
    whole = {"title": title, "rrule": rrule, "reminder_minutes": reminder_minutes}
    if occurrence is not None:
        if any(value is not None for value in whole.values()):
            raise InvalidInput(f"one occurrence cannot change {', '.join(whole)}; leave out `occurrence`")
        status = EventOccurrenceStatus.CANCELLED if cancel else None
        changes = {**times, "notes": notes, "status": status}
        await calendar.change(event, occurrence, {k: v for k, v in changes.items() if v is not None}, work=work)
    elif cancel:
        await calendar.delete(event, work=work)
    else:
        await calendar.update(event, {k: v for k, v in {**times, **whole}.items() if v is not None}, work=work)
    return done("Cancelled" if cancel else "Changed")
