"""The tool `event_create`: an event for the calendar."""

from __future__ import annotations

from typing import Annotated

from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass


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
