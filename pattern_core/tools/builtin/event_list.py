"""The tool `event_list`: what is in the calendar."""

from __future__ import annotations

from typing import Annotated

from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import EffectClass

LISTED_MAX = 50


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
