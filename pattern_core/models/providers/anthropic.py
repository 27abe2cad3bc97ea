"""Anthropic's models: requests, and the events of their streams. Compatible gateways are reached by `base_url`.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages"; guides "Prompt caching", "Extended
thinking", "Adaptive thinking", "Structured outputs".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pattern_core.messages import Image, Message, Note, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.model import ANY_TOOL, Delta, FinishReason, ModelRequest, Usage
from pattern_core.models.providers.draft import Decoder, Malformed
from pattern_core.models.providers.encoding import (
    ANTHROPIC,
    LOST_IMAGE,
    NOTHING,
    REDACTED,
    Encoded,
    JsonObject,
    alternating,
    closed_schema,
    image_base64,
    plain_id,
    plain_name,
    present,
    proof_of,
    system_words,
)
from pattern_core.models.providers.exchange import HttpProvider

VERSION = "2026-10-21"  # of the format. Source: the vendor's client, anthropic 2.12
CALL_ID_CHARS_MAX = 64

_CACHED = {"type": "ephemeral"}
# Models with a budget of tokens to think; later ones decide by themselves and get an effort.
# Some always think and cannot switch it off; the newest of them cannot be forced to call a tool; and thoughts of the
# newest are bound to everything before them, which the words about each call alone change, so none is sent back.
# Source: the vendor's migration guides for Fable 5.1 and Opus 5.5; where they say nothing, the worse is assumed.
_LATER = r"[a-z]+-(?:[6-9]|\d\d)(?!\d)"
_ALWAYS = re.compile(rf"claude-(?:fable|mythos|opus-5[-.][5-9](?!\d)|{_LATER})")
_UNFORCED = re.compile(rf"claude-(?:(?:fable|mythos)-5[-.][1-9](?!\d)|opus-5[-.][5-9](?!\d)|{_LATER})")
_BOUND = re.compile(rf"claude-(?:[a-z]+-5[-.][1-9](?!\d)|{_LATER})")
_THINKING: dict[str, object] = {"type": "adaptive", "display": "summarized"}
_BUDGETED = re.compile(r"claude-(?:3-7-|(?:opus|sonnet|haiku)-4(?:-[015])?(?:$|-\d{8}|-latest|@))")
# From Opus 4.7 on none accepts a temperature or the like. Names of other vendors' models say nothing of it.
_UNSAMPLED = re.compile(r"claude-(?!v?\d|instant|(?:opus|sonnet|haiku)-4(?:[-.][0-6])?(?:$|-\d{8}|-latest|@))")
_BUDGETS = {"low": 1_024, "medium": 4_096, "high": 16_384}  # tokens; 1,024 is the vendor's least


class AnthropicProvider(HttpProvider):
    """A provider of kind "anthropic"."""

    OWN_URL = "https://api.anthropic.com"

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers. Gateways made for earlier versions of the vendor's API look for the key elsewhere."""
        headers = {"anthropic-version": VERSION, "authorization": f"Bearer {key}"}
        return headers if self.base_url == self.OWN_URL else headers | {"x-api-key": key}

    def models_path(self) -> str:
        """Return where the server lists its models."""
        return "/v1/models"

    def encode(self, request: ModelRequest) -> tuple[str, dict[str, object], Decoder]:
        """Return path, body and decoder."""
        return "/v1/messages", encode(request), MessageDecoder(request, self.name)


def encode(request: ModelRequest) -> dict[str, object]:
    """Return the body of the request.

    Marks for the vendor's prompt cache, of which there may be four, end the tools, the instructions, the memory and the
    conversation: tools stay cached when instructions change, those when memory does, and all of it while only messages
    are added. Sampling parameters are sent only if set, not to newer models, which do not
    accept them, and not together with reasoning, where none do; there is no seed.
    """
    system, memory = _texts(request.system), _texts(request.memory)
    tools: list[Encoded] = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in request.tools
    ]
    for last in (*system[-1:], *memory[-1:], *tools[-1:]):
        last["cache_control"] = _CACHED
    body: dict[str, object] = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "messages": _encode_messages(request),
        "stream": True,
        "system": [*system, *memory] or None,
        "tools": tools or None,
        "stop_sequences": list(request.stop) or None,
    }
    if tools and request.force_tool is not None and not _UNFORCED.search(request.model):
        is_any = request.force_tool == ANY_TOOL
        body["tool_choice"] = {"type": "any"} if is_any else {"type": "tool", "name": request.force_tool}
    reasoning = JsonObject(_encode_reasoning(request))
    thinks = reasoning.nested("thinking").get("type") in ("enabled", "adaptive")
    if not thinks and not _UNSAMPLED.search(request.model):
        # Newer models accept only one of them.
        body |= {"top_p": request.top_p} if request.temperature is None else {"temperature": request.temperature}
    body |= reasoning
    if request.response_schema is not None:
        answer = {"type": "json_schema", "schema": closed_schema(request.response_schema)}
        body["output_config"] = {**JsonObject(body).nested("output_config"), "format": answer}
    return present(body)


def _encode_reasoning(request: ModelRequest) -> dict[str, object]:
    """Return the fields for reasoning; none if the request has none, except for models that always reason."""
    effort = request.reasoning_effort
    if _ALWAYS.search(request.model):
        level = "low" if effort == "none" else effort
        return {"thinking": _THINKING, "output_config": {"effort": level} if level else None}
    if effort is None:
        return {}
    if effort == "none" or (request.force_tool is not None and request.tools):
        return {"thinking": {"type": "disabled"}}  # the vendor allows no reasoning before a forced call
    if not _BUDGETED.search(request.model):
        return {"thinking": _THINKING, "output_config": {"effort": effort}}
    # The answer needs room in addition to its reasoning: at least half of what may come.
    budget = min(_BUDGETS[effort], request.max_output_tokens // 2)
    if budget < _BUDGETS["low"] or _has_thoughtless_calls(request):
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _has_thoughtless_calls(request: ModelRequest) -> bool:
    """Return whether the calls that were just answered came without thoughts, as forced ones and other models' do.

    Models with a budget then refuse to begin thinking before the turn is over.
    """
    last = next((message for message in reversed(request.messages) if message.role != "tool"), None)
    if last is None or last.role != "assistant" or not last.tool_calls:
        return False
    first = last.parts[0]
    return not (isinstance(first, Reasoning) and _encode_thought(first, request.model))


def _encode_messages(request: ModelRequest) -> list[Encoded]:
    def blocks_of(message: Message) -> list[Encoded]:
        blocks = [block for part in message.parts if (block := _encode_part(part, message.role, request.model))]
        while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            blocks.pop()  # the vendor refuses thoughts of which nothing came
        return blocks

    turns = alternating(request.messages, "assistant", "tool_use_id", blocks_of)
    ending = _texts(_urged(request))
    last = turns[-1][1]
    for _, blocks in turns:
        if not blocks and not (ending and blocks is last):
            blocks.append({"type": "text", "text": NOTHING})
    if last:
        last[-1]["cache_control"] = _CACHED
    last.extend(ending)
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _texts(parts: Sequence[str]) -> list[Encoded]:
    return [{"type": "text", "text": part} for part in parts if part.strip()]


def _urged(request: ModelRequest) -> list[str]:
    """Return the words that ask for a tool call, for models that cannot be made to."""
    if request.force_tool is None or not request.tools or not _UNFORCED.search(request.model):
        return []
    named = "one of your tools" if request.force_tool == ANY_TOOL else f"the tool {request.force_tool}"
    return [system_words(f"Call {named} now, before you say or do anything else.")]


def _encode_part(part: Part, role: str, model: str) -> Encoded | None:
    match part:
        case Text(text=text) | Note(text=text):
            if not text.strip():
                return None
            # This format has one system prompt, at the start; what the system says later is marked as its words.
            return {"type": "text", "text": system_words(text) if role == "system" else text}
        case Image():
            return _encode_image(part)
        case Reasoning():
            return _encode_thought(part, model)
        case ToolCall():
            # Invalid arguments cannot be replayed; the result says what was wrong with them.
            return {
                "type": "tool_use",
                "id": plain_id(part.call_id, CALL_ID_CHARS_MAX),
                "name": plain_name(part.tool),
                "input": dict(part.arguments),
            }
        case ToolResult():
            answered = plain_id(part.call_id, CALL_ID_CHARS_MAX)
            result: Encoded = {"type": "tool_result", "tool_use_id": answered, "content": part.content}
            return {**result, "is_error": True} if part.is_error else result


def _encode_thought(part: Reasoning, model: str) -> Encoded | None:
    """Return the thought as it came; None for unsigned ones and those of other models, which are refused."""
    if _BOUND.search(model):
        return None
    if data := proof_of(f"{REDACTED}{model} ", part.signature):
        return {"type": "redacted_thinking", "data": data}
    proof = proof_of(f"{ANTHROPIC}{model} ", part.signature)
    return {"type": "thinking", "thinking": part.text, "signature": proof} if proof else None


def _encode_image(image: Image) -> Encoded:
    data = image_base64(image)
    if data is not None:
        return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}
    if image.url is not None and image.url.startswith("https:"):  # the vendor fetches no others, and refuses them
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "text", "text": LOST_IMAGE}


class MessageDecoder(Decoder):
    """Events of a message into a reply. `input_tokens` counts cached tokens too; the vendor counts them apart."""

    FINISHES: ClassVar[Mapping[str, FinishReason]] = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "tool_use": "tool_calls",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "content_filter",
    }

    def __init__(self, request: ModelRequest, provider: str) -> None:
        super().__init__(request, provider)
        self._counts: dict[str, int] = {}

    def take(self, body: JsonObject, kind: str) -> list[Delta]:
        """Process one event; unknown kinds are skipped, as the vendor requires."""
        match body.text("type") or kind:
            case "error":
                raise self.failed(body)
            case "message_start":
                message = body.nested("message")
                self.keep_id(message)
                self._count(message.nested("usage"))
            case "content_block_start":
                return self._begin(body.count("index"), body.nested("content_block"))
            case "content_block_delta":
                return self._extend(body.count("index"), body.nested("delta"))
            case "message_delta":
                self.finish = body.nested("delta").text("stop_reason") or self.finish
                self._count(body.nested("usage"))
            case "message_stop":
                self.is_done = True
        return []

    def whole(self, body: JsonObject) -> list[Delta]:
        """Process a message that was not streamed."""
        if body.get("type") == "error" or "error" in body:
            raise self.failed(body)
        if not isinstance(body.get("content"), list):
            raise Malformed(f"a document without content: {sorted(body)[:10]}")
        self.keep_id(body)
        self.finish = body.text("stop_reason") or "end_turn"
        self._count(body.nested("usage"))
        return [delta for index, block in enumerate(body.listed("content")) for delta in self._begin(index, block)]

    def _begin(self, index: int | None, block: JsonObject) -> list[Delta]:
        match block.get("type"):
            case "text":
                self.draft.begin_words(is_reasoning=False)
            case "thinking":
                self.draft.begin_words(is_reasoning=True, mark=f"{ANTHROPIC}{self.request.model} ")
            case "redacted_thinking":
                self.draft.begin_words(is_reasoning=True, mark=f"{REDACTED}{self.request.model} ")
            case "tool_use" if index is not None:
                call = self.draft.begin_call(block.text("id"), block.text("name"))
                if block.get("input"):  # empty at the start of a stream, whole in a document
                    call.arguments.append(json.dumps(block["input"]))
                self.calls[index] = call
        return self._extend(index, block)

    def _extend(self, index: int | None, piece: JsonObject) -> list[Delta]:
        """Process a delta, or the initial content of a block."""
        match piece.text("type").removesuffix("_delta"):
            case "text":
                return self.draft.words(piece.text("text"))
            case "thinking" | "signature":
                deltas = self.draft.words(piece.text("thinking"), is_reasoning=True)
                self.draft.sign(piece.text("signature"))
                return deltas
            case "redacted_thinking":
                self.draft.sign(piece.text("data"))
            case "input_json":
                self.draft.extend(self.calls.get(index), piece.text("partial_json"))
        return []

    def _count(self, usage: JsonObject) -> None:
        """Store the usage so far; later counts replace earlier ones."""
        counts = self._counts
        for counted in (usage, usage.nested("output_tokens_details")):
            counts |= {name: count for name in counted if (count := counted.count(name)) is not None}
        if "input_tokens" in counts and "output_tokens" in counts:
            cached, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
            self.usage = Usage(
                input_tokens=counts["input_tokens"] + written + cached,
                output_tokens=counts["output_tokens"],
                cached_tokens=cached,
                cache_write_tokens=written,
                reasoning_tokens=counts.get("thinking_tokens", 0),
            )
