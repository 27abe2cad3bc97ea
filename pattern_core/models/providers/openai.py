"""OpenAI's chat completions, and the many servers that speak them (Ollama, llama.cpp, vLLM, OpenRouter …).

Source: OpenAI API reference, "Create chat completion" and its streaming chunks. What compatible servers do differently
and is put up with here: no usage, no `[DONE]`, no `finish_reason` before `[DONE]`, tool calls without id or index or in
one piece, arguments as objects, `null` for empty, reasoning as `reasoning_content` or `reasoning`, errors within a 200.
The other format of the vendor's own server is in `openai_responses.py`; the provider here asks in either.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from pattern_core.clock import Clock, SystemClock
from pattern_core.messages import Image, Message, Text, ToolCall, ToolResult
from pattern_core.models.model import ANY_TOOL, Delta, FinishReason, ModelReply, ModelRequest, OnDelta, Usage
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
from pattern_core.models.providers.exchange import CONNECT_TIMEOUT_S, PLAIN_HEADERS, Connection, HttpResponse, Wire
from pattern_core.models.providers.failures import failure, vendor_words
from pattern_core.models.providers.openai_responses import ResponseDecoder, encode_response
from pattern_core.models.providers.pictures import LOST, url_of
from pattern_core.models.providers.schemas import is_strict
from pattern_core.models.providers.settings import OpenAIFormat, ProviderSettings, Secret, not_configured
from pattern_core.models.providers.signatures import CHAT, kept, marked, proof_of
from pattern_core.models.providers.sse import ServerEvent
from pattern_core.models.tokens import estimate_usage

BASE_URL = "https://api.openai.com/v1"

_SEED_BITS = 31  # some compatible servers read the seed into a 32-bit integer
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


class OpenAIProvider:
    """A provider of kind "openai".

    `base_url` None is OpenAI's own; with another one the key may be missing. `omit` names fields of the body that a
    server does not accept, such as `seed` or `stream_options`. `api` is the format in which it asks.
    """

    def __init__(
        self,
        name: str,
        api_key: Secret | None,
        base_url: str | None = None,
        *,
        omit: Sequence[str] = (),
        api: OpenAIFormat = "chat",
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._api = api
        self._api_key = api_key
        self._base_url = base_url or BASE_URL
        self._omit = frozenset(omit)
        self._connection = Connection(name, self._base_url, api_key, clock or SystemClock(), self._load)

    @classmethod
    def from_settings(cls, name: str, settings: ProviderSettings) -> OpenAIProvider:
        """The provider that `settings` describe.

        Raises:
            ModelNotConfigured: there is neither a key nor another server's address.
        """
        if not settings.api_key and settings.base_url is None:
            raise not_configured(name)
        return cls(name, settings.api_key, settings.base_url, omit=settings.omit, api=settings.api)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Ask once, streaming; an empty delta is a sign of life, such as a piece of a tool call's arguments.

        Raises:
            ModelError: every failure, translated.
        """
        decoder: ChatDecoder | ResponseDecoder
        if self._api == "responses":
            body, decoder = encode_response(request), ResponseDecoder(request, self.name)
        else:
            body, decoder = encode(request, is_openai=self._base_url == BASE_URL), ChatDecoder(request, self.name)
        kept = {name: value for name, value in body.items() if name not in self._omit}
        return await self._connection.converse(kept, decoder, on_delta)

    async def aclose(self) -> None:
        """Close the connections to the vendor."""
        await self._connection.aclose()

    def _load(self) -> Wire:
        import httpx2
        import openai

        client = openai.AsyncOpenAI(
            api_key=self._api_key.reveal() if self._api_key else "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            default_headers=PLAIN_HEADERS,
        )
        if self._base_url != BASE_URL:
            # The vendor's client takes these from the environment; they are no business of another server.
            client.organization = client.project = None

        @asynccontextmanager
        async def post(body: dict[str, object]) -> AsyncIterator[HttpResponse]:
            # The body is in the vendor's form already; `extra_body` spares it a second, slow walk through the types.
            if self._api == "responses":
                respond = client.responses.with_streaming_response.create
                async with respond(model="", input="", stream=True, extra_body=body) as response:
                    yield response.http_response
                return
            create = client.chat.completions.with_streaming_response.create
            async with create(model="", messages=[], stream=True, extra_body=body) as response:
                yield response.http_response

        return Wire(
            post=post,
            errors=(openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError),
            timeouts=(openai.APITimeoutError, httpx2.TimeoutException),
            undecodable=(httpx2.DecodingError, ValueError),
            statuses=(openai.APIStatusError,),
            close=client.close,
        )


def encode(request: ModelRequest, *, is_openai: bool) -> dict[str, object]:
    """The body of the request; `is_openai` for OpenAI's own server, whose newer models refuse `max_tokens`."""
    messages: list[dict[str, object]] = []
    if request.system:
        messages.append({"role": "system", "content": "\n\n".join(request.system)})
    for message in request.messages:
        messages += _encode_message(message)
    _add_tail(messages, "\n\n".join(request.tail), is_openai=is_openai)
    body: dict[str, object] = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens" if is_openai else "max_tokens": request.max_output_tokens,
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in request.tools
        ]
        if request.force_tool is not None:
            named = {"type": "function", "function": {"name": request.force_tool}}
            body["tool_choice"] = "required" if request.force_tool == ANY_TOOL else named
    if request.response_schema is not None:
        schema = dict(request.response_schema)
        answer = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": answer}
    optional = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "reasoning_effort": request.reasoning_effort,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    if request.seed is not None:
        body["seed"] = request.seed & ((1 << _SEED_BITS) - 1)
    return body | dict(request.extra)


def _add_tail(messages: list[dict[str, object]], tail: str, *, is_openai: bool) -> None:
    """Put what is said about this call alone at the end.

    Many a model's template knows a system message only at the beginning, and no two messages of one role in a row: for
    other servers than OpenAI's own it becomes part of what the user said last.
    """
    if not tail:
        return
    last = messages[-1] if messages else {}
    content = last.get("content")
    if is_openai:
        messages.append({"role": "system", "content": tail})
    elif last.get("role") == "user" and isinstance(content, str):
        messages[-1] = {**last, "content": f"{content}\n\n{tail}"}
    elif last.get("role") == "user" and isinstance(content, list):
        messages[-1] = {**last, "content": [*content, {"type": "text", "text": tail}]}
    else:
        messages.append({"role": "user", "content": tail})


def _encode_message(message: Message) -> Iterable[dict[str, object]]:
    if message.role == "tool":
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        return [
            # The format has no mark for errors, so the words must say it.
            {"role": "tool", "tool_call_id": part.call_id, "content": f"{'Error: ' * part.is_error}{part.content}"}
            for part in results
        ]
    if message.role != "assistant":
        return [{"role": message.role, "content": _encode_content(message)}]
    encoded: dict[str, object] = {"role": "assistant", "content": message.text or None}
    if message.tool_calls:
        encoded["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    elif not message.text:
        return []  # nothing but reasoning, which this format has no place for
    return [encoded]


def _encode_content(message: Message) -> str | list[dict[str, object]]:
    """Words as a string, which every server takes; a list of parts only where there are images."""
    if not message.images:
        return message.text
    content: list[dict[str, object]] = []
    for part in message.parts:
        match part:
            case Text():
                content.append({"type": "text", "text": part.text})
            case Image() if (url := url_of(part)) is not None:
                content.append({"type": "image_url", "image_url": {"url": url}})
            case Image():
                content.append({"type": "text", "text": LOST})
    return content


def _encode_call(call: ToolCall) -> dict[str, object]:
    # Invalid arguments are not replayed: servers parse them again and fail; the tool's result tells what was wrong.
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    function = {"name": call.tool, "arguments": arguments}
    encoded: dict[str, object] = {"id": call.call_id, "type": "function", "function": function}
    proof = proof_of(CHAT, call.signature)
    return encoded if proof is None else {**encoded, "extra_content": kept(proof)}


class ChatDecoder:
    """Chunks of a chat completion into a reply; only the first choice counts, as only one is asked for."""

    def __init__(self, request: ModelRequest, provider: str) -> None:
        self._request = request
        self._provider = provider
        self._draft = Draft(request)
        self._calls: dict[int, CallDraft] = {}
        self._last_call: CallDraft | None = None
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._completion_id = ""
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """True after `[DONE]`."""
        return self._is_done

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Take one chunk.

        Raises:
            Garbled: it is no chunk of a chat completion.
            ModelError: it is an error message.
        """
        data = event.data.strip()
        if not data:
            return []
        if data.startswith("[DONE]"):
            self._is_done = True
            return []
        return self._take(loads(data), "delta")

    def whole(self, body: dict[str, object]) -> list[Delta]:
        """Take a completion that was not streamed.

        Raises:
            Garbled: it is none.
            ModelError: it is an error message.
        """
        deltas = self._take(body, "message")
        self._is_done = True
        return deltas

    def reply(self, request_id: str | None) -> ModelReply:
        """The reply.

        Raises:
            Unfinished: neither a finish reason nor `[DONE]` came.
            Garbled: nothing came before `[DONE]`, or a call without a name.
        """
        parts = self._draft.parts()
        if self._finish is None:
            if not self._is_done:
                raise Unfinished
            if self._draft.is_empty:
                raise Garbled("the stream ended without an answer")
        finish = _FINISH.get(self._finish or "stop", "other")
        if finish == "stop" and self._draft.has_calls:
            finish = "tool_calls"  # many compatible servers say "stop" after calls
        usage = self._usage or estimate_usage(self._request, parts)
        return ModelReply(
            parts=parts, finish_reason=finish, usage=usage, request_id=request_id or self._completion_id or None
        )

    def _take(self, chunk: dict[str, object], field: str) -> list[Delta]:
        if chunk.get("error"):
            words, code = vendor_words(chunk)
            raise failure(self._provider, None, words, code=code)
        self._completion_id = self._completion_id or as_str(chunk.get("id"))[:200]
        self._usage = _usage(as_dict(chunk.get("usage"))) or self._usage
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            if "usage" in chunk or "id" in chunk:
                return []
            raise Garbled(f"a chunk without choices: {sorted(chunk)[:10]}")
        if not choices:
            return []
        choice = as_dict(choices[0])
        deltas = self._take_delta(as_dict(choice.get(field)))
        self._finish = as_str(choice.get("finish_reason")) or self._finish
        return deltas

    def _take_delta(self, delta: Mapping[str, object]) -> list[Delta]:
        thought = as_str(delta.get("reasoning_content")) or as_str(delta.get("reasoning"))
        deltas = self._draft.words(thought, is_reasoning=True)
        deltas += self._draft.words(_content(delta.get("content")))
        deltas += self._draft.words(as_str(delta.get("refusal")))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            self._take_call(as_dict(call))
        return deltas

    def _take_call(self, piece: dict[str, object]) -> None:
        function = as_dict(piece.get("function"))
        call_id, name = as_str(piece.get("id")), as_str(function.get("name"))
        index = as_count(piece.get("index"))
        call = self._last_call if index is None else self._calls.get(index)
        # Some servers give every call the index 0 or none at all; another id with a name is another call then.
        if call is None or (name and call.tool and call_id and call.call_id != call_id) or (index is None and name):
            call = self._draft.begin_call()
        if index is not None:
            self._calls[index] = call
        self._last_call = call
        call.call_id = call.call_id or call_id
        call.tool = call.tool or name
        if extra := as_dict(piece.get("extra_content")):  # Google's compatible server asks for it back
            proof = json.dumps(extra)
            self._draft.grow(len(proof))
            call.signature = marked(CHAT, proof)
        arguments = function.get("arguments")
        text = json.dumps(arguments) if isinstance(arguments, dict | list) else as_str(arguments)
        self._draft.grow(len(text))
        call.arguments.append(text)


def _content(value: object) -> str:
    """The words of `content`, which is a string, or in some servers a list of parts."""
    if isinstance(value, list):
        return "".join(as_str(as_dict(part).get("text")) for part in value)
    return as_str(value)


def _usage(data: dict[str, object]) -> Usage | None:
    sent, got = as_count(data.get("prompt_tokens")), as_count(data.get("completion_tokens"))
    if sent is None or got is None:
        return None
    details = as_dict(data.get("prompt_tokens_details"))
    cached = as_count(details.get("cached_tokens")) or as_count(data.get("prompt_cache_hit_tokens")) or 0
    return Usage(
        input_tokens=sent,
        output_tokens=got,
        cached_tokens=cached,
        cache_write_tokens=as_count(details.get("cache_write_tokens")) or 0,
        reasoning_tokens=as_count(as_dict(data.get("completion_tokens_details")).get("reasoning_tokens")) or 0,
    )
