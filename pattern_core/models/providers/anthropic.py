"""Anthropic's messages.

Source: Anthropic API reference, "Create a Message" and "Streaming Messages"; prompt caching and extended thinking
guides. Compatible gateways are reached by `base_url`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pattern_core.clock import Clock, SystemClock
from pattern_core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.model import Delta, FinishReason, ModelReply, ModelRequest, OnDelta, Usage
from pattern_core.models.providers.draft import (
    CallDraft,
    Draft,
    Garbled,
    Unfinished,
    as_count,
    as_dict,
    as_str,
    loads,
)
from pattern_core.models.providers.exchange import (
    CONNECT_TIMEOUT_S,
    PLAIN_HEADERS,
    Connection,
    HttpResponse,
    Wire,
)
from pattern_core.models.providers.failures import failure, vendor_words
from pattern_core.models.providers.settings import ProviderSettings, Secret, not_configured
from pattern_core.models.providers.sse import ServerEvent
from pattern_core.models.tokens import estimate_usage

BASE_URL = "https://api.anthropic.com"

_REDACTED = "redacted_thinking:"  # before the signature of reasoning that only the vendor can read
_CACHED = {"type": "ephemeral"}
_NOTHING = "(no words)"  # the vendor accepts no empty text
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}

_Block = dict[str, object]


class AnthropicProvider:
    """A provider of kind "anthropic". `omit` names fields of the body that a gateway does not accept."""

    def __init__(
        self,
        name: str,
        api_key: Secret,
        base_url: str | None = None,
        *,
        omit: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._api_key = api_key
        self._base_url = base_url or BASE_URL
        self._omit = frozenset(omit)
        self._connection = Connection(name, self._base_url, api_key, clock or SystemClock(), self._load)

    @classmethod
    def from_settings(cls, name: str, settings: ProviderSettings) -> AnthropicProvider:
        """The provider that `settings` describe.

        Raises:
            ModelNotConfigured: there is neither a key nor another server's address.
        """
        if not settings.api_key and settings.base_url is None:
            raise not_configured(name)
        return cls(name, settings.api_key or Secret("none"), settings.base_url, omit=settings.omit)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Ask once, streaming; an empty delta is a sign of life, such as a ping.

        Raises:
            ModelError: every failure, translated.
        """
        body = {name: value for name, value in encode(request).items() if name not in self._omit}
        return await self._connection.converse(body, MessageDecoder(request, self.name), on_delta)

    async def aclose(self) -> None:
        """Close the connections to the vendor."""
        await self._connection.aclose()

    def _load(self) -> Wire:
        import anthropic
        import httpx2

        headers = dict(PLAIN_HEADERS)
        if self._base_url != BASE_URL:
            # Gateways made for earlier versions of the vendor's client look for the key here.
            headers["x-api-key"] = self._api_key.reveal()
        client = anthropic.AsyncAnthropic(
            api_key=self._api_key.reveal(),
            base_url=self._base_url,
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            default_headers=headers,
            open_telemetry=False,  # else the environment decides whether prompts leave by that way
        )

        @asynccontextmanager
        async def post(body: dict[str, object]) -> AsyncIterator[HttpResponse]:
            # The body is in the vendor's form already; `extra_body` spares it a second, slow walk through the types.
            create = client.messages.with_streaming_response.create
            async with create(max_tokens=1, messages=[], model="", stream=True, extra_body=body) as response:
                yield response.http_response

        return Wire(
            post=post,
            errors=(anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError),
            timeouts=(anthropic.APITimeoutError, httpx2.TimeoutException),
            undecodable=(httpx2.DecodingError, ValueError),
            statuses=(anthropic.APIStatusError,),
            close=client.close,
        )


def encode(request: ModelRequest) -> dict[str, object]:
    """The body of the request.

    Marks for the vendor's prompt cache end the first system part, the last one, and the conversation before the tail:
    instructions stay cached when memory changes, and all of it while only messages are added. Temperature and the like
    are sent only if set, as newer models do not take them; there is no seed.
    """
    system: list[_Block] = [{"type": "text", "text": part} for part in request.system if part.strip()]
    for index in {0, len(system) - 1} if system else ():
        system[index]["cache_control"] = _CACHED
    body: dict[str, object] = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "messages": _encode_messages(request.messages, request.tail),
        "stream": True,
    }
    if system:
        body["system"] = system
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in request.tools
        ]
    optional = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_sequences": list(request.stop) or None,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    return body | dict(request.extra)


def _encode_messages(messages: Sequence[Message], tail: Sequence[str]) -> list[_Block]:
    """Turns of alternating roles, beginning and ending with the user's; results before words in each of them."""
    turns: list[tuple[str, list[_Block]]] = [("user", [])]
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts if (block := _encode_part(part, message.role))]
        if role == turns[-1][0]:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, blocks))
    if turns[-1][0] != "user":
        turns.append(("user", []))
    ending: list[_Block] = [{"type": "text", "text": part} for part in tail if part.strip()]
    for role, blocks in turns:
        if role == "user":
            blocks.sort(key=lambda block: block["type"] != "tool_result")
            if not blocks and not (ending and blocks is turns[-1][1]):
                blocks.append({"type": "text", "text": _NOTHING})
    if turns[-1][1]:
        turns[-1][1][-1]["cache_control"] = _CACHED
    turns[-1][1].extend(ending)
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _encode_part(part: Part, role: str) -> _Block | None:
    match part:
        case Text(text=text):
            if not text.strip():
                return None
            # This format has one system prompt, at the start; what the system says later is marked as its words.
            return {"type": "text", "text": f"<system>\n{text}\n</system>" if role == "system" else text}
        case Reasoning(text=text, signature=signature):
            if signature is None:
                return None  # another vendor's thoughts; unsigned ones are refused
            if signature.startswith(_REDACTED):
                return {"type": "redacted_thinking", "data": signature.removeprefix(_REDACTED)}
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCall():
            # Invalid arguments cannot be replayed; the result tells what was wrong with them.
            return {"type": "tool_use", "id": _id(part.call_id), "name": part.tool, "input": dict(part.arguments)}
        case ToolResult():
            result: _Block = {"type": "tool_result", "tool_use_id": _id(part.call_id), "content": part.content}
            return {**result, "is_error": True} if part.is_error else result


def _id(call_id: str) -> str:
    """The id in the characters that the vendor allows; ids may come from another vendor's model."""
    return _NOT_IN_ID.sub("_", call_id)


class MessageDecoder:
    """Events of a message into a reply. `input_tokens` counts cached tokens too; the vendor counts them apart."""

    def __init__(self, request: ModelRequest, provider: str) -> None:
        self._request = request
        self._provider = provider
        self._draft = Draft(request)
        self._calls: dict[int, CallDraft] = {}
        self._counts: dict[str, int] = {}
        self._stop_reason: str | None = None
        self._message_id = ""
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """True after `message_stop`."""
        return self._is_done

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Take one event; kinds that are not known are skipped, as the vendor asks.

        Raises:
            Garbled: its data is no JSON object, or speaks of a block that never began.
            ModelError: it is an error message.
        """
        data = event.data.strip()
        if not data or event.event == "ping":
            return []
        body = loads(data)
        match as_str(body.get("type")) or event.event:
            case "error":
                words, code = vendor_words(body)
                raise failure(self._provider, None, words, code=code)
            case "message_start":
                message = as_dict(body.get("message"))
                self._message_id = as_str(message.get("id"))[:200]
                self._count(message.get("usage"))
            case "content_block_start":
                return self._begin(as_count(body.get("index")), as_dict(body.get("content_block")))
            case "content_block_delta":
                return self._extend(as_count(body.get("index")), as_dict(body.get("delta")))
            case "message_delta":
                self._stop_reason = as_str(as_dict(body.get("delta")).get("stop_reason")) or self._stop_reason
                self._count(body.get("usage"))
            case "message_stop":
                self._is_done = True
        return []

    def whole(self, body: dict[str, object]) -> list[Delta]:
        """Take a message that was not streamed.

        Raises:
            Garbled: it is none.
            ModelError: it is an error message.
        """
        if body.get("type") == "error" or "error" in body:
            words, code = vendor_words(body)
            raise failure(self._provider, None, words, code=code)
        content = body.get("content")
        if not isinstance(content, list):
            raise Garbled(f"a document without content: {sorted(body)[:10]}")
        self._message_id = as_str(body.get("id"))[:200]
        self._stop_reason = as_str(body.get("stop_reason")) or "end_turn"
        self._count(body.get("usage"))
        self._is_done = True
        return [delta for index, block in enumerate(content) for delta in self._begin(index, as_dict(block))]

    def reply(self, request_id: str | None) -> ModelReply:
        """The reply.

        Raises:
            Unfinished: no stop reason came.
            Garbled: a call without a name.
        """
        if self._stop_reason is None:
            raise Unfinished
        parts = self._draft.parts()
        return ModelReply(
            parts=parts,
            finish_reason=_FINISH.get(self._stop_reason, "other"),
            usage=self._usage() or estimate_usage(self._request, parts),
            request_id=request_id or self._message_id or None,
        )

    def _begin(self, index: int | None, block: dict[str, object]) -> list[Delta]:
        match block.get("type"):
            case "text":
                self._draft.begin_words(is_reasoning=False)
                return self._draft.words(as_str(block.get("text")))
            case "thinking":
                self._draft.begin_words(is_reasoning=True)
                deltas = self._draft.words(as_str(block.get("thinking")), is_reasoning=True)
                self._draft.sign(as_str(block.get("signature")))
                return deltas
            case "redacted_thinking":
                self._draft.begin_words(is_reasoning=True)
                self._draft.sign(_REDACTED + as_str(block.get("data")))
            case "tool_use" if index is not None:
                call = self._draft.begin_call(as_str(block.get("id")), as_str(block.get("name")))
                if block.get("input"):  # empty at the start of a stream, whole in a document
                    call.arguments.append(json.dumps(block["input"]))
                self._calls[index] = call
        return []

    def _extend(self, index: int | None, delta: dict[str, object]) -> list[Delta]:
        match delta.get("type"):
            case "text_delta":
                return self._draft.words(as_str(delta.get("text")))
            case "thinking_delta":
                return self._draft.words(as_str(delta.get("thinking")), is_reasoning=True)
            case "signature_delta":
                self._draft.sign(as_str(delta.get("signature")))
            case "input_json_delta":
                call = self._calls.get(-1 if index is None else index)
                if call is None:
                    raise Garbled("arguments of a tool call that never began")
                piece = as_str(delta.get("partial_json"))
                self._draft.grow(len(piece))
                call.arguments.append(piece)
        return []

    def _count(self, usage: object) -> None:
        """Take what is counted so far; later counts replace earlier ones."""
        counts = {name: as_count(value) for name, value in as_dict(usage).items()}
        self._counts |= {name: count for name, count in counts.items() if count is not None}

    def _usage(self) -> Usage | None:
        counts = self._counts
        if "input_tokens" not in counts or "output_tokens" not in counts:
            return None
        cached = counts.get("cache_read_input_tokens", 0)
        sent = counts["input_tokens"] + counts.get("cache_creation_input_tokens", 0) + cached
        return Usage(input_tokens=sent, output_tokens=counts["output_tokens"], cached_tokens=cached)
