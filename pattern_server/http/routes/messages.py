"""Messages to agents, and the conversation so far."""

from __future__ import annotations

import base64
import binascii
import math
import re
from functools import partial
from typing import Annotated, Any

import trio
from fastapi import Header
from fastapi.responses import JSONResponse

from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.images import image_of_bytes, image_of_url
from pattern_core.limits import IMAGE_BYTES_MAX
from pattern_core.messages import Image, Text
from pattern_core.turns.admission import IncomingMessage
from pattern_core.views import TurnView
from pattern_server.accounts import Principal
from pattern_server.http.bodies import (
    AcceptedTold,
    Cursor,
    ImageAsked,
    MessageAsked,
    MessageTold,
    Page,
    PageLimit,
    TextAsked,
    TurnTold,
    decode_cursor,
    encode_cursor,
)
from pattern_server.http.routes.turns import told
from pattern_server.http.routing import MayChat, MayRead, Router, Server
from pattern_server.http.sse import MEDIA_TYPE, EventStream

router = Router(prefix="/constellations/{c}/agents/{a}/messages", tags=["messages"])

_WAIT = re.compile(r"\bwait\s*=\s*(\d{1,6})\b", re.IGNORECASE)
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The turn when it has ended; or its events, if those are accepted.",
        "content": {MEDIA_TYPE: {}},
    },
    202: {"description": "Accepted; the turn runs.", "model": AcceptedTold},
}


@router.post("", response_model=TurnTold, responses=_ANSWERS)
async def send(
    c: str,
    a: str,
    body: MessageAsked,
    server: Server,
    caller: MayChat,
    accept: Annotated[str, Header(description="`text/event-stream` for the turn's events")] = "",
    prefer: Annotated[str, Header(description="`respond-async`, or `wait=SECONDS` (RFC 7240)")] = "",
    idempotency_key: Annotated[str | None, Header(description="makes a repeated request harmless")] = None,
) -> object:
    """Send a message. It is on disk before any answer, and its turn runs whether or not the client stays.

    With `Accept: text/event-stream` the turn's events follow until the terminal one. With `Prefer: respond-async` the
    answer is 202 at once, with `Prefer: wait=SECONDS` after that time at the latest. Otherwise the answer is the turn
    when it has ended. A request repeated with the same `Idempotency-Key` is answered with the same turn.
    """
    parts = parts_of(body.content)
    incoming = IncomingMessage(
        agent_id=a,
        content="".join(part.text for part in parts if isinstance(part, Text)),
        parts=parts,
        sender=caller.author,
        idempotency_key=idempotency_key,
        source=body.source,
        source_metadata=body.source_metadata,
        priority=body.priority,
        policy=body.policy,
    )
    async with server.constellations.use(caller, c) as constellation:
        seen = constellation.events.latest
        ticket = await constellation.submit(incoming)
        if MEDIA_TYPE in accept.lower():
            use = partial(server.constellations.use, caller, constellation.id)
            if ticket.is_replay:
                return EventStream(use, after=0, turn_id=ticket.turn_id)
            return EventStream(use, after=seen, turn_id=ticket.turn_id, is_new=True)
    wait = _WAIT.search(prefer)
    patience_s = float(wait[1]) if wait else 0.0 if "respond-async" in prefer.lower() else math.inf
    if patience_s:
        view = await _ended(server, caller, constellation.id, ticket.turn_id, patience_s)
        if view is not None:
            return told(view)
    accepted = AcceptedTold(turn_id=ticket.turn_id, status="accepted")
    address = f"/api/v1/constellations/{constellation.id}/turns/{ticket.turn_id}"
    return JSONResponse(accepted.model_dump(), 202, {"location": address})


def parts_of(content: str | list[TextAsked | ImageAsked]) -> tuple[Text | Image, ...]:
    """The parts of a message's content. Words that follow each other stay apart by a line's end.

    Raises:
        InvalidInput: an image has both data and address or neither, or is not acceptable.
    """
    if isinstance(content, str):
        return (Text(text=content),)
    parts: list[Text | Image] = []
    has_words = False
    for asked in content:
        if isinstance(asked, ImageAsked):
            parts.append(_image(asked))
        elif asked.text:
            parts.append(Text(text=f"\n{asked.text}" if has_words else asked.text))
            has_words = True
    return tuple(parts)


def _image(asked: ImageAsked) -> Image:
    if (asked.data is None) == (asked.url is None):
        raise InvalidInput("an image has either `data` or a `url`; send one of the two")
    if asked.url is not None:
        return image_of_url(asked.url, asked.media_type)
    data = asked.data or ""
    if len(data) > 2 * IMAGE_BYTES_MAX:  # base64 is a third longer than what it means
        raise InvalidInput(f"an image has more than {IMAGE_BYTES_MAX} bytes; make it smaller")
    try:
        return image_of_bytes(base64.b64decode(data, validate=True), asked.media_type)
    except (binascii.Error, ValueError):
        raise InvalidInput("an image's `data` is not base64; encode its bytes so, without line ends") from None


async def _ended(server: Server, caller: Principal, c: str, turn_id: str, patience_s: float) -> TurnView | None:
    """The turn when it has ended; None if patience ends first.

    Raises:
        Unavailable: the constellation stopped meanwhile; the error names the turn, which goes on later.
    """
    try:
        async with server.constellations.use(caller, c) as constellation:
            with trio.move_on_after(patience_s):
                return await constellation.wait(turn_id)
    except Unavailable as error:
        raise Unavailable(
            f"the message was accepted as {turn_id}, and its turn goes on later: {error.message}",
            **{**error.details, "turn_id": turn_id},
        ) from None
    return None


@router.get("", response_model=Page[MessageTold])
async def history(
    c: str, a: str, server: Server, caller: MayRead, limit: PageLimit = 50, cursor: Cursor = None
) -> object:
    """The agent's messages, newest first."""
    place = decode_cursor(cursor, 1)
    async with server.constellations.use(caller, c) as constellation:
        return await _page(constellation, a, limit, None if place is None else place[0])


async def _page(constellation: Constellation, a: str, limit: int, before: str | None) -> dict[str, Any]:
    rows = await constellation.messages(a, limit=limit + 1, before=before)
    shown = rows[:limit]
    return {"items": shown, "next_cursor": encode_cursor(shown[-1].position) if len(rows) > limit else None}
