"""From a request in OpenAI's form to a turn, and from a turn to its answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Literal

from fastapi import Header, Request
from pydantic import BaseModel, Field

from pattern_core.approvals import ApprovalAnswer
from pattern_core.constellation import Constellation
from pattern_core.errors import Conflict, InvalidInput, PatternError
from pattern_core.events import RESTING, Event
from pattern_core.limits import KEY_CHARS_MAX
from pattern_core.messages import Image, Text, ToolCall
from pattern_core.turns.admission import DIGEST_BYTES, IncomingMessage, accepted_before
from pattern_core.turns.consent import AGREED
from pattern_core.views import StoredMessage, TurnView
from pattern_db.columns import iso
from pattern_db.enums import ApprovalStatus, Role, TurnStatus
from pattern_db.journal import approvals
from pattern_db.journal.usage import UsageSum, of_steps
from pattern_server.accounts import Principal
from pattern_server.http.routes.messages import IdempotencyKey
from pattern_server.http.sse import EventStream
from pattern_server.http.v1.asked import Asked
from pattern_server.http.v1.models import NamedModel

ORIGIN = "openai"  # of sessions and messages
# A client repeats a request by itself when its time is over: 600 s by default, three times.
STEPS_MAX = 1_000_000  # no turn has so many
REPEATED_WITHIN_S = 1_800.0

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {}}}}}

Finish = Literal["stop", "length", "content_filter", "tool_calls"]


class TurnFailed(PatternError):
    """The turn of a request to `/v1` did not complete."""

    code = "turn_failed"
    remedy = "Read the message; `pattern turn show` has the details. Send the request again once the cause is gone."


class Extras(BaseModel):
    """What a client says in headers: about repetition, and in which conversation the request belongs."""

    idempotency_key: Annotated[IdempotencyKey, Field(min_length=1, max_length=KEY_CHARS_MAX)] = None
    x_stainless_retry_count: Annotated[
        str, Field(description="Set by OpenAI's clients: how often they repeated the request.")
    ] = "0"
    x_session_id: Annotated[str | None, Field(description="The id of a session, to talk in it.")] = None
    x_openwebui_chat_id: Annotated[
        str | None, Field(description="The front end's own id of the conversation, to find its session again.")
    ] = None
    x_ephemeral: Annotated[bool, Field(description="`true`: nothing of the request is kept.")] = False


Headers = Annotated[Extras, Header()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAnswer:
    """The answer to a request: what a turn says after its step `after_step`, which called tools of the client, or from
    its beginning (0). Its events come after the event `after`.
    """

    named: NamedModel
    turn_id: str
    base_url: str
    after: int = 0
    is_new: bool = False
    after_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: its text, calls that the client answers, why it ends, and what it used."""

    text: str
    finish: Finish
    usage: UsageSum
    calls: Sequence[ToolCall] = ()


async def begin(
    request: Request,
    constellation: Constellation,
    named: NamedModel,
    caller: Principal,
    asked: Asked,
    extras: Extras,
    follow: Callable[[], Awaitable[str | None]] | None = None,
) -> PendingAnswer:
    """Return the turn of a request: the one that waits for its results, that of an earlier attempt, or a new one. For
    that `follow` finds the session, if the request says what it follows.

    Raises:
        InvalidInput: nothing new is asked, or a result is missing.
        PatternError: as `Constellation.submit`.
    """
    pending = partial(PendingAnswer, named=named, base_url=str(request.base_url))
    if results := asked.results:
        return pending(**await _continued(constellation, named, caller, results))
    words, clock = asked.words, constellation.runtime.clock
    body = blake2b(await request.body()).hexdigest()
    fingerprint = _digest(caller.sender, named.owner.id, request.url.path, body)
    incoming = IncomingMessage(
        agent_id=named.owner.id,
        content="".join(part.text for part in words if isinstance(part, Text)),
        parts=words if any(isinstance(part, Image) for part in words) else (),
        sender=caller.sender,
        idempotency_key=extras.idempotency_key,
        source=ORIGIN,
        source_metadata=asked.metadata,
        session_id=extras.x_session_id,
        policy="enqueue",
        options=asked.options,
        fingerprint=fingerprint,
    )
    is_repeated = extras.x_stainless_retry_count not in ("", "0")
    if is_repeated or extras.idempotency_key is not None:
        since = iso(clock.now_ms() - int(REPEATED_WITHIN_S * 1000)) if is_repeated else None
        known = await constellation.database.read(accepted_before, incoming, named.owner.id, since)
        if known is not None:
            return pending(turn_id=known)
    if follow is not None:
        incoming = replace(incoming, session_id=await follow())
    elif extras.x_session_id is None:
        incoming = await _placed(incoming, constellation, named, asked, extras.x_openwebui_chat_id)
    seen = constellation.events.latest
    if named.is_group:
        ticket = await constellation.submit_to_group(named.owner.id, incoming)
    else:
        ticket = await constellation.submit(incoming)
    if ticket.is_replay:
        return pending(turn_id=ticket.turn_id)
    if (telemetry := request.app.state.server.telemetry) is not None:
        telemetry.link(ticket.turn_id, request.headers.get("traceparent"))
    return pending(turn_id=ticket.turn_id, after=seen, is_new=True)


async def _placed(
    incoming: IncomingMessage, constellation: Constellation, named: NamedModel, asked: Asked, chat: str | None
) -> IncomingMessage:
    """Return the message in the session of its conversation, by the front end's id of it (`chat`) or by its beginning;
    in a new one for a conversation without an answer.
    """
    first = asked.answers[0] if asked.answers else len(asked.conversation)
    opening = [one.text for one in asked.conversation[:first]] if chat is None else ["chat", chat]
    beginning = _digest(incoming.sender, named.owner.id, *opening)
    if asked.answers or chat is not None:
        answer = asked.conversation[first].text if asked.answers else ""
        if (known := await constellation.sessions.begun_as(beginning, answer)) is not None:
            return replace(incoming, session_id=known.id)
    session = constellation.sessions.new(None, ORIGIN, beginning=beginning)
    return replace(incoming, session_id=session.id, new_session=session)


def _digest(*texts: str) -> bytes:
    return blake2b(json.dumps(texts).encode(), digest_size=DIGEST_BYTES).digest()


async def _continued(
    constellation: Constellation, named: NamedModel, caller: Principal, results: Mapping[str, str]
) -> dict[str, Any]:
    """Give a waiting turn the results of its client's calls; those that it has already are not given again. Return the
    fields of its answer.

    Raises:
        NotFound: there is no such call.
        InvalidInput: the calls are not of one turn of the model.
        Conflict: a call was closed without a result.
    """
    found = [await constellation.approvals.get(call_id) for call_id in results]
    turn_ids = {str(one.request.get("turn_id")) for one in found}
    if len(turn_ids) > 1 or any(
        "client" not in one.request or one.request["agent_id"] != named.owner.id for one in found
    ):
        raise InvalidInput("the results are not of calls of one answer of this model; send those of the last answer")
    turn_id = turn_ids.pop()
    view, seen = await constellation.turn(turn_id), constellation.events.latest
    for one in found:
        if one.status is ApprovalStatus.PENDING:
            answer = ApprovalAnswer(approve=True, by=caller.author, result=results[one.id])
            await constellation.approvals.decide(one.id, answer)
        elif one.status not in AGREED:
            raise Conflict(f"the call {one.id} was closed without a result ({one.status}); send a new message")
    after = seen if view.status is TurnStatus.WAITING else 0  # 0: the request is repeated
    return {"turn_id": turn_id, "after": after, "after_step": max(one.step or 0 for one in found)}


async def reply_of(constellation: Constellation, answer: PendingAnswer, view: TurnView) -> Reply:
    """Return the answer of a turn that has ended or waits, or that called tools of the client since. A turn that waits
    for a person says so, with a link.

    Raises:
        TurnFailed: it did not complete.
    """
    has_called = view.approvals or any(row.role is Role.TOOL for row in view.messages)
    asked = await constellation.database.read(approvals.of_turn, view.key) if has_called else []
    clients = [one for one in asked if "client" in one.request]
    step = min((one.step or 0 for one in clients if (one.step or 0) > answer.after_step), default=0)
    if not step and view.has_ended and view.status is not TurnStatus.COMPLETED:
        error: Mapping[str, Any] = view.error or {}
        raise TurnFailed(f"{error.get('message')} ({error.get('code')})", turn_id=view.id)
    calls = [one for one in clients if one.step == step]
    given = {one.request["call_id"] for one in clients if one.step == answer.after_step}
    rows = _between(view.messages, given, {one.request["call_id"] for one in calls})
    said = [view.text or ""] if view.group_id else [row.content or "" for row in rows if row.role is Role.ASSISTANT]
    for one in asked if not step else ():
        if one not in clients and one.status is ApprovalStatus.PENDING:
            link = f"{answer.base_url}api/v1/constellations/{constellation.id}/approvals/{one.id}"
            what = f"{one.request.get('tool', one.kind)}: {one.request.get('reason', '')}"
            said.append(f"I wait for a person's approval of {what}\n`pattern approvals approve {one.id}`, or {link}")
    cut_off = next((row.finish_reason for row in reversed(rows) if row.role is Role.ASSISTANT), None)
    finish: Finish = "tool_calls" if calls else "stop" if cut_off is None else "length"
    usage = view.usage
    if answer.after_step or step:
        usage = await constellation.database.read(of_steps, view.key, answer.after_step, step or STEPS_MAX)
    return Reply(
        text="\n\n".join(filter(None, said)),
        finish="content_filter" if cut_off == "content_filter" and not calls else finish,
        usage=usage,
        # A call has the id of its question, which finds the turn again.
        calls=[ToolCall(call_id=one.id, tool=one.request["tool"], arguments=one.request["arguments"]) for one in calls],
    )


def _between(rows: Sequence[StoredMessage], given: Collection[str], calls: Collection[str]) -> Sequence[StoredMessage]:
    """Return a turn's messages after the results of the calls `given`, up to the one that made the `calls`."""
    results = [place for place, row in enumerate(rows) if row.role is Role.TOOL and row.tool_call_id in given]
    made = [
        place
        for place, row in enumerate(rows)
        if isinstance(row.parts, list) and any(part.get("call_id") in calls for part in row.parts)
    ]
    return rows[max(results, default=-1) + 1 : min(made, default=len(rows)) + 1]


class AnswerStream(EventStream):
    """An answer as it arrives, from the events of its turn. What was streamed of a discarded attempt stays."""

    def __init__(self, pending: PendingAnswer) -> None:
        super().__init__(pending.named.home.use, after=pending.after, turn_id=pending.turn_id, is_new=pending.is_new)
        self._pending, self._text = pending, ""
        self._has_begun = False  # the events are those of this answer
        self._message = ""  # what was streamed of the message that is not complete

    def more(self, event: Event) -> str:
        """Return the text that an event adds."""
        after_step = self._pending.after_step
        if not after_step or (event.name == "step.started" and int(str(event.data["step"])) > after_step):
            self._has_begun = True
        self.is_over = event.name in RESTING and self._has_begun
        if not self._has_begun or event.turn_id != self._pending.turn_id or self._pending.named.is_group:
            return ""
        piece = ""
        match event.name:
            case "text.delta":
                piece = str(event.data["text"])
                self._message += piece
                if self._message == piece and self._text:
                    piece = f"\n\n{piece}"
            case "step.superseded":
                self._message = ""
            case "message":
                content = str(event.data.get("content") or "")
                piece = content.removeprefix(self._message)
                if self._message and piece == content:  # it was stored without what was streamed of it
                    piece = ""
                elif not self._message and self._text and piece:
                    piece = f"\n\n{piece}"
                self._message = ""
        self._text += piece
        return piece
