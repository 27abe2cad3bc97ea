"""Chat sessions at the paths of a small web server for coding agents: start, continue, follow, stop, list, read.

They are views of sessions, turns and events. Bodies and events have that server's forms, so its front ends work here.
Where it answered 200 to what failed, or 404 to what is busy, the answer is 404 or 409; `?strict=0` gives the original's
status. Its paths name no constellation: a token that is bound to one means that, others mean the only one of their
user.

Source: the project's seed 004, a plan of that server's HTTP interface.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import trio
from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pattern_core.agents import Agent
from pattern_core.chat_files import SYSTEM, message_of
from pattern_core.constellation import Constellation
from pattern_core.conversation.imports import TITLE_CHARS_MAX
from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError
from pattern_core.events import EventsPruned, check_kept
from pattern_core.sessions import Chat
from pattern_core.shell.policy import ShellSettings
from pattern_core.shell.shell import working_directory
from pattern_core.turns.admission import DIGEST_BYTES, IncomingMessage
from pattern_db.enums import AgentStatus, Role
from pattern_db.journal import turns
from pattern_server.accounts import Principal
from pattern_server.http.chat import Mark, SessionStream, listed, shown, status_of
from pattern_server.http.routes.messages import IdempotencyKey
from pattern_server.http.routing import AwakeAccess, Demand, Router, ServerState
from pattern_server.http.sse import MEDIA_TYPE, sent

LIST_MAX = 100
MESSAGES_MAX = 10_000  # of a session in one answer, the newest
_MISSING = "Session not found"
_BUSY = "Session not found or is currently running"

router = Router(base="/api", tags=["chat"])


class ChatDemand(Demand):
    """The scope that a route requires, in the constellation that a token means where no path names one."""

    async def home(self, request: Request) -> AsyncIterator[AwakeAccess]:
        """Yield the caller's access to that constellation, awake. Called by the framework.

        Raises:
            Conflict: the token is for none, and its user has several or none.
        """
        server: ServerState = request.app.state.server
        caller = await self.caller(request)
        c = caller.constellation_id or await _only_one(server, caller)
        async with server.constellations.use(caller, c) as constellation:
            yield AwakeAccess(server, caller, c, constellation)


async def _only_one(server: ServerState, caller: Principal) -> str:
    reached = await server.accounts.constellations_of(caller)
    own = [row.id for row in reached if row.owner_id == caller.user_id]
    if len(own) != 1:
        raise Conflict(
            f"{caller.username} has {len(own)} constellations, and this path names none; use a token for one of them:"
            f" pattern token create --user {caller.username} --constellation NAME --scope chat"
        )
    return own[0]


def _of(scope: Any) -> Any:
    return Depends(ChatDemand(scope, is_named_in_body=True).home, scope="function")


ToReadChats = Annotated[AwakeAccess, _of("read")]
ToChatThere = Annotated[AwakeAccess, _of("chat")]
ToDeleteChats = Annotated[AwakeAccess, _of("write")]
Strict = Annotated[bool, Query(description="`0`: the original's status 200, or 404, for what failed.")]


class ChatModel(BaseModel):
    """Base of these requests: as in the original, unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class ChatStartRequest(ChatModel):
    """A first message; `agent` names another agent than the oldest one."""

    message: Annotated[str, Field(min_length=1)]
    agent: str | None = None


class ChatContinueRequest(ChatModel):
    """The next message."""

    message: Annotated[str, Field(min_length=1)]


class ChatUpdateRequest(ChatModel):
    """The new title."""

    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARS_MAX)]


class ChatDirectoryRequest(ChatModel):
    """Where commands of the session run."""

    working_dir: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("workingDir", "cwd"))]


@router.post("/chat")
async def start(body: ChatStartRequest, home: ToChatThere, idempotency_key: IdempotencyKey = None) -> Response:
    """Start a chat session with a message; its answer comes as a stream."""
    constellation = home.constellation
    agent, roots = await agent_of(constellation, body.agent), _shell(home).roots
    session = replace(constellation.sessions.new(None, SYSTEM), working_dir=str(roots[0]) if roots else None)
    said = blake2b(json.dumps([agent.id, body.message]).encode(), digest_size=DIGEST_BYTES).digest()
    incoming = _incoming(body, home, agent.id, session.id, idempotency_key)
    ticket = await constellation.submit(replace(incoming, new_session=session, fingerprint=said))
    if ticket.is_replay:
        view = await constellation.turn(ticket.turn_id)
        return _begun(await constellation.sessions.chat(view.session_id or ""), view.id)
    return _begun(await constellation.sessions.chat(session.id), ticket.turn_id)


@router.post("/chat/{session_id}")
async def go_on(
    session_id: str,
    body: ChatContinueRequest,
    home: ToChatThere,
    strict: Strict = True,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Continue a chat session with the next message; one that is running refuses it."""
    try:
        chat = await home.constellation.sessions.chat(session_id)
        ticket = await home.constellation.submit(_incoming(body, home, chat.agent_id, chat.id, idempotency_key))
    except NotFound:
        return JSONResponse({"error": _BUSY}, 404)
    except Conflict as error:
        if not error.details.get("busy"):
            raise
        return JSONResponse({"error": _BUSY}, 409 if strict else 404)
    return _begun(chat, ticket.turn_id)


async def agent_of(constellation: Constellation, name: str | None) -> Agent:
    """Return the agent of new sessions: the named one, else the oldest.

    Raises:
        NotFound: there is none of that name.
        Conflict: there is none at all.
    """
    if name is not None:
        return await constellation.roster.get(name)
    agents = [one for one in await constellation.roster.all() if one.status is not AgentStatus.ARCHIVED]
    if not agents:
        raise Conflict("the constellation has no agent to talk to; create one: pattern agent create NAME")
    return min(agents, key=lambda one: (one.created_at, one.id))


def _incoming(
    body: ChatStartRequest | ChatContinueRequest, home: AwakeAccess, agent_id: str, session_id: str, key: str | None
) -> IncomingMessage:
    return IncomingMessage(
        agent_id=agent_id,
        content=body.message,
        sender=home.caller.sender,
        idempotency_key=key,
        source=SYSTEM,
        policy="enqueue",
        session_id=session_id,
        is_alone=True,
    )


def _begun(chat: Chat, turn_id: str) -> Response:
    return JSONResponse({"sessionId": chat.id, "workingDir": chat.working_dir or ""}, headers={"x-turn-id": turn_id})


@router.post("/stop/{session_id}")
async def stop(session_id: str, home: ToChatThere, strict: Strict = True) -> Response:
    """Stop what a chat session does now; what was said until then is kept."""
    try:
        chat = await home.constellation.sessions.chat(session_id)
    except NotFound:
        return _refused(404, f"{_MISSING}: {session_id}", strict)
    if not await home.constellation.sessions.stop(chat.id):
        return _refused(409, f"Session is not running: {status_of(chat)}", strict)
    return JSONResponse({"success": True})


def _refused(status: int, error: str, strict: bool) -> Response:
    return JSONResponse({"success": False, "error": error}, status if strict else 200)


@router.get("/sessions")
async def list_all(
    home: ToReadChats,
    limit: Annotated[int, Query(description="How many at most: 1 to 100.")] = 20,
    offset: Annotated[int, Query(description="How many of the newest are left out.")] = 0,
) -> Response:
    """List chat sessions, the newest first: those of all agents of the constellation."""
    limit, offset = min(max(limit, 1), LIST_MAX), max(offset, 0)
    found, total = await home.constellation.sessions.chats(limit, offset)
    page = {"total": total, "limit": limit, "offset": offset, "hasMore": offset + len(found) < total}
    return JSONResponse({"sessions": [listed(chat) for chat in found], **page})


@router.get("/session/{session_id}")
async def get(session_id: str, home: ToReadChats, strict: Strict = True) -> Response:
    """Show a chat session."""
    try:
        chat = await home.constellation.sessions.chat(session_id)
    except NotFound:
        return _refused(404, f"{_MISSING}: {session_id}", strict)
    return JSONResponse({**shown(chat), "title": chat.title, "updatedAt": chat.updated_at})


@router.patch("/session/{session_id}")
async def update(session_id: str, body: ChatUpdateRequest, home: ToChatThere) -> Response:
    """Rename a chat session."""
    sessions = home.constellation.sessions
    try:
        chat = await sessions.chat(session_id)
        await sessions.update(chat.agent_id, chat.id, {"title": body.title})
    except NotFound:
        return _refused(404, f"{_MISSING}: {session_id}", True)
    return JSONResponse({"success": True, "title": body.title})


@router.delete("/session/{session_id}")
async def delete(session_id: str, home: ToDeleteChats, strict: Strict = True) -> Response:
    """Delete a chat session; what it does now is cancelled first, and its messages are in no search any more."""
    sessions = home.constellation.sessions
    try:
        chat = await sessions.chat(session_id)
        await sessions.delete(chat.agent_id, chat.id)
    except NotFound:
        return _refused(404, f"{_MISSING}: {session_id}", strict)
    return JSONResponse({"success": True})


@router.patch("/session/{session_id}/cwd")
async def move(session_id: str, body: ChatDirectoryRequest, home: ToChatThere) -> Response:
    """Change the directory in which commands of a chat session run; it has to be below one of the shell's roots."""
    sessions = home.constellation.sessions
    try:
        chat = await sessions.chat(session_id)
        if status_of(chat) == "running":
            return JSONResponse({"error": "Session is currently running; stop it, or wait"}, 409)
        place = await trio.to_thread.run_sync(root_of, _shell(home), body.working_dir)
        await sessions.update(chat.agent_id, chat.id, {"working_dir": place})
    except NotFound:
        return JSONResponse({"error": _MISSING}, 404)
    return JSONResponse({"sessionId": chat.id, "workingDir": place, "success": True})


def _shell(home: AwakeAccess) -> ShellSettings:
    return home.server.runtime.tools.shell or ShellSettings()


def root_of(settings: ShellSettings, directory: str) -> str:
    """Return the real path of a directory in which the shell may run commands. Blocks.

    Raises:
        InvalidInput: it is not in one of the shell's roots, or there is none.
    """
    try:
        place: Path = working_directory(settings, directory)
    except PatternError as error:
        raise InvalidInput(error.message) from None
    return str(place)


@router.get("/session/{session_id}/messages")
async def list_messages(session_id: str, home: ToReadChats) -> Response:
    """List the messages of a chat session in OpenAI's form, the oldest first; of a very long one the newest 10,000."""
    try:
        chat = await home.constellation.sessions.chat(session_id)
    except NotFound:
        return JSONResponse({"error": f"{_MISSING}: {session_id}"}, 404)
    rows = await home.constellation.messages(chat.agent_id, limit=MESSAGES_MAX, session_id=chat.id)
    messages = [message_of(row) for row in reversed(rows) if row.role is not Role.SYSTEM]
    return JSONResponse({"sessionId": chat.id, "messages": messages, "count": chat.message_count})


@router.get("/stream/{session_id}")
async def stream(
    session_id: str,
    home: ToReadChats,
    accept: Annotated[str, Header(description="With `text/event-stream`, an unknown session is an event.")] = "",
    after: Annotated[str | None, Query(description="`id` of the last event seen.")] = None,
    last_event_id: Annotated[str | None, Header(description="The same; has priority over `after`.")] = None,
    strict: Strict = True,
) -> Response:
    """Stream the newest turn of a chat session, while it runs or later.

    With the `id` of an event of an earlier turn, the rest of that turn; after its last event, the turn that followed. A
    session without a turn to show answers 204.
    """
    constellation, seen = home.constellation, Mark.of(last_event_id or after)
    try:
        chat = await constellation.sessions.chat(session_id)
    except NotFound:
        words = f"{_MISSING}: {session_id}"
        if strict and MEDIA_TYPE not in accept:
            return _refused(404, words, strict)
        return Response(sent({"error": words}, "error"), media_type=MEDIA_TYPE)
    was_over = seen is not None and seen.is_end
    find = partial(turns.in_session, event=None if seen is None else seen.seq, was_over=was_over)
    turn = await constellation.database.read(find, chat.id)
    with suppress(EventsPruned):
        if turn is not None:
            await constellation.database.read(check_kept, 0, turn.id)
            return SessionStream(home, turn, seen or Mark(0))
    return Response(status_code=204)
