"""The calendar: events, their occurrences, and files of iCalendar."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_type_hints

from fastapi import Query, Request, Response

from pattern_core.calendars import CalendarEvent, CalendarImport, EventOccurrence, place_of
from pattern_core.errors import InvalidInput, instead_of
from pattern_core.occurrences import CalendarOccurrence
from pattern_db.enums import EventOccurrenceStatus
from pattern_server.http.bodies import BY_VALUE, Paged, RequestModel, answer_of, fields_with, page_of, require_values
from pattern_server.http.routing import AwakeAccess, Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/calendar", tags=["calendar"])

EVENT = answer_of(
    CalendarEvent,
    "id title description location agent_id starts_at ends_at zone all_day rrule exdates rdates reminder_minutes missed"
    " external_id external_source reminder_at created_at updated_at",
    reminder_at=str | None,
)
OCCURRENCE = answer_of(CalendarOccurrence, " ".join(get_type_hints(CalendarOccurrence)))
STATE = answer_of(
    EventOccurrence, "nominal_at starts_at ends_at status title notes reminder reminded_at reason turn_id"
)
_FILE = {"text/calendar": {"schema": {"type": "string"}}}
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class CalendarEventUpdateRequest(RequestModel):
    """The fields of an event to change; null sets the default."""

    title: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    zone: str | None = None
    all_day: bool | None = None
    rrule: str | None = None
    exdates: list[str] | None = None
    rdates: list[str] | None = None
    location: str | None = None
    description: str | None = None
    agent: str | None = None
    reminder_minutes: int | None = None
    missed: Literal["skip", "last", "all"] | None = None


class CalendarEventCreateRequest(CalendarEventUpdateRequest):
    """The event to create."""

    title: str
    starts_at: str


class OccurrenceUpdateRequest(RequestModel):
    """What to change of an occurrence: where it moves, its state, or its notes."""

    starts_at: str | None = None
    ends_at: str | None = None
    status: Annotated[EventOccurrenceStatus | None, BY_VALUE] = None
    notes: str | None = None


_DEFAULTS = {"zone": "UTC", "all_day": False, "exdates": (), "rdates": (), "missed": "last"}


async def _fields(home: AwakeAccess, body: CalendarEventUpdateRequest) -> dict[str, Any]:
    """Return the given fields as those of an event's row."""
    given = body.model_dump(exclude_unset=True)
    require_values(given, "title", "starts_at")
    if given.get("agent") is not None:
        given["agent"] = (await home.constellation.roster.get(given["agent"])).id
    names = {"agent": "agent_id"}
    return {names.get(name, name): _DEFAULTS.get(name) if it is None else it for name, it in given.items()}


@router.get("", response_model=page_of(OCCURRENCE))
async def list_occurrences(
    home: ToRead,
    paging: Paged,
    since: Annotated[str | None, Query(description="Only what takes place from this time on; by default now.")] = None,
    until: Annotated[str | None, Query(description="Only what begins before; by default 30 days later.")] = None,
) -> object:
    """List the occurrences of events in a time, in the order of their beginning."""
    found = await home.constellation.calendar.between(since, until, paging.one_more, after=paging.after)
    return paging.cut(found, place_of)


@router.get("/export", response_class=Response, responses={200: {"content": _FILE}})
async def export(home: ToRead) -> Response:
    """Export the calendar as iCalendar (RFC 5545); with what was imported and is not understood."""
    return Response(await home.constellation.calendar.export(), media_type="text/calendar")


@router.post("/import", response_model=CalendarImport, openapi_extra={"requestBody": {"content": _BYTES}})
async def import_file(
    request: Request,
    home: ToWrite,
    zone: Annotated[str | None, Query(description="Of times without one; by default the file's, else UTC.")] = None,
) -> CalendarImport:
    """Import a calendar.

    Create or update the events of an iCalendar file, the request's body whatever its content type. Events are known by
    their UID, so importing a file again changes nothing.
    """
    with instead_of(UnicodeDecodeError, InvalidInput("the file is not UTF-8; export it again as iCalendar")):
        text = (await request.body()).decode("utf-8-sig")
    return await home.constellation.calendar.import_text(text, zone)


@router.get("/events", response_model=page_of(EVENT))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List events in the order of their beginning; each is listed once however often it repeats."""
    shown = [fields_with(row, reminder_at=at) for row, at in await home.constellation.calendar.all()]
    return paging.of_all(shown, lambda one: (one["starts_at"], one["id"]))


@router.post("/events", status_code=201, response_model=EVENT)
async def create(body: CalendarEventCreateRequest, home: ToWrite, response: Response) -> dict[str, Any]:
    """Create an event.

    Times without an offset are local ones of its `zone`. With `reminder_minutes` its `agent` gets a message before each
    occurrence; without an agent there is only an event `calendar.reminder`.
    """
    row, reminder_at = await home.constellation.calendar.create(await _fields(home, body))
    home.locate(response, "calendar", "events", row.id)
    return fields_with(row, reminder_at=reminder_at)


@router.get("/events/{e}", response_model=EVENT)
async def get(e: str, home: ToRead) -> dict[str, Any]:
    """Show the event with this id, or the only one with this title."""
    row, reminder_at = await home.constellation.calendar.get(e)
    return fields_with(row, reminder_at=reminder_at)


@router.patch("/events/{e}", response_model=EVENT)
async def update(e: str, body: CalendarEventUpdateRequest, home: ToWrite) -> dict[str, Any]:
    """Update an event; a new beginning, zone or rule ends every move and cancellation of an occurrence."""
    row, reminder_at = await home.constellation.calendar.update(e, await _fields(home, body))
    return fields_with(row, reminder_at=reminder_at)


@router.delete("/events/{e}", status_code=204)
async def delete(e: str, home: ToWrite) -> None:
    """Delete an event with its occurrences; the turns that its reminders started stay."""
    await home.constellation.calendar.delete(e)


@router.get("/events/{e}/occurrences", response_model=page_of(STATE))
async def list_states(e: str, home: ToRead, paging: Paged) -> object:
    """List changed and reminded occurrences; what happened to each reminder, newest first."""
    row, _ = await home.constellation.calendar.get(e)
    found = await home.constellation.calendar.states(row.id, paging.one_more, before=paging.after)
    return paging.cut(found, lambda one: one.nominal_at)


@router.patch("/events/{e}/occurrences/{nominal}", response_model=OCCURRENCE)
async def change(e: str, nominal: str, body: OccurrenceUpdateRequest, home: ToWrite) -> object:
    """Move or cancel an occurrence; it is named by its `nominal_at`. One that moves has a new reminder."""
    changes = body.model_dump(exclude_unset=True)
    require_values(changes, "starts_at", "status")
    return await home.constellation.calendar.change(e, nominal, changes)
