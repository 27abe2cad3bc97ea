"""Chat completions: a conversation with an agent or a group, in OpenAI's form.

`system` and `developer` messages are shown as instructions of this request and are not stored. Calls that front ends
make about a conversation, for its title or tags, are answered without a trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field

from pattern_core.agents import Agent
from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, PatternError
from pattern_core.events import Event
from pattern_core.groups.group import Group
from pattern_core.ids import Ids
from pattern_core.messages import ToolCall
from pattern_core.models.model import Delta, ModelReply, TextDelta
from pattern_core.turns.admission import TurnOptions
from pattern_db.errors import DatabaseError
from pattern_db.journal.usage import UsageSum
from pattern_server.http.bodies import RequestModel
from pattern_server.http.errors import OPENAI, for_path, of_error
from pattern_server.http.routes.messages import check_tools, ended
from pattern_server.http.routing import Access, MayChat, Router, Server
from pattern_server.http.sse import EventStream, sent
from pattern_server.http.v1.asked import A_BOOL, Asked, AskedRequest, Effort
from pattern_server.http.v1.exchange import (
    STREAMED,
    AnswerStream,
    Finish,
    Headers,
    PendingAnswer,
    Reply,
    begin,
    reply_of,
)
from pattern_server.http.v1.models import NamedModel, resolve

DONE = b"data: [DONE]\n\n"
_FINISHES: Mapping[str, Finish] = {"length": "length", "content_filter": "content_filter", "tool_calls": "tool_calls"}

router = Router(base="", prefix=OPENAI, tags=["openai"])


class ChatStreamOptions(RequestModel):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ChatRequest(AskedRequest):
    """A request for a chat completion, as OpenAI describes it."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    stream_options: ChatStreamOptions | None = None
    stop: str | list[str] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning_effort: Effort | None = None
    response_format: dict[str, Any] | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logprobs: Annotated[Literal[False], A_BOOL] | None = None

    def read(self) -> Asked:
        """Return the request in the words of the core.

        Raises:
            InvalidInput: a message, a tool or the format is not one that an agent can have.
        """
        return self.asked(
            "messages",
            self.messages,
            self.response_format,
            self.reasoning_effort,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop,
            max_output_tokens=self.max_completion_tokens or self.max_tokens,
        )


@router.post("/chat/completions", responses=STREAMED)
async def complete(body: ChatRequest, request: Request, server: Server, caller: MayChat, extras: Headers) -> object:
    """Create a chat completion.

    Answer the new messages of a conversation: those behind the last one of the assistant. The agent has what came
    before in a session, which is found by the conversation's beginning or by a header. With `stream` the answer is a
    stream of chunks. A call of one of the client's `tools` ends the answer, and the turn waits for its result.
    """
    named, asked = await resolve(server, caller, body.model), body.read()
    has_usage = body.stream_options is not None and body.stream_options.include_usage
    shape = partial(Shape, model=body.model, created=server.runtime.clock.now_ms() // 1000, includes_usage=has_usage)
    async with named.home.use() as constellation:
        agent = await answering(constellation, named, asked.options)
        if named.is_ephemeral or extras.x_ephemeral or asked.is_beside:
            made = shape(Ids(server.runtime.clock, server.runtime.randomness).new("aside"))
            if body.stream:
                return AsideStream(made, named.home, asked, agent)
            answer = await constellation.ask_aside(agent, asked.conversation, asked.options)
            return made.completion(of_model(answer))
        pending = await begin(request, constellation, named, caller, asked, extras)
    made = shape(pending.turn_id)
    if body.stream:
        return ChatStream(made, pending)
    view = await ended(named.home, pending.turn_id, math.inf, after=pending.after if pending.is_new else None)
    assert view is not None  # patience has no end
    async with named.home.use() as constellation:
        reply = await reply_of(constellation, pending, view)
    headers = {"x-turn-id": view.id, "x-session-id": view.session_id or ""}
    return JSONResponse(made.completion(reply), headers=headers)


async def answering(constellation: Constellation, named: NamedModel, options: TurnOptions) -> Agent:
    """Return the agent that answers; of a group the first one.

    Raises:
        InvalidInput: a group was sent tools, has no members, or an agent's own tool has the same name.
    """
    agent = named.owner
    if isinstance(agent, Group):
        if options.tools or not agent.workers:
            raise InvalidInput("`tools`: only agents can call them; leave them out, or choose an agent as the model")
        return await constellation.roster.get(agent.workers[0].id)
    check_tools(constellation, agent, options)
    return agent


def of_model(answer: ModelReply) -> Reply:
    """Return a model's answer as that of a request."""
    used = answer.usage
    return Reply(
        text=answer.text,
        finish=_FINISHES.get(answer.finish_reason, "stop"),
        usage=UsageSum(used.input_tokens, used.output_tokens, used.cached_tokens, None, used.is_estimate),
        calls=[part for part in answer.parts if isinstance(part, ToolCall)],
    )


class Shape:
    """What is the same in all parts of an answer with a `name`."""

    def __init__(self, name: str, *, model: str, created: int, includes_usage: bool) -> None:
        self._common = {"id": f"chatcmpl-{name}", "created": created, "model": model}
        self._includes_usage = includes_usage

    def completion(self, reply: Reply) -> dict[str, object]:
        """Return a complete answer."""
        calls = _calls(reply)
        more = {"tool_calls": calls} if calls else {}
        message = {"role": "assistant", "content": reply.text or (None if calls else ""), "refusal": None, **more}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
        return {**self._common, "object": "chat.completion", "choices": [choice], "usage": _usage(reply.usage)}

    def chunk(self, delta: Mapping[str, object], finish: Finish | None = None) -> bytes:
        """Return a piece of an answer."""
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def end(self, reply: Reply, said: str) -> bytes:
        """Return the last pieces of an answer; `said` was sent."""
        pieces = []
        if reply.text.startswith(said) and (rest := reply.text.removeprefix(said)):
            pieces.append(self.chunk({"content": rest}))
        pieces += [self.chunk({"tool_calls": [{"index": at, **call}]}) for at, call in enumerate(_calls(reply))]
        pieces.append(self.chunk({}, reply.finish))
        if self._includes_usage:
            pieces.append(self._chunk([], usage=_usage(reply.usage)))
        return b"".join([*pieces, DONE])

    def _chunk(self, choices: Sequence[object], **more: object) -> bytes:
        usage = {"usage": None} if self._includes_usage else {}
        return sent({**self._common, "object": "chat.completion.chunk", "choices": choices, **usage, **more})


def _calls(reply: Reply) -> list[dict[str, object]]:
    """Return the calls for the client."""
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in reply.calls
    ]


def _usage(used: UsageSum) -> dict[str, object]:
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }


class ChunkStream(EventStream):
    """The chunks of an answer."""

    _shape: Shape

    async def first(self, _constellation: Constellation) -> bytes:
        """Return the first chunk, without text."""
        return self._shape.chunk({"role": "assistant", "content": ""})

    def broken(self, error: PatternError | DatabaseError) -> bytes:
        """Return an error as clients expect it in a stream."""
        return b"data: " + bytes(for_path(f"{OPENAI}/", of_error(error)).body) + b"\n\n" + DONE


class ChatStream(ChunkStream, AnswerStream):
    """The chunks of a turn's answer."""

    def __init__(self, shape: Shape, pending: PendingAnswer) -> None:
        super().__init__(pending)
        self.headers["x-turn-id"] = pending.turn_id
        self._shape = shape

    def encode(self, event: Event) -> bytes:
        """Return the chunk with what an event adds to the answer."""
        piece = self.more(event)
        return self._shape.chunk({"content": piece}) if piece else b""

    async def last(self, constellation: Constellation) -> bytes:
        """Return the end of the answer, or why there is none."""
        try:
            view = await constellation.turn(self._pending.turn_id)
            reply = await reply_of(constellation, self._pending, view)
        except PatternError as error:
            return self.broken(error)
        return self._shape.end(reply, self._text)


class AsideStream(ChunkStream):
    """The chunks of an answer of which nothing is kept."""

    def __init__(self, shape: Shape, home: Access, asked: Asked, agent: Agent) -> None:
        super().__init__(home.use, after=0, is_new=True)
        self._shape, self._asked, self._agent = shape, asked, agent

    async def last(self, constellation: Constellation) -> bytes:
        """Send all but the end of the answer, and return that, or why there is none."""
        said, asked = "", self._asked

        async def on_delta(delta: Delta) -> None:
            nonlocal said
            if isinstance(delta, TextDelta):
                said += delta.text
                await self._send_piece(self._shape.chunk({"content": delta.text}))

        try:
            answer = await constellation.ask_aside(self._agent, asked.conversation, asked.options, on_delta)
            return self._shape.end(of_model(answer), said)
        except PatternError as error:
            return self.broken(error)

    async def _send_coming(self, _constellation: Constellation) -> None:
        """Send nothing: there are no events."""
