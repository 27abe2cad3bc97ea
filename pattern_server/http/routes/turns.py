"""Turns, their prompts, and the events of turns and constellations."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from pattern_core.prompts.explain import TurnExplained, explain
from pattern_core.views import StoredMessage, TurnView, view_tree, view_turns
from pattern_db.enums import TurnStatus
from pattern_db.journal.group_runs import Branch
from pattern_db.journal.usage import UsageSum
from pattern_server.http.bodies import Paged, answer_of, fields_with, page_of
from pattern_server.http.routing import Access, Router, ToChat, ToRead, ToReadOn
from pattern_server.http.sse import MEDIA_TYPE, EventStream, place_of
from pattern_server.http.websocket import EventSocket

router = Router(prefix="/constellations/{c}", tags=["turns"])

After = Annotated[int, Query(ge=0, description="Number of the last event seen; 0: start with the first.")]
LastEventId = Annotated[str | None, Header(description="Number of the last event seen; has priority over `after`.")]

# An image in `parts` has a `digest`, by which `GET /constellations/{c}/images/{digest}` gives its bytes, or a `url`.
MESSAGE = answer_of(
    StoredMessage,
    "id agent_id position role content parts tool_call_id tool_name tool_args tool_result source source_metadata"
    " trust batch_id sequence_in_batch session_id workspace is_archived created_at",
    finish_reason=str | None,
)
_USAGE = answer_of(UsageSum, "input_tokens output_tokens cached_tokens cost_microdollars is_estimate", "Usage")
_SUMMARY = (
    "turn_id agent_id group_id status error approvals usage steps sender trust session_id created_at started_at"
    " ended_at"
)
_OWN: dict[str, Any] = {"turn_id": Annotated[str, Field(validation_alias="id")], "usage": _USAGE}
_WHOLE = _SUMMARY.replace("usage", "text messages usage")
_OWN_WHOLE = {**_OWN, "messages": list.__class_getitem__(MESSAGE)}
TURN = answer_of(TurnView, _WHOLE, **_OWN_WHOLE)
BRANCH = answer_of(Branch, "turn_id parent_id name reason status created_at started_at ended_at", "TurnBranch")
TURN_WITH_TREE = answer_of(TurnView, _WHOLE, "TurnWithTree", **_OWN_WHOLE, tree=list.__class_getitem__(BRANCH))
TURN_SUMMARY = answer_of(TurnView, _SUMMARY, "TurnSummary", **_OWN)
EVENTS = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Event"}}}
_ANSWERS: dict[int | str, dict[str, Any]] = {200: {"description": "Server-sent events.", "content": EVENTS}}


_SWITCHED: dict[int | str, dict[str, Any]] = {101: {"description": "The connection is a WebSocket now."}}


class TurnCancellation(BaseModel):
    """The result of cancelling a turn."""

    turn_id: str
    cancelled: bool
    status: TurnStatus


@router.get("/turns", response_model=page_of(TURN_SUMMARY))
async def list_all(
    home: ToRead,
    paging: Paged,
    status: Annotated[TurnStatus | None, Query(description="Only turns with this status.")] = None,
    agent: Annotated[str | None, Query(description="Only turns of this agent (id or name).")] = None,
    group: Annotated[str | None, Query(description="Only turns of this group (id or name).")] = None,
) -> object:
    """List turns, newest first, without their messages."""
    rows = await home.constellation.database.read_aside(
        view_turns,
        paging.one_more,
        before=paging.before,
        status=status,
        agent_id=None if agent is None else (await home.constellation.roster.get(agent)).id,
        group_id=None if group is None else (await home.constellation.groups.get(group)).id,
    )
    return paging.cut(rows, lambda row: str(row.key))


@router.get("/turns/{t}", response_model=TURN_WITH_TREE)
async def get(t: str, home: ToRead) -> object:
    """Show a turn with its status, usage and messages; that of a group has the turns that it caused."""
    view = await home.constellation.turn(t)
    return fields_with(view, tree=await home.constellation.database.read(view_tree, view))


@router.get("/turns/{t}/prompt")
async def get_prompt(t: str, home: ToRead) -> TurnExplained:
    """Explain the prompts of a turn.

    Return the parts of each prompt of the turn with the reasons, and the parts that did not fit. Texts are restored
    from the stored versions that were shown.
    """
    return await explain(home.constellation.database, t)


@router.post("/turns/{t}/cancel")
async def cancel(t: str, home: ToChat) -> TurnCancellation:
    """Cancel a turn; a repeated request, or one for a turn that has ended, changes nothing."""
    cancelled = await home.constellation.cancel(t)
    return TurnCancellation(turn_id=t, cancelled=cancelled, status=(await home.constellation.turn(t)).status)


@router.get("/turns/{t}/events", response_class=StreamingResponse, responses=_ANSWERS)
async def stream(t: str, home: ToReadOn, after: After = 0, last_event_id: LastEventId = None) -> EventStream:
    """Stream the events of a turn; these are server-sent events, from its first one up to the terminal one."""
    return await _stream(home, place_of(last_event_id, after), t)


@router.get("/events", response_class=StreamingResponse, responses=_ANSWERS)
async def stream_constellation(home: ToReadOn, after: After = 0, last_event_id: LastEventId = None) -> EventStream:
    """Stream the events of a constellation: the stored ones after `after`, then new ones, without end."""
    return await _stream(home, place_of(last_event_id, after))


@router.get("/ws", status_code=101, response_class=Response, responses=_SWITCHED)
async def connect(home: ToReadOn) -> EventSocket:
    """Open a WebSocket.

    Send requests and follow events over one connection; the page on events describes the messages. Browsers send the
    token as a protocol: `new WebSocket(url, ["pattern", "bearer." + token])`.
    """
    found = await home.server.accounts.constellation_for(home.caller, home.c)
    use = partial(home.server.constellations.use, home.caller, found.id)
    return EventSocket(use, found.id, message_bytes_max=home.server.config.body_bytes_max)


async def _stream(home: Access, after: int, turn_id: str | None = None) -> EventStream:
    found = await home.server.accounts.constellation_for(home.caller, home.c)
    return EventStream(partial(home.server.constellations.use, home.caller, found.id), after=after, turn_id=turn_id)
