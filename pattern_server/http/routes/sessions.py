"""Sessions: conversations in addition to the main one of an agent or a group."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from pattern_core.sessions import Session
from pattern_server.http.bodies import Paged, RequestModel, answer_of, page_of
from pattern_server.http.routing import Router, ToChatOwned, ToReadOwned, ToWriteOwned

router = Router(prefix="/constellations/{c}/agents/{a}/sessions", tags=["sessions"])

SESSION = answer_of(
    Session,
    "id agent_id group_id title origin workspace is_archived parent_id said_at created_at updated_at",
    "Session",
)


class SessionCreateRequest(RequestModel):
    """The session to create."""

    title: str | None = None
    origin: str | None = None
    workspace: str | None = None


class SessionUpdateRequest(RequestModel):
    """The fields of a session to change; null removes the title."""

    title: str | None = None
    is_archived: bool = False


class SessionForkRequest(RequestModel):
    """Where the fork begins to differ: after this message, by default after the last one."""

    message_id: str | None = None
    title: str | None = None


@router.get("", response_model=page_of(SESSION))
async def list_all(
    home: ToReadOwned,
    paging: Paged,
    archived: Annotated[bool, Query(description="The archived sessions instead of the others.")] = False,
) -> object:
    """List the sessions of an agent or a group, the newest first."""
    found = await home.constellation.sessions.newest(
        home.owner, paging.one_more, before=paging.after, is_archived=archived
    )
    return paging.cut(found, lambda session: session.id)


@router.post("", status_code=201, response_model=SESSION)
async def create(body: SessionCreateRequest, home: ToChatOwned, response: Response) -> Session:
    """Create a session.

    A message with its id as `session_id` is answered with what was said in it as the conversation. Memory, archive and
    search are common to all conversations of an agent.
    """
    workspace = await home.find_workspace(body.workspace, is_written=True)
    session = await home.constellation.sessions.create(
        home.owner, title=body.title, origin=body.origin, workspace=workspace
    )
    home.locate(response, "agents", home.owner, "sessions", session.id)
    return session


@router.get("/{session_id}", response_model=SESSION)
async def get(session_id: str, home: ToReadOwned) -> Session:
    """Show a session."""
    return await home.constellation.sessions.get(home.owner, session_id)


@router.patch("/{session_id}", response_model=SESSION)
async def update(session_id: str, body: SessionUpdateRequest, home: ToChatOwned) -> Session:
    """Update a session: its title, or archive it; it stays readable and searchable, but gets no messages."""
    return await home.constellation.sessions.update(home.owner, session_id, body.model_dump(exclude_unset=True))


@router.delete("/{session_id}", status_code=204)
async def delete(session_id: str, home: ToWriteOwned) -> None:
    """Delete a session.

    Its turns are cancelled, and its messages are in no history and no search any more. One that was forked is refused.
    """
    await home.constellation.sessions.delete(home.owner, session_id)


@router.post("/{session_id}/fork", status_code=201, response_model=SESSION)
async def fork(session_id: str, body: SessionForkRequest, home: ToChatOwned, response: Response) -> Session:
    """Fork a session.

    Create a session that begins as this one, up to a message. From then on each has messages of its own. No text is
    copied.
    """
    session = await home.constellation.sessions.fork(home.owner, session_id, body.message_id, title=body.title)
    home.locate(response, "agents", home.owner, "sessions", session.id)
    return session
