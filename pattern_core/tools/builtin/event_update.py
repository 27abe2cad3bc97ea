"""The tool `event_update`: an event that changes, moves or is cancelled."""

from __future__ import annotations

from typing import Annotated

from pattern_core.errors import InvalidInput
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, EventOccurrenceStatus


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
