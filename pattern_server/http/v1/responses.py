"""Responses, OpenAI's newer form: the server has the conversation, and an answer is an object with an id.

A response is what a turn says from its beginning, or after results of the client's calls, up to its end or its next
such calls. Its id names the constellation, the turn and that step, so nothing else is stored for it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request

from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.events import Event
from pattern_db.columns import unix_ms
from pattern_db.enums import TurnStatus
from pattern_server.accounts import Principal
from pattern_server.http.errors import OPENAI
from pattern_server.http.routes.messages import ended
from pattern_server.http.routing import Access, Demand, MayChat, MayRead, Router, Server, ServerState
from pattern_server.http.sse import sent
from pattern_server.http.v1.asked import Asked, AskedRequest, Effort
from pattern_server.http.v1.chat import answering, of_model
from pattern_server.http.v1.exchange import (
    STREAMED,
    AnswerStream,
    Headers,
    PendingAnswer,
    Reply,
    TurnFailed,
    begin,
    reply_of,
)
from pattern_server.http.v1.models import NamedModel, resolve

EVENTS_MAX = 1_000  # of a stream, for one event of a turn: numbers leave room for them
_ID = re.compile(r"resp_([0-9a-z]{26})([0-9a-z]{26})(?:_(\d{1,6}))?")
_STATUS = {TurnStatus.QUEUED: "queued", TurnStatus.CANCELLED: "cancelled", TurnStatus.COMPLETED: "completed"}
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Every field of a response, in a client's answers also where it says nothing.
_NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "user")),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "temperature", "top_p")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), 0.0),
    "background": False,
    "metadata": {},
    "parallel_tool_calls": True,
    "service_tier": "default",
    "store": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
}

router = Router(base="", prefix=OPENAI, tags=["openai"])
MayDelete = Annotated[Principal, Depends(Demand("write", is_named_in_body=True).caller)]


class ResponseRequest(AskedRequest):
    """A request for a response, as OpenAI describes it."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, str] | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None

    def read(self) -> Asked:
        """Return the request in the words of the core.

        Raises:
            InvalidInput: an item, a tool or the format is not one that an agent can have.
        """
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        if self.instructions:
            given = [{"role": "system", "content": self.instructions}, *given]
        effort: Effort | None = (self.reasoning or {}).get("effort")
        form = (self.text or {}).get("format")
        return self.asked("input", given, form, effort, max_output_tokens=self.max_output_tokens)


@router.post("/responses", responses=STREAMED)
async def respond(body: ResponseRequest, request: Request, server: Server, caller: MayChat, extras: Headers) -> object:
    """Create a response.

    Answer in the conversation of an earlier response, in a session (`conversation`), or in a new one. With `background`
    the answer comes at once, and the response is read until it is complete. With `store: false` nothing is kept, so
    the whole conversation has to be in `input`.
    """
    named, asked = await resolve(server, caller, body.model), body.read()
    said = body.model_dump(exclude_none=True, exclude={"model", "input", "stream", "include", "conversation"})
    wanted = extras.x_session_id or body.conversation
    session_id = wanted.get("id") if isinstance(wanted, dict) else wanted
    async with named.home.use() as constellation:
        agent = await answering(constellation, named, asked.options)
        if body.store is False or named.is_ephemeral or extras.x_ephemeral:
            if body.stream or body.background or body.previous_response_id or session_id:
                raise InvalidInput(
                    "`store`: what is not stored can be no stream, background or part of a conversation; send the whole"
                    " conversation in `input`, or leave `store` out"
                )
            answer = await constellation.ask_aside(agent, asked.conversation, asked.options)
            name, now = f"resp_{constellation.id.removeprefix('con_')}", server.runtime.clock.now_ms() // 1000
            made = {"created_at": now, "completed_at": now, "model": body.model, "conversation": None}
            return {**_NOTHING, **said, **made, **_answered(name, of_model(answer), "completed")}
        follow = None
        if body.previous_response_id is not None:
            if session_id is not None:
                raise InvalidInput("`conversation` and `previous_response_id` exclude each other; send one of them")
            follow = partial(_continues, constellation, named, asked, body.previous_response_id)
        extras = extras.model_copy(update={"x_session_id": session_id})
        pending = await begin(request, constellation, named, caller, asked, extras, follow)
    if body.stream:
        return ResponseStream(pending, said)
    if not body.background:
        await ended(named.home, pending.turn_id, math.inf)
    return await _object(pending, said)


async def _continues(constellation: Constellation, named: NamedModel, asked: Asked, response_id: str) -> str | None:
    """Return the session of a response that another one follows; a fork of it, if there are later messages.

    Raises:
        NotFound: there is no such response.
        InvalidInput: it waits for results of calls.
    """
    _c, turn_id, _step = _parsed(response_id)
    view = await constellation.turn(turn_id)
    if view.approvals and not asked.results:
        approval = await constellation.approvals.get(view.approvals[0])
        if "client" in approval.request:
            raise InvalidInput(f"`input`: the call {approval.id} of {response_id} has no result; send it")
    newest = (
        []
        if named.is_group or view.session_id is None or asked.results
        else await constellation.messages(named.owner.id, limit=1, session_id=view.session_id)
    )
    if newest and view.session_id is not None and view.messages and newest[0].id != view.messages[-1].id:
        fork = await constellation.sessions.fork(named.owner.id, view.session_id, view.messages[-1].id, title=None)
        return fork.id
    return view.session_id


def _parsed(response_id: str) -> tuple[str, str, int]:
    """Return what an id names: constellation, turn, and the step after which the response begins.

    Raises:
        NotFound: it is another id.
    """
    found = _ID.fullmatch(response_id)
    if found is None:
        raise NotFound(f"there is no response {response_id!r}")
    return f"con_{found[1]}", f"turn_{found[2]}", int(found[3] or 0)


async def _found(request: Request, caller: Principal, response_id: str) -> PendingAnswer:
    """Return a response of a constellation that the caller reaches.

    Raises:
        NotFound: there is none with this id, or it was deleted.
    """
    c, turn_id, step = _parsed(response_id)
    server: ServerState = request.app.state.server
    home, row = Access(server, caller, c), await server.accounts.constellation_for(caller, c)
    async with home.use() as constellation:
        view = await constellation.turn(turn_id)
        if view.started_at is not None and not view.messages and view.group_id is None:
            raise NotFound(f"there is no response {response_id!r}")
        kind, owner_id = ("agent", view.agent_id) if view.group_id is None else ("group", view.group_id)
        owner = await (constellation.roster if view.group_id is None else constellation.groups).get(owner_id or "")
        named = NamedModel(home=home, owner=owner, model=f"{kind}:{row.name}/{owner.name}")
    return PendingAnswer(named=named, turn_id=turn_id, base_url=str(request.base_url), after_step=step)


@router.get("/responses/{response_id}")
async def get_response(
    response_id: str,
    request: Request,
    caller: MayRead,
    stream: Annotated[bool, Query(description="Its events as a stream.")] = False,
    starting_after: Annotated[int, Query(description="Only events with larger sequence numbers.")] = -1,
) -> object:
    """Show a response as it is now, or with `stream` its events."""
    pending = await _found(request, caller, response_id)
    if stream:
        return ResponseStream(pending, {}, starting_after)
    return await _object(pending, {})


@router.post("/responses/{response_id}/cancel")
async def cancel_response(response_id: str, request: Request, caller: MayChat) -> object:
    """Cancel a response: its turn, if that has not ended; return the response."""
    pending = await _found(request, caller, response_id)
    async with pending.named.home.use() as constellation:
        if await constellation.cancel(pending.turn_id):
            await constellation.wait(pending.turn_id)
    return await _object(pending, {})


@router.delete("/responses/{response_id}")
async def delete_response(response_id: str, request: Request, caller: MayDelete) -> object:
    """Delete a response: cancel its turn, and take its messages out of the conversation and every search."""
    pending = await _found(request, caller, response_id)
    async with pending.named.home.use() as constellation:
        await constellation.discard(pending.turn_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _object(pending: PendingAnswer, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response as it is now; `said` are fields of its request."""
    reply, error = None, None
    async with pending.named.home.use() as constellation:
        view = await constellation.turn(pending.turn_id)
        c, t = constellation.id.removeprefix("con_"), view.id.removeprefix("turn_")
        try:
            reply = await reply_of(constellation, pending, view)
        except TurnFailed as failed:
            error = None if view.status is TurnStatus.CANCELLED else {"code": "server_error", "message": failed.message}
    name = f"resp_{c}{t}_{pending.after_step}" if pending.after_step else f"resp_{c}{t}"
    status = "failed" if error else _STATUS.get(view.status, "in_progress")
    if reply is not None and reply.calls:
        status = "completed"
    is_done = status not in ("queued", "in_progress")
    metadata = (view.messages[0].source_metadata if view.messages else None) or {}
    return {
        **_NOTHING,
        "metadata": metadata,
        **said,
        "created_at": unix_ms(view.created_at) // 1000,
        "completed_at": unix_ms(view.ended_at) // 1000 if view.ended_at and status == "completed" else None,
        "model": pending.named.model,
        "conversation": None if view.session_id is None else {"id": view.session_id},
        **_answered(name, reply if is_done or view.approvals else None, status),
        "error": error,
    }


def _answered(name: str, reply: Reply | None, status: str) -> dict[str, Any]:
    """Return the fields of a response that say what was answered."""
    cut = None if reply is None else _CUT.get(reply.finish)
    used = None if reply is None else reply.usage
    return {
        "id": name,
        "object": "response",
        "status": "incomplete" if cut and status == "completed" else status,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "output": [] if reply is None else _output(name, reply),
        "usage": used
        and {
            "input_tokens": used.input_tokens,
            "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": used.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.input_tokens + used.output_tokens,
        },
    }


def _output(name: str, reply: Reply) -> list[dict[str, Any]]:
    calls = [
        {
            "id": f"fc_{call.call_id}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.call_id,
            "name": call.tool,
            "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
        }
        for call in reply.calls
    ]
    return [*([_message(name, reply.text)] if reply.text or not calls else []), *calls]


def _message(name: str, text: str, status: str = "completed") -> dict[str, Any]:
    parts = [] if status != "completed" else [_text(text)]
    return {"id": f"msg_{name[5:]}", "type": "message", "role": "assistant", "status": status, "content": parts}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseStream(AnswerStream):
    """The events of a response; those up to the number `after_number` are not sent again.

    The number of an event is made of that of the turn's event that it comes from, so it is the same in every stream.
    """

    def __init__(self, pending: PendingAnswer, said: Mapping[str, Any], after_number: int = -1) -> None:
        super().__init__(pending)
        self._said, self._after_number = said, after_number
        self._number = 0
        self._step = 0  # number of the event with which the newest step began
        self._place: dict[str, Any] = {}  # of the text, once there is some

    async def first(self, _constellation: Constellation) -> bytes:
        """Return the events that the response has begun."""
        made = await _object(self._pending, self._said)
        begun = {**made, "status": "in_progress", "completed_at": None, "output": [], "usage": None, "error": None}
        self._name = made["id"]
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        if number <= self._after_number:
            return b""
        return sent({"type": kind, "sequence_number": number, **fields}, kind)

    def encode(self, event: Event) -> bytes:
        """Return the events that an event of the turn stands for."""
        self._number = max(self._number, event.seq * EVENTS_MAX)
        piece = self.more(event)
        if event.name == "step.started":
            self._step = self._number
        if not piece:
            return b""
        if event.name == "message" and self._step <= self._after_number:
            self._number += 3  # pieces that are not stored any more were sent: the whole text comes at the end
            self._opened()
            return b""
        return self._opened() + self._event("response.output_text.delta", **self._place, delta=piece, logprobs=[])

    def _opened(self) -> bytes:
        """Return the beginning of the message, once."""
        if self._place:
            return b""
        item = _message(self._name, "", "in_progress")
        self._place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", **self._place, part=_text("")
        )

    async def last(self, _constellation: Constellation) -> bytes:
        """Return the end of the message, the calls, and the response."""
        made, pieces = await _object(self._pending, self._said), list[bytes]()
        for index, item in enumerate(made["output"]):
            if item["type"] == "message":
                pieces += [self._opened(), *self._closed(item)]
            else:
                added = {**item, "arguments": "", "status": "in_progress"}
                place = {"item_id": item["id"], "output_index": index}
                pieces += [
                    self._event("response.output_item.added", output_index=index, item=added),
                    self._event("response.function_call_arguments.delta", **place, delta=item["arguments"]),
                    self._event(
                        "response.function_call_arguments.done", **place, arguments=item["arguments"], name=item["name"]
                    ),
                ]
            pieces.append(self._event("response.output_item.done", output_index=index, item=item))
        status = {"cancelled": "failed", "in_progress": "completed"}.get(made["status"], made["status"])
        return b"".join([*pieces, self._event(f"response.{status}", response=made)])

    def _closed(self, item: Mapping[str, Any]) -> list[bytes]:
        [part], rest = item["content"], b""
        if self._step > self._after_number and part["text"].startswith(self._text):
            more = part["text"].removeprefix(self._text)
            rest = self._event("response.output_text.delta", **self._place, delta=more, logprobs=[]) if more else b""
        text = {"text": part["text"], "logprobs": []}
        return [
            rest,
            self._event("response.output_text.done", **self._place, **text),
            self._event("response.content_part.done", **self._place, part=part),
        ]
