"""Past messages from elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Response
from pydantic import Field

from pattern_core.conversation.imports import PastMessage
from pattern_core.limits import IMPORT_MESSAGES_MAX
from pattern_db.enums import Role
from pattern_server.http.bodies import Asked, Told
from pattern_server.http.routing import MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents/{a}/history", tags=["messages"])


_IdempotencyKey = Annotated[str | None, Header(description="makes a repeated request harmless")]


class PastAsked(Asked):
    """A message of the past. `created_at` is an RFC 3339 time with an offset (default: now), `name` is who spoke."""

    role: Annotated[Role, Field(strict=False)]
    content: str
    created_at: str | None = None
    session_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None
    workspace: str | None = None


class HistoryAsked(Asked):
    """Past messages, in any order of their times."""

    messages: Annotated[list[PastAsked], Field(min_length=1, max_length=IMPORT_MESSAGES_MAX)]


class HistoryTold(Told):
    """The ids of the messages, in the order in which they were sent."""

    ids: list[str]


@router.post("", status_code=201, response_model=HistoryTold)
async def add(
    c: str,
    a: str,
    body: HistoryAsked,
    server: Server,
    caller: MayWrite,
    response: Response,
    idempotency_key: _IdempotencyKey = None,
) -> object:
    """Add past messages to an agent's conversation, at their own times; no turn runs. All are stored, or none.

    At most 10,000 messages and 32 MiB at once. A request repeated with the same `Idempotency-Key` is answered with the
    same ids (200).
    """
    past = [
        PastMessage(
            role=one.role,
            content=one.content,
            created_at=one.created_at,
            session_id=one.session_id,
            name=one.name,
            metadata=one.metadata,
            workspace=one.workspace,
        )
        for one in body.messages
    ]
    async with server.constellations.use(caller, c) as constellation:
        imported = await constellation.imports.add(a, past, author=caller.author, idempotency_key=idempotency_key)
    if imported.is_replay:
        response.status_code = 200
    return imported
