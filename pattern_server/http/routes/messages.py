"""Messages to agents, their history, imports of past messages, images and summaries."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import trio
from fastapi import Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from pattern_core.agent_settings import MessagePolicy
from pattern_core.agents import Agent
from pattern_core.compaction.compaction import Made, Summary
from pattern_core.compaction.compaction import list_summaries as stored_summaries
from pattern_core.conversation.imports import Imported, PastMessage, PastSession
from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.images import image_of_bytes, image_of_url, read
from pattern_core.limits import IMAGE_BYTES_MAX, IMPORT_MESSAGES_MAX
from pattern_core.messages import Image, Text
from pattern_core.models.model import ToolSpec
from pattern_core.turns.admission import IncomingMessage, Ticket, TurnOptions
from pattern_core.views import TurnView
from pattern_db.enums import Role
from pattern_server.http import LEFT
from pattern_server.http.bodies import BY_VALUE, PagedTexts, RequestModel, answer_of, page_of
from pattern_server.http.routes.turns import EVENTS, MESSAGE, TURN
from pattern_server.http.routing import Access, Router, ToChatOn, ToRead, ToWrite
from pattern_server.http.sse import MEDIA_TYPE, EventStream

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation

router = Router(prefix="/constellations/{c}", tags=["messages"])

SUMMARY = answer_of(
    Summary,
    "id session_id summary is_stub start_position end_position started_at ended_at message_count previous_summary_id"
    " depth strategy model tokens created_at",
)
COMPACTED = answer_of(Made, "messages tokens_before tokens_after summary_ids trouble", "Compaction")
IMPORTED = answer_of(Imported, "ids added", "HistoryImport")

CLIENT_TOOLS_MAX = 128  # of one message
TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
NO_PARAMETERS = {"type": "object", "properties": {}}

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="A unique key chosen by the client: a repeated request with the same key has the result of the "
        "first."
    ),
]

OfSession = Annotated[str | None, Query(description="Only those of the session with this id.")]
Accept = Annotated[str, Header(description="`text/event-stream` for the turn's events.")]
Prefer = Annotated[str, Header(description="`respond-async`, `wait=SECONDS` (RFC 7240), `on-disconnect=cancel`.")]

_WAIT = re.compile(r"\bwait\s*=\s*(\d{1,6})\b", re.IGNORECASE)
# The content of a digest never changes. The bytes come from users, so a browser must only display them.
_IMAGES = {
    f"image/{kind}": {"schema": {"type": "string", "format": "binary"}} for kind in ("png", "jpeg", "gif", "webp")
}
_IMAGE_HEADERS = {
    "cache-control": "private, max-age=31536000, immutable",
    "content-security-policy": "default-src 'none'",
}


class TextPartRequest(RequestModel):
    """A text."""

    type: Literal["text"]
    text: str


class ImagePartRequest(RequestModel):
    """An image: either `data` or a `url`."""

    type: Literal["image"]
    data: str | None = None
    url: str | None = None
    media_type: str | None = None


class ClientToolRequest(RequestModel):
    """A tool that the client runs. A call of it is an approval with `client` in its `request`, and the turn waits until
    the client approves it with the `result`.
    """

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: dict(NO_PARAMETERS))


class MessageRequest(RequestModel):
    """A message to an agent."""

    content: str | list[Annotated[TextPartRequest | ImagePartRequest, Field(discriminator="type")]]
    priority: int = 1
    policy: MessagePolicy | None = None
    session_id: str | None = None
    source: str | None = None
    source_metadata: dict[str, Any] | None = None
    tools: Annotated[list[ClientToolRequest], Field(default_factory=list, max_length=CLIENT_TOOLS_MAX)]


class PastMessageRequest(RequestModel):
    """A past message."""

    role: Annotated[Role, BY_VALUE]
    content: str
    created_at: str | None = None
    session_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None
    workspace: str | None = None


class PastSessionRequest(RequestModel):
    """A conversation in another program, the `origin`. What has the same id, origin and time is one session."""

    id: str
    origin: str
    created_at: str
    title: str | None = None


class HistoryRequest(RequestModel):
    """The messages to import, in any order, and the conversation that they are of, if they become a session."""

    session: PastSessionRequest | None = None
    messages: Annotated[list[PastMessageRequest], Field(min_length=1, max_length=IMPORT_MESSAGES_MAX)]


class AcceptedMessage(BaseModel):
    """A message that was accepted. Its turn runs."""

    turn_id: str
    status: str = "accepted"


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The turn when it has ended; or its events, with `Accept: text/event-stream`.",
        "content": EVENTS,
    },
    202: {"description": "Accepted; the turn runs.", "model": AcceptedMessage},
}


@router.post("/agents/{a}/messages", response_model=TURN, responses=ANSWERS)
async def send(
    a: str,
    body: MessageRequest,
    home: ToChatOn,
    accept: Accept = "",
    prefer: Prefer = "",
    idempotency_key: IdempotencyKey = None,
) -> object:
    """Send a message to an agent.

    The message is stored before any answer, and its turn runs whether or not the client stays connected, or with
    `Prefer: on-disconnect=cancel` only while it does. With
    `Accept: text/event-stream` the events of the turn are streamed up to the terminal one. With `Prefer: respond-async`
    the answer is 202 immediately, with `Prefer: wait=SECONDS` after that time at the latest. Otherwise the answer is
    the turn when it has ended or waits for a person. A request repeated with the same `Idempotency-Key` returns the
    same turn.
    """
    incoming = incoming_of(body, a, home.caller.sender, idempotency_key)

    async def submit(constellation: Constellation) -> Ticket:
        if incoming.options.tools:
            check_tools(constellation, await constellation.roster.get(a), incoming.options)
        return await constellation.submit(incoming)

    return await deliver(home, submit, accept, prefer)


def check_tools(constellation: Constellation, agent: Agent, options: TurnOptions) -> None:
    """Check the names of tools that a client offers.

    Raises:
        InvalidInput: two have the same name, or the agent has such a tool of its own.
    """
    names = [tool.name for tool in options.tools]
    own = {spec.name for spec in constellation.tools.specs(agent.enabled_tools)}
    if twice := [name for name in names if name in own or names.count(name) > 1]:
        raise InvalidInput(f"`tools`: the agent {agent.name} would have two tools {twice[0]!r}; rename yours")


def incoming_of(body: MessageRequest, agent: str, sender: str, idempotency_key: str | None) -> IncomingMessage:
    """Return a request as the message that is accepted."""
    parts = parts_of(body.content)
    return IncomingMessage(
        agent_id=agent,
        content="".join(part.text for part in parts if isinstance(part, Text)),
        parts=parts,
        sender=sender,
        idempotency_key=idempotency_key,
        source=body.source,
        source_metadata=body.source_metadata,
        priority=body.priority,
        policy=body.policy,
        session_id=body.session_id,
        options=TurnOptions(tools=[ToolSpec(**tool.model_dump()) for tool in body.tools]),
    )


async def deliver(
    home: Access, submit: Callable[[Constellation], Awaitable[Ticket]], accept: str, prefer: str
) -> object:
    """Have a message accepted, and answer as the headers `accept` and `prefer` ask for."""
    async with home.use() as constellation:
        seen = constellation.events.latest
        ticket = await submit(constellation)
        if home.server.telemetry is not None:
            home.server.telemetry.link(ticket.turn_id, home.traceparent)
        if "on-disconnect=cancel" in prefer.lower():
            home.state[LEFT] = partial(_cancel, home, ticket.turn_id)
        if MEDIA_TYPE in accept.lower():
            use = partial(home.server.constellations.use, home.caller, constellation.id)
            if ticket.is_replay:
                return EventStream(use, after=0, turn_id=ticket.turn_id)
            return EventStream(use, after=seen, turn_id=ticket.turn_id, is_new=True)
    wait = _WAIT.search(prefer)
    patience_s = float(wait[1]) if wait else 0.0 if "respond-async" in prefer.lower() else math.inf
    if patience_s:
        view = await ended(home, ticket.turn_id, patience_s, after=None if ticket.is_replay else seen)
        if view is not None:
            return view
    address = f"/api/v1/constellations/{constellation.id}/turns/{ticket.turn_id}"
    return JSONResponse(AcceptedMessage(turn_id=ticket.turn_id).model_dump(), 202, {"location": address})


async def _cancel(home: Access, turn_id: str) -> None:
    async with home.use() as constellation:
        await constellation.cancel(turn_id, reason="disconnected")


def parts_of(content: str | list[TextPartRequest | ImagePartRequest]) -> tuple[Text | Image, ...]:
    """Return the parts of a message's content. Consecutive texts are separated by a newline.

    Raises:
        InvalidInput: an image has both data and URL or neither, or is invalid.
    """
    if isinstance(content, str):
        return (Text(text=content),)
    parts: list[Text | Image] = []
    has_words = False
    for asked in content:
        if isinstance(asked, ImagePartRequest):
            parts.append(_image(asked))
        elif asked.text:
            parts.append(Text(text=f"\n{asked.text}" if has_words else asked.text))
            has_words = True
    return tuple(parts)


def _image(asked: ImagePartRequest) -> Image:
    if (asked.data is None) == (asked.url is None):
        raise InvalidInput("an image needs either `data` or `url`; send one of them")
    if asked.url is not None:
        return image_of_url(asked.url, asked.media_type)
    data = asked.data or ""
    if len(data) > 2 * IMAGE_BYTES_MAX:  # base64 is a third longer than the bytes that it encodes
        raise InvalidInput(f"the image has more than {IMAGE_BYTES_MAX} bytes; send a smaller one")
    try:
        return image_of_bytes(base64.b64decode(data, validate=True), asked.media_type)
    except (binascii.Error, ValueError):
        raise InvalidInput("an image's `data` is not valid base64; encode its bytes without line breaks") from None


async def ended(home: Access, turn_id: str, patience_s: float, *, after: int | None = None) -> TurnView | None:
    """Return the turn when it has ended; None if `patience` ends first. `after` is the newest event before a new turn.

    Raises:
        Unavailable: the constellation stopped while waiting; the error names the turn, which continues later.
    """
    try:
        async with home.use() as constellation:
            with trio.move_on_after(patience_s):
                return await constellation.wait(turn_id, after=after)
    except Unavailable as error:
        raise Unavailable(
            f"the message was accepted as {turn_id}, and its turn continues later: {error.message}",
            **{**error.details, "turn_id": turn_id},
        ) from None
    return None


@router.get("/agents/{a}/messages", response_model=page_of(MESSAGE))
async def list_all(a: str, home: ToRead, paging: PagedTexts, session: OfSession = None) -> object:
    """List messages of an agent.

    Return the messages of the agent in all its conversations, newest first; with `session` those of that one, for a
    fork also those that it began with.
    """
    rows = await home.constellation.messages(a, limit=paging.one_more, before=paging.after, session_id=session)
    return paging.cut(rows, lambda row: row.position)


@router.post("/agents/{a}/history", status_code=201, response_model=IMPORTED, responses={200: {"model": IMPORTED}})
async def import_history(
    a: str, body: HistoryRequest, home: ToWrite, response: Response, idempotency_key: IdempotencyKey = None
) -> Imported:
    """Import past messages.

    Add past messages to the agent's conversation at their own times; no turn runs. All are stored, or none. At most
    10,000 messages and 32 MiB per request. A request repeated with the same `Idempotency-Key` returns the same ids
    (200). With a `session` they become one; those with a `metadata.id` that it has already are not added again.
    """
    names = sorted({one.workspace for one in body.messages if one.workspace is not None})
    ids = {name: await home.find_workspace(name, is_written=True) for name in names}
    past = [PastMessage(**{**vars(one), "workspace": ids.get(one.workspace or "")}) for one in body.messages]
    imports, author = home.constellation.imports, home.caller.author
    session = None if body.session is None else PastSession(**vars(body.session))
    imported = await imports.add(a, past, author=author, idempotency_key=idempotency_key, session=session)
    if imported.is_replay:
        response.status_code = 200
    return imported


@router.get("/agents/{a}/summaries", response_model=page_of(SUMMARY))
async def list_summaries(a: str, home: ToRead, paging: PagedTexts, session: OfSession = None) -> object:
    """List summaries of archived messages.

    Return the summaries of the agent's main conversation, or of a session, newest first. The messages themselves stay
    in the history and in search.
    """
    before = paging.after
    agent = await home.constellation.roster.get(a)
    rows = await stored_summaries(
        home.constellation.database, agent.id, limit=paging.one_more, before=before, session_id=session
    )
    return paging.cut(rows, lambda row: row.id)


@router.post("/agents/{a}/compact", response_model=COMPACTED)
async def compact(a: str, home: ToWrite) -> Made:
    """Compact the conversation of an agent now: archive its older part, with the agent's settings."""
    return await home.constellation.compact(await home.constellation.roster.get(a))


@router.get("/images/{digest}", response_class=Response, responses={200: {"content": _IMAGES}})
async def get_image(digest: str, home: ToRead) -> Response:
    """Download an image by its `digest`; it is in the `parts` of the message that shows it."""
    image = await home.constellation.database.read(read, digest)
    return Response(image.data, media_type=image.media_type, headers=_IMAGE_HEADERS)
