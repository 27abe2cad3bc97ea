"""Turns, and the events of turns and constellations."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from pattern_core.views import TurnView
from pattern_server.http.bodies import CancelTold, TurnTold
from pattern_server.http.routing import MayChat, MayRead, Router, Server
from pattern_server.http.sse import MEDIA_TYPE, EventStream, place_of

router = Router(prefix="/constellations/{c}", tags=["turns"])

After = Annotated[int, Query(ge=0, description="begin after this event; 0 begins with the first")]
LastEventId = Annotated[str | None, Header(description="the last event seen; wins over `after`")]
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"description": "Server-sent events.", "content": {MEDIA_TYPE: {}}}}


def told(view: TurnView) -> TurnTold:
    """The turn as clients are sent it."""
    fields = {name: getattr(view, name) for name in TurnTold.model_fields if name != "turn_id"}
    return TurnTold.model_validate({**fields, "turn_id": view.id})


@router.get("/turns/{t}")
async def show(c: str, t: str, server: Server, caller: MayRead) -> TurnTold:
    """One turn as it is now, with its messages."""
    async with server.constellations.use(caller, c) as constellation:
        return told(await constellation.turn(t))


@router.post("/turns/{t}/cancel")
async def cancel(c: str, t: str, server: Server, caller: MayChat) -> CancelTold:
    """Ask a turn to stop. Asking again, or when it has ended, changes nothing."""
    async with server.constellations.use(caller, c) as constellation:
        cancelled = await constellation.cancel(t)
        view = await constellation.turn(t)
    return CancelTold(turn_id=t, cancelled=cancelled, status=view.status)


@router.get("/turns/{t}/events", response_class=StreamingResponse, responses=_EVENTS)
async def events_of_turn(
    c: str, t: str, server: Server, caller: MayRead, after: After = 0, last_event_id: LastEventId = None
) -> EventStream:
    """The turn's events from its first, up to the terminal one."""
    found = await server.constellations.find(caller, c)
    use = partial(server.constellations.use, caller, found.id)
    return EventStream(use, after=place_of(last_event_id, after), turn_id=t)


@router.get("/events", response_class=StreamingResponse, responses=_EVENTS)
async def events(
    c: str, server: Server, caller: MayRead, after: After = 0, last_event_id: LastEventId = None
) -> EventStream:
    """All events of the constellation after `after`, then those to come, without end."""
    found = await server.constellations.find(caller, c)
    use = partial(server.constellations.use, caller, found.id)
    return EventStream(use, after=place_of(last_event_id, after))
