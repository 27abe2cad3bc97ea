"""A reply while it arrives: pieces of text, reasoning and tool calls, kept in the order in which they began; pure."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.errors import ModelError, ModelUnreachable
from pattern_core.models.model import (
    Delta,
    FinishReason,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    Usage,
    made_up_call_id,
)
from pattern_core.models.providers.encoding import JsonObject, valid_unicode
from pattern_core.models.providers.failures import failure, vendor_words
from pattern_core.models.tokens import estimate_usage
from pattern_db.columns import check_depth, refuse_constant

REPLY_CHARS_MAX = 4_000_000  # far above any model's output; a stream beyond it has gone wrong
CALLS_MAX = 256


class Malformed(Exception):
    """What came breaks the vendor's format; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """A server-sent event; `event` is "" where the stream names none. Bytes that are not UTF-8 became U+FFFD."""

    event: str
    data: str


@dataclass(slots=True)
class _Words:
    """Text or reasoning; if a character is split over two pieces, its first half waits for the second."""

    is_reasoning: bool
    mark: str = ""  # the vendor of the signature
    signature: str = ""
    pieces: list[str] = field(default_factory=list)
    utf16: IncrementalDecoder = field(default_factory=partial(getincrementaldecoder("utf-16-le"), "replace"))

    def add(self, piece: str) -> str:
        """Add a piece; return the part of the text that is complete now, which may be empty."""
        whole = self.utf16.decode(piece.encode("utf-16-le", "surrogatepass"))
        self.pieces.append(whole)
        return whole

    def end(self) -> str:
        """Return the complete text; half a character at its end becomes U+FFFD."""
        self.pieces.append(self.utf16.decode(b"", final=True))
        return "".join(self.pieces)


@dataclass(slots=True)
class CallDraft:
    """A tool call while it arrives; the vendor's decoder fills in what comes."""

    call_id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)  # pieces of JSON text
    signature: str | None = None


class ReplyDraft:
    """Collects a reply. All text that comes out is free of halves of characters.

    What adds to it raises Malformed where the reply becomes longer than `REPLY_CHARS_MAX`.
    """

    def __init__(self, request: ModelRequest) -> None:
        self.is_held = False  # text has come that may not be shown yet
        self._request = request
        self._segments: list[_Words | CallDraft] = []
        self._calls = 0
        self._chars = 0

    @property
    def is_empty(self) -> bool:
        """True while nothing of the reply has begun."""
        return not (self._segments or self.is_held)

    @property
    def has_calls(self) -> bool:
        """True once a tool call has begun."""
        return self._calls > 0

    def begin_words(self, *, is_reasoning: bool, mark: str = "") -> None:
        """Begin a new part; further pieces of its kind belong to it until it is signed. Its signature begins with
        `mark`.
        """
        self._segments.append(_Words(is_reasoning, mark=mark))

    def words(self, piece: str, *, is_reasoning: bool = False) -> list[Delta]:
        """Add a piece of text or reasoning; return what can be shown now."""
        if not piece:
            return []
        last = self._segments[-1] if self._segments else None
        if not isinstance(last, _Words) or last.is_reasoning != is_reasoning or last.signature:
            last = _Words(is_reasoning)
            self._segments.append(last)
        self.grow(len(piece))
        whole = last.add(piece)
        if not whole:
            return []
        return [ReasoningDelta(text=whole) if is_reasoning else TextDelta(text=whole)]

    def think(self) -> None:
        """Make reasoning of all words so far."""
        for segment in self._segments:
            if isinstance(segment, _Words):
                segment.is_reasoning = True

    def sign(self, signature: str, *, is_reasoning: bool = True) -> None:
        """Add (a piece of) the vendor's signature to the words of this kind that came last."""
        for segment in reversed(self._segments):
            if isinstance(segment, _Words) and segment.is_reasoning == is_reasoning:
                self.grow(len(signature))
                segment.signature += signature
                return

    def sign_thoughts(self, signature: str, last: str) -> None:
        """Give all reasoning one signature, and what came last of it `last`; an empty one is made where there is
        none.
        """
        thoughts = [part for part in self._segments if isinstance(part, _Words) and part.is_reasoning]
        if not thoughts:
            thoughts = [_Words(is_reasoning=True)]
            self._segments.insert(0, thoughts[0])
        for thought in thoughts:
            thought.signature = signature
        thoughts[-1].signature = last
        self.grow(sum(len(thought.signature) for thought in thoughts))

    def begin_call(self, call_id: str = "", tool: str = "") -> CallDraft:
        """Begin a tool call after all that came before.

        Raises:
            Malformed: there are more than `CALLS_MAX`.
        """
        self._calls += 1
        if self._calls > CALLS_MAX:
            raise Malformed(f"it called more than {CALLS_MAX} tools at once")
        call = CallDraft(call_id, tool)
        self._segments.append(call)
        return call

    def extend(self, call: CallDraft | None, piece: str) -> None:
        """Add a piece of a call's arguments; raise Malformed if there is no such call."""
        if call is None:
            raise Malformed("arguments of a tool call that never began")
        self.grow(len(piece))
        call.arguments.append(piece)

    def grow(self, chars: int) -> None:
        """Count `chars` characters more."""
        self._chars += chars
        if self._chars > REPLY_CHARS_MAX:
            raise Malformed(f"it is longer than {REPLY_CHARS_MAX} characters")

    def parts(self, *, is_cut: bool = False) -> tuple[Part, ...]:
        """Return the parts so far; ids that did not come are made up, empty text is left out.

        With `is_cut` the answer ended for lack of room: a call at its end without any arguments yet is invalid, since
        it may not be complete.

        Raises:
            Malformed: a tool call came without the tool's name.
        """
        made: list[Part] = []
        earlier = self._request.messages if self.has_calls else ()
        seen_ids = {call.call_id for message in earlier for call in message.tool_calls}
        calls = 0
        for segment in self._segments:
            if isinstance(segment, CallDraft):
                call = self._call(segment, calls, seen_ids)
                if is_cut and segment is self._segments[-1] and not "".join(segment.arguments).strip():
                    call = replace(call, invalid="")
                seen_ids.add(call.call_id)
                made.append(call)
                calls += 1
                continue
            text = segment.end()
            signature = valid_unicode(segment.mark + segment.signature) if segment.signature else None
            if text or signature:
                kind = Reasoning if segment.is_reasoning else Text
                made.append(kind(text=text, signature=signature))
        return tuple(made)

    def _call(self, draft: CallDraft, index: int, seen_ids: set[str]) -> ToolCall:
        if not draft.tool:
            raise Malformed("it called a tool without a name")
        call_id = valid_unicode(draft.call_id)
        if not call_id or call_id in seen_ids:  # results are matched by these ids, and some servers start again
            call_id = made_up_call_id(self._request, index)
        made = tool_call(call_id, valid_unicode(draft.tool), "".join(draft.arguments))
        return made if draft.signature is None else replace(made, signature=valid_unicode(draft.signature))


class Decoder(ABC):
    """Turns a vendor's events into a reply; pure. Each format implements `take`.

    `finish` is the vendor's own word for why the answer ended, "" until it has; `FINISHES` translates it. `is_done`
    becomes True once the vendor has said that nothing more comes, or with an answer in one piece.
    """

    FINISHES: ClassVar[Mapping[str, FinishReason]]

    def __init__(self, request: ModelRequest, provider: str) -> None:
        self.request = request
        self.provider = provider
        self.draft = ReplyDraft(request)
        self.finish = ""
        self.usage: Usage | None = None
        self.reply_id = ""
        self.is_done = False
        self.calls: dict[int | None, CallDraft] = {}  # by the vendor's numbers for them

    def end(self) -> list[Delta]:
        """Process the end of the answer's text; return what can be shown now. May be called again."""
        return []

    @abstractmethod
    def take(self, body: JsonObject, kind: str) -> list[Delta]:
        """Process an event's object with the name `kind` in the stream; return what can be shown now.

        Raises:
            Malformed: it is not in the vendor's format.
            ModelError: it is an error message.
        """

    def whole(self, body: JsonObject) -> list[Delta]:
        """Process an answer that arrived as one JSON object instead of a stream; raises as `take`."""
        self.is_done = True
        return self.take(body, "")

    def feed(self, event: StreamEvent) -> list[Delta]:
        """Process the next event; return what can be shown now. Events after the end are skipped. Raises as `take`."""
        data = event.data.strip()
        if data.startswith("[DONE]"):
            self.is_done = True
            return self.end()
        if data and not self.is_done:
            return self.take(loads(data), event.event)
        return []

    def reply(self, request_id: str | None) -> ModelReply:
        """Return the reply, at the end.

        Raises:
            ModelUnreachable: the vendor did not end it.
            Malformed: a call without a name.
        """
        if not self.finish:
            raise ModelUnreachable(f"{self.provider} ended its answer before it was complete.", provider=self.provider)
        finish = self.FINISHES.get(self.finish, "other")
        parts = self.draft.parts(is_cut=finish == "length")
        return ModelReply(
            parts=parts,
            finish_reason="tool_calls" if finish == "stop" and self.draft.has_calls else finish,
            usage=self.usage or estimate_usage(self.request, parts),
            request_id=request_id or self.reply_id or None,
        )

    def keep_id(self, body: JsonObject, field: str = "id") -> None:
        """Keep the reply's id, if there is none yet."""
        self.reply_id = self.reply_id or body.text(field)[:200]

    def failed(self, body: Mapping[str, object]) -> ModelError:
        """Return the error for an error message in the middle of an answer."""
        words, code = vendor_words(body)
        return failure(self.provider, None, words, code="" if code == "error" else code)


def loads(text: str) -> JsonObject:
    """Return the JSON object of an event.

    Raises:
        Malformed: it is none.
    """
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return JsonObject(value)
    raise Malformed(f"not a JSON object: {valid_unicode(text[:80])!r}")


def tool_call(call_id: str, tool: str, arguments: str) -> ToolCall:
    """Return the call with its arguments parsed; no text at all means no arguments.

    What is not a JSON object (RFC 8259, so neither NaN nor Infinity) or nests too deep ends up in `invalid` as it came.
    """
    raw = valid_unicode(arguments)
    try:
        parsed: object = json.loads(raw, parse_constant=refuse_constant, parse_float=_finite) if raw.strip() else {}
        if "\\ud" in raw.lower():
            # Escaped halves of a character pass the parser and would later fail wherever text becomes UTF-8.
            parsed = json.loads(valid_unicode(json.dumps(parsed, ensure_ascii=False)))
        check_depth(parsed)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return ToolCall(call_id=call_id, tool=tool, invalid=raw)
    return ToolCall(call_id=call_id, tool=tool, arguments=parsed)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is beyond what JSON readers agree on")
    return value
