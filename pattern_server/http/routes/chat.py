"""Chat sessions at the paths of a small web server for coding agents: start, continue, follow, stop, list, read.

They are views of sessions, turns and events. Bodies and events have that server's forms, so its front ends work here.
Where it answered 200 to what failed, or 404 to what is busy, the answer is 404 or 409; `?strict=0` gives the original's
status. Its paths name no constellation: a token that is bound to one means that, others mean the only one of their
user.

Source: the project's seed 004, a plan of that server's HTTP interface.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import trio
from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pattern_core.agents import Agent
from pattern_core.constellation import Constellation
from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError
from pattern_core.events import TERMINAL, Event, EventsPruned, check_kept
from pattern_core.sessions import TITLE_CHARS_MAX, Chat
from pattern_core.shell.policy import ShellSettings
from pattern_core.shell.shell import working_directory
from pattern_core.turns.admission import DIGEST_BYTES, IncomingMessage
from pattern_core.views import StoredMessage
from pattern_db.enums import AgentStatus, EffectStatus, Role, TurnStatus
from pattern_db.journal import turns, usage
from pattern_db.journal.turns import TurnRow
from pattern_server.accounts import Principal
from pattern_server.http.routes.messages import IdempotencyKey
from pattern_server.http.routing import AwakeAccess, Demand, Router, ServerState
from pattern_server.http.sse import MEDIA_TYPE, EventStream, sent

ORIGIN = "codepilot"  # of sessions and messages
LIST_MAX = 100
MESSAGES_MAX = 10_000  # of a session in one answer, the newest
PREVIEW_UNITS_MAX = 100  # of UTF-16
_NO_STATUS = "idle"
_STATUSES: Mapping[TurnStatus, str] = {
    **dict.fromkeys((TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING), "running"),
    TurnStatus.LIMIT: "failed",
}
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
    agent, roots = await _agent(constellation, body.agent), _shell(home).roots
    session = replace(constellation.sessions.new(None, ORIGIN), working_dir=str(roots[0]) if roots else None)
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
    """Continue a chat session with the next message; one that is at work refuses it."""
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


async def _agent(constellation: Constellation, name: str | None) -> Agent:
    """Return the agent of a new session: the named one, else the oldest.

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
        source=ORIGIN,
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
        return _refused(409, f"Session is not running: {_status(chat)}", strict)
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
    return JSONResponse({"sessions": [_listed(chat) for chat in found], **page})


def _shown(chat: Chat) -> dict[str, object]:
    return {
        "id": chat.id,
        "status": _status(chat),
        "workingDir": chat.working_dir or "",
        "createdAt": chat.created_at,
        "messageCount": chat.message_count,
        "totalTokens": chat.tokens,
    }


def _listed(chat: Chat) -> dict[str, object]:
    title = {} if chat.title is None else {"title": chat.title}
    return {**_shown(chat), "preview": preview_of(chat.first_said), **title}


def _status(chat: Chat) -> str:
    return _NO_STATUS if chat.status is None else _STATUSES.get(chat.status, chat.status.value)


def preview_of(text: str | None) -> str | None:
    """Return the beginning of a text, at most 100 units of UTF-16; no character is cut in two."""
    units = (text or "").encode("utf-16-le", "surrogatepass")
    if len(units) <= 2 * PREVIEW_UNITS_MAX:
        return text
    return units[: 2 * (PREVIEW_UNITS_MAX - 3)].decode("utf-16-le", "ignore") + "..."


@router.get("/session/{session_id}")
async def get(session_id: str, home: ToReadChats, strict: Strict = True) -> Response:
    """Show a chat session."""
    try:
        chat = await home.constellation.sessions.chat(session_id)
    except NotFound:
        return _refused(404, f"{_MISSING}: {session_id}", strict)
    return JSONResponse({**_shown(chat), "title": chat.title, "updatedAt": chat.updated_at})


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
        if _status(chat) == "running":
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


def message_of(row: StoredMessage) -> dict[str, object]:
    """Return a message in the form of OpenAI's chat completions. A result that is JSON is indented by two spaces."""
    made: dict[str, object] = {"role": row.role.value, "content": row.content}
    if row.role is Role.TOOL:
        found, text = result_of(row.content), row.content or ""
        is_error = isinstance(row.tool_result, dict) and row.tool_result.get("is_error")
        shown = text if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=2)
        return {**made, "content": f"Error: {text}" if is_error else shown, "tool_call_id": row.tool_call_id}
    parts = row.parts if isinstance(row.parts, list) else []
    calls = [part for part in parts if isinstance(part, dict) and part.get("type") == "tool_call"]
    return {**made, "content": row.content or None, "tool_calls": [_call(call) for call in calls]} if calls else made


def _call(part: Mapping[str, Any]) -> dict[str, object]:
    text = part.get("invalid") or json.dumps(part["arguments"], ensure_ascii=False, separators=(",", ":"))
    return {"id": part["call_id"], "type": "function", "function": {"name": part["tool"], "arguments": text}}


def result_of(content: str | None) -> object:
    """Return a tool's result as the original has it: an object or a list if it is one, else the text."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(content or ""), dict | list):
            return found
    return content or ""


# The stream


class Mark(NamedTuple):
    """A place in a session's stream, sent as the number of an event.

    One event of a turn may be two or three here: `part` counts them. A piece of text says how many characters of its
    message it completes, and has a checksum of them: pieces are deleted when their turn ends, and a client that
    resumes then is sent the rest of the message.
    """

    seq: int
    part: int = 0
    chars: int = 0
    check: int = 0

    def __str__(self) -> str:
        return f"{self.seq}{self.part}{self.chars:08}{self.check:05}"

    @classmethod
    def of(cls, text: str | None) -> Mark | None:
        """Return the place that a client names; None if it names none.

        Raises:
            InvalidInput: it is not the number of an event.
        """
        if text is None or not text.strip():
            return None
        found = re.fullmatch(r"([0-9]{1,19})([0-3])([0-9]{8})([0-9]{5})", text.strip())
        if found is None:
            raise InvalidInput("Last-Event-ID is no `id` of this stream; send the last one, or leave it out")
        return cls(*map(int, found.groups()))


_TEXT, _USAGE, _REST, _DONE = range(4)  # parts
_NOTHING = (0, 0)


def _extent(text: str) -> tuple[int, int]:
    """Return how long a text is, and its checksum."""
    return len(text), crc32(text.encode("utf-8", "replace")) % 100_000


class ChatStream(EventStream):
    """A turn of a session as the original streams it, after the place `seen`.

    Text comes as it is written. If a restart has the model called again, what a client has of the message is not sent
    a second time, unless the new answer is another one: then that follows as a paragraph of its own.
    """

    def __init__(self, home: AwakeAccess, turn: TurnRow, seen: Mark) -> None:
        super().__init__(partial(home.server.constellations.use, home.caller, home.c), after=0, turn_id=turn.id)
        self._key, self._seen = turn.key, seen
        self._text = ""  # of the message that the model writes
        self._has = (seen.chars, seen.check) if seen.part == _TEXT and seen.chars else _NOTHING  # what the client has
        self._calls: dict[str, dict[str, object]] = {}
        self._has_started = False
        self._unpaid: tuple[int, int] | None = None  # step and attempt with usage that was not sent

    async def piece(self, constellation: Constellation, event: Event) -> bytes:
        """Return what an event of the turn is here; maybe nothing."""
        text = self._written(event)
        used = b""
        if event.name in ("message", "tool.call", *TERMINAL) and self._unpaid is not None:
            mark, step, self._unpaid = Mark(event.seq, _USAGE), self._unpaid, None
            if mark > self._seen:
                rows = await constellation.database.read(usage.of_model_calls, self._key)
                used = b"".join(
                    self._event(mark, "usage", usage=_tokens(row)) for row in rows if (row.step, row.attempt) == step
                )
        return text + used + self._others(event)

    def _event(self, mark: Mark, kind: str, **data: object) -> bytes:
        return sent({"type": kind, **data}, kind, mark) if mark > self._seen else b""

    def _written(self, event: Event) -> bytes:
        """Return the text that an event adds to what the client has."""
        match event.name:
            case "step.started":
                self._text, self._unpaid = "", (int(str(event.data["step"])), int(str(event.data["attempt"])))
            case "text.delta":
                self._text += str(event.data["text"])
                return self._rest(event, is_whole=False)
            case "message":
                streamed, self._text = self._text, str(event.data.get("content") or "")
                is_shortened = bool(streamed) and not self._text.startswith(streamed)
                piece = b"" if is_shortened and _extent(streamed) == self._has else self._rest(event, is_whole=True)
                if event.seq >= self._seen.seq:
                    self._has = _NOTHING
                return piece
        return b""

    def _rest(self, event: Event, *, is_whole: bool) -> bytes:
        """Return what the client has not of the text."""
        mark, has = Mark(event.seq, _TEXT, *_extent(self._text)), self._has[0]
        if mark <= self._seen or (len(self._text) <= has and not is_whole):
            return b""
        is_same = _extent(self._text[:has]) == self._has
        self._has = mark.chars, mark.check
        piece = self._text[has:] if is_same else f"\n\n{self._text}"
        return self._event(mark, "text_delta", text=piece) if piece else b""

    def _others(self, event: Event) -> bytes:
        """Return calls, results and the end."""
        data, mark = event.data, Mark(event.seq, _REST)
        match event.name:
            case "turn.started":
                self._has_started = True
            case "tool.call":
                call = {"id": data.get("call_id"), "name": data.get("tool"), "input": data.get("arguments")}
                self._calls[str(call["id"])] = call
                return self._event(mark, "tool_call", toolCall={**call, "status": "pending"})
            case "tool.result":
                call, content = self._calls.get(str(data.get("call_id")), {}), str(data.get("content") or "")
                if data.get("status") == EffectStatus.DONE:
                    return self._event(
                        mark, "tool_result", toolCall={**call, "status": "completed", "result": result_of(content)}
                    )
                return self._event(mark, "tool_result", toolCall={**call, "status": "error", "error": content})
            case name if name in TERMINAL:
                piece = b"" if name == "turn.completed" else self._event(mark, "error", error=self._why(data))
                return piece + self._event(Mark(event.seq, _DONE), "done")
        return b""

    def _why(self, data: Mapping[str, object]) -> str:
        error = data.get("error")
        words = str(error.get("message")) if isinstance(error, dict) else str(data.get("status"))
        if words != "cancelled: user":
            return words
        return "Aborted by user" if self._has_started else "Aborted before starting"


def _tokens(row: usage.UsageRow) -> dict[str, int]:
    total = row.input_tokens + row.output_tokens
    return {"prompt_tokens": row.input_tokens, "completion_tokens": row.output_tokens, "total_tokens": total}


@router.get("/stream/{session_id}")
async def stream(
    session_id: str,
    home: ToReadChats,
    accept: Annotated[str, Header(description="With `text/event-stream`, an unknown session is an event.")] = "",
    after: Annotated[str | None, Query(description="`id` of the last event seen.")] = None,
    last_event_id: Annotated[str | None, Header(description="The same; has priority over `after`.")] = None,
    strict: Strict = True,
) -> Response:
    """Stream the newest turn of a chat session, from its beginning to its end, while it runs or later.

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
    was_over = seen is not None and seen.part == _DONE
    find = partial(turns.in_session, event=None if seen is None else seen.seq, was_over=was_over)
    turn = await constellation.database.read(find, chat.id)
    with suppress(EventsPruned):
        if turn is not None:
            await constellation.database.read(check_kept, 0, turn.id)
            return ChatStream(home, turn, seen or Mark(0))
    return Response(status_code=204)
