"""OpenAI's models, and the many servers that speak its chat completions (Ollama, llama.cpp, vLLM, OpenRouter …).

What compatible servers do differently and is accepted here: no usage, no `[DONE]`, no `finish_reason` before
`[DONE]`, tool calls without id or index or in one piece, arguments as objects, `null` for empty, errors within a 200,
thoughts in fields of their own, which some want back with the calls that came of them (DeepSeek's guide "Thinking
mode", OpenRouter's guide "Reasoning tokens").

Source: OpenAI API reference, "Create chat completion" and its streaming chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

from pattern_core.ids import Clock
from pattern_core.messages import Image, Message, Note, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.errors import ModelError, ModelUnreachable
from pattern_core.models.model import ANY_TOOL, Delta, FinishReason, ModelReply, ModelRequest
from pattern_core.models.providers.draft import CallDraft, Decoder, Malformed, loads
from pattern_core.models.providers.encoding import (
    CHAT,
    LOST_IMAGE,
    Encoded,
    JsonObject,
    answer_by,
    function_of,
    image_url,
    nine_id,
    plain_name,
    present,
    proof_by,
    result_words,
    short_id,
    system_words,
)
from pattern_core.models.providers.exchange import HttpProvider, host_of
from pattern_core.models.providers.openai_responses import (
    ResponseDecoder,
    effort_of,
    encode_response,
    is_reasoning,
    needs_responses,
    sampling,
    usage_of,
)
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.models.providers.spoken import SpokenText, as_text, neutral
from pattern_core.models.tokens import estimate_tools

_OWN_ID_CHARS_MAX, _ID_CHARS_MAX = 40, 64  # OpenAI's bound, and one for other servers, which often have longer ids
_SEED_BITS = 31  # some compatible servers read the seed into a 32-bit integer
_OWN_HOSTS = ("api.openai.com", "openai.azure.com")
_VENDOR_HOSTS = ("googleapis.com", "anthropic.com")  # which speak this format too
_THINKING_HOSTS = ("deepseek.com", "moonshot.ai", "moonshot.cn")
_MISTRAL = re.compile(r"mi[sx]tral|magistral|codestral|devstral|voxtral", re.IGNORECASE)
_QUESTION = "# Message"
_FEW_TOOLS_TOKENS_MAX = 500  # of all tools; more are too many to be read again at each edit of memory
_DETAILS = "reasoning_details"  # OpenRouter's: words and proofs of the vendor behind it
_GROWING = ("text", "summary", "data", "signature")  # fields of a detail that come in pieces
_THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What sets a server of this format apart.

    `is_own` for OpenAI's own (and Azure's): its newer models refuse `max_tokens`, and its system messages may be
    anywhere. `is_open` for those that may run open models: templates and their control tokens show through.
    `wants_thoughts` for those that refuse calls without the thoughts that led to them.
    """

    name: str  # of the provider
    is_own: bool = False
    is_open: bool = False
    wants_thoughts: bool = False

    @classmethod
    def at(cls, name: str, base_url: str) -> Server:
        """Return the server at an address."""
        host = host_of(base_url)
        return cls(
            name=name,
            is_own=_is_of(host, _OWN_HOSTS),
            is_open=not _is_of(host, (*_OWN_HOSTS, *_VENDOR_HOSTS)),
            wants_thoughts=_is_of(host, _THINKING_HOSTS),
        )


class OpenAIProvider(HttpProvider):
    """A provider of kind "openai"; with an address of another server the key may be missing.

    OpenAI's own server is asked in responses, whatever the settings say, where it accepts a model's questions in no
    other format.
    """

    OWN_URL = "https://api.openai.com/v1"

    def __init__(self, name: str, settings: ProviderSettings, *, clock: Clock | None = None) -> None:
        super().__init__(name, settings, clock=clock)
        self._server = Server.at(name, self.base_url)

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers; only OpenAI's own server gets the account."""
        return {"authorization": f"Bearer {key}", **(self.settings.account if self._server.is_own else {})}

    def encode(self, request: ModelRequest) -> tuple[str, dict[str, object], Decoder]:
        """Return path, body and decoder, in the format that the server accepts."""
        if self.settings.api == "responses" or (self._server.is_own and needs_responses(request.model)):
            body = encode_response(request, self.name)
            return "/responses", neutral(body) if self._server.is_open else body, ResponseDecoder(request, self.name)
        decoder = ChatDecoder(request, self.name, is_open=self._server.is_open)
        return "/chat/completions", encode(request, self._server), decoder

    async def window(self, model: str) -> int:
        """Return the window that the server states in one of several places; who runs it has chosen it.

        Sources: vLLM, "OpenAI-Compatible Server" (`max_model_len`); Ollama, "API: Show Model Information";
        llama.cpp, tools/server/README.md, "GET /props"; LM Studio, "REST API v0".
        """
        if self._server.is_own:
            return 0
        root = self.base_url.removesuffix("/v1")
        places = (
            ("GET", f"{self.base_url}/models", None),
            ("POST", f"{root}/api/show", {"model": model}),
            ("GET", f"{root}/props", None),
            ("GET", f"{root}/api/v0/models/{quote(model, safe='')}", None),
        )
        for method, url, body in places:
            try:
                async with self.exchange(method, url, body) as answer:
                    found = _window_in(loads(await answer.rest()), model)
            except ModelUnreachable:
                raise
            except ModelError:  # another kind of server
                continue
            if found:
                return found
        return 0


def _window_in(said: JsonObject, model: str) -> int:
    """Return the window that a server's answer states; 0 if none."""
    listed = [one for one in said.listed("data") if one.get("id") == model]
    shown = said.nested("model_info")
    trained = [shown.count(name) for name in shown if name.endswith(".context_length")]
    chosen = re.search(r"^num_ctx\s+(\d+)", said.text("parameters"), re.MULTILINE)
    stated = (
        *(one.count("max_model_len") for one in listed),
        int(chosen[1]) if chosen else 0,
        *trained,
        said.nested("default_generation_settings").count("n_ctx"),
        said.count("loaded_context_length"),
        said.count("max_context_length"),
    )
    return next(filter(None, stated), 0)


def encode(request: ModelRequest, server: Server) -> Encoded:
    """Return the body of the request."""
    system, memory = request.system, request.memory
    if not server.is_own and estimate_tools(request.tools) <= _FEW_TOOLS_TOKENS_MAX:
        # Templates of open models know one system message. Small models treat memory in a user message as the
        # person's words, and follow the guide to tools best after it; the agent's instructions come first.
        system, memory = [*system[:1], *memory, *system[1:]], ()
    messages: list[Encoded] = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    if memory:
        # Those templates show the tools behind the system message, so many tools stay cached where memory is not in it.
        text = "\n\n".join(memory if server.is_own else (*memory, _QUESTION))
        messages.append({"role": "system" if server.is_own else "user", "content": text})
    for message in request.messages:
        messages += _encode_message(message, request.model, server)
    tools: list[Encoded] = [{"type": "function", "function": function_of(tool)} for tool in request.tools]
    if server.is_open:
        messages, tools = neutral(messages), neutral(tools)
        if request.tool_calls in ("text", "none"):
            messages, tools = as_text(messages, tools, request.force_tool), []
    if not server.is_own:
        messages = _folded(messages)
    body: Encoded = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens" if server.is_own else "max_tokens": request.max_output_tokens,
        "tools": tools or None,
        "stop": None if is_reasoning(request.model) else list(request.stop) or None,
        "reasoning_effort": effort_of(request),
        "seed": None if request.seed is None else request.seed & ((1 << _SEED_BITS) - 1),
        **sampling(request),
    }
    if tools and request.force_tool is not None:
        named = {"type": "function", "function": {"name": request.force_tool}}
        body["tool_choice"] = "required" if request.force_tool == ANY_TOOL else named
    if request.response_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": answer_by(request.response_schema)}
    return present(body)


def _is_of(host: str, domains: Sequence[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _folded(messages: Sequence[Encoded]) -> list[Encoded]:
    """Return the conversation as the templates of open models know it.

    They raise at a system message that is not the first one, and many at two of one role in a row. Calls and their
    results stay between as they are.
    """
    made: list[Encoded] = []
    for index, message in enumerate(messages):
        said = message
        if index and message["role"] == "system":
            said = {"role": "user", "content": system_words(str(message["content"]))}
        last = made[-1] if made else {}
        if said["role"] == last.get("role") and said["role"] != "tool" and not {*last, *said} - {"role", "content"}:
            made[-1] = {"role": said["role"], "content": _joined(last["content"], said["content"])}
        else:
            made.append(said)
    return made


def _joined(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(text for text in (first, second) if text)
    return [*_listed(first), *_listed(second)]


def _listed(content: object) -> list[object]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _encode_message(message: Message, model: str, server: Server) -> Sequence[Encoded]:
    if message.role == "tool":
        return [
            {"role": "tool", "tool_call_id": _id(part.call_id, model, server), "content": result_words(part)}
            for part in message.parts
            if isinstance(part, ToolResult)
        ]
    if message.role != "assistant":
        return [{"role": message.role, "content": _encode_content(message)}]
    encoded: Encoded = {"role": "assistant", "content": message.text or None}
    if message.tool_calls:
        encoded["tool_calls"] = [_encode_call(call, model, server) for call in message.tool_calls]
        encoded |= _encode_thoughts(message, server)
    elif not message.text:
        return []  # nothing but reasoning, which this format has no place for
    return [encoded]


def _encode_content(message: Message) -> str | list[Encoded]:
    """Return words as a string, which every server accepts; a list of parts only where there are images."""
    if not message.images:
        return "".join(part.text for part in message.parts if isinstance(part, Text | Note))
    content: list[Encoded] = []
    for part in message.parts:
        match part:
            case Text() | Note():
                content.append({"type": "text", "text": part.text})
            case Image() if (url := image_url(part)) is not None:
                content.append({"type": "image_url", "image_url": {"url": url}})
            case Image():
                content.append({"type": "text", "text": LOST_IMAGE})
    return content


def _encode_call(call: ToolCall, model: str, server: Server) -> Encoded:
    # Invalid arguments are not replayed: servers parse them again and fail; the tool's result says what was wrong.
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    function = {"name": plain_name(call.tool), "arguments": arguments}
    encoded: Encoded = {"id": _id(call.call_id, model, server), "type": "function", "function": function}
    extra = proof_by(server.name, CHAT, call.signature)
    return {**encoded, "extra_content": extra} if extra else encoded


def _encode_thoughts(message: Message, server: Server) -> Encoded:
    """Return the thoughts that led to calls, in the fields in which this server sent them; others get none."""
    fields = JsonObject({_THOUGHTS[0]: ""} if server.wants_thoughts else {})
    for part in message.parts:
        if not isinstance(part, Reasoning) or not (proof := proof_by(server.name, CHAT, part.signature)):
            continue
        field = proof.text("field")
        if field in _THOUGHTS:
            fields[field] = fields.text(field) + part.text
        if isinstance(details := proof.get(_DETAILS), list):
            fields[_DETAILS] = details
    return fields


def _id(call_id: str, model: str, server: Server) -> str:
    if server.is_own:
        return short_id(call_id, _OWN_ID_CHARS_MAX)
    return nine_id(call_id) if _MISTRAL.search(model) else short_id(call_id, _ID_CHARS_MAX)


class ChatDecoder(Decoder):
    """Chunks of a chat completion into a reply; only the first choice counts, as only one is asked for."""

    FINISHES: ClassVar[Mapping[str, FinishReason]] = {
        "stop": "stop",
        "tool_calls": "tool_calls",
        "function_call": "tool_calls",
        "length": "length",
        "content_filter": "content_filter",
    }

    def __init__(self, request: ModelRequest, provider: str, *, is_open: bool = False) -> None:
        super().__init__(request, provider)
        self._text = SpokenText(self.draft, request) if is_open else None
        self._last_call: CallDraft | None = None
        self._thought_field = ""  # in which the server sends thoughts
        self._details: list[JsonObject] = []

    def take(self, body: JsonObject, kind: str) -> list[Delta]:
        """Process one chunk, or the whole completion."""
        if kind == "error" and not body.get("error"):
            raise self.failed({"error": body})
        if body.get("error") or body.get("object") == "error":
            raise self.failed(body)
        self.keep_id(body)
        self.usage = usage_of(body.nested("usage"), "prompt", "completion") or self.usage
        if not isinstance(body.get("choices"), list):
            if "usage" in body or "id" in body:
                return []
            raise Malformed(f"a chunk without choices: {sorted(body)[:10]}")
        choices = body.listed("choices")
        if not choices:
            return []
        choice = choices[0]
        if choice.get("error") or choice.get("finish_reason") == "error":
            raise self.failed(choice if choice.get("error") else {"message": "the server broke its answer off"})
        deltas = self._take_delta(choice.nested("message" if self.is_done else "delta"))
        self.finish = choice.text("finish_reason") or self.finish
        if self._text and self._text.is_over:  # the rest is ignored
            self.finish, self.is_done = "stop", True
        return deltas + self.end() if self.finish else deltas

    def end(self) -> list[Delta]:
        """Process the end of the text, which may contain calls."""
        return self._text.end() if self._text else []

    def reply(self, request_id: str | None) -> ModelReply:
        """Return the reply; some servers send `[DONE]` without a finish reason."""
        if not self.finish and self.is_done:
            if self.draft.is_empty:
                raise Malformed("the stream ended without an answer")
            self.finish = "stop"
        self._sign_thoughts()
        return super().reply(request_id)

    def _take_delta(self, delta: JsonObject) -> list[Delta]:
        thoughts = {field: said for field in _THOUGHTS if isinstance(said := delta.get(field), str)}
        self._thought_field = self._thought_field or next(iter(thoughts), "")
        self._take_details(delta.listed(_DETAILS))
        thinking = [part for part in delta.listed("content") if part.get("type") == "thinking"]  # Mistral's server
        thought = next(filter(None, thoughts.values()), "") or "".join(_words(part, "thinking") for part in thinking)
        deltas = self.draft.words(thought, is_reasoning=True)
        words = _words(delta, "content")
        deltas += self._text.feed(words) if self._text else self.draft.words(words)
        deltas += self.draft.words(delta.text("refusal"))
        for call in delta.listed("tool_calls"):
            self._take_call(call)
        return deltas

    def _take_call(self, piece: JsonObject) -> None:
        function = piece.nested("function")
        call_id, name = piece.text("id"), function.text("name")
        index = piece.count("index")
        call = self._last_call if index is None else self.calls.get(index)
        # Some servers give every call the index 0 or none at all; another id with a name is another call then.
        if call is None or (name and call.tool and call_id and call.call_id != call_id) or (index is None and name):
            call = self.draft.begin_call()
        if index is not None:
            self.calls[index] = call
        self._last_call = call
        call.call_id = call.call_id or call_id
        call.tool = call.tool or name
        if extra := piece.nested("extra_content"):  # Google's compatible server asks for it back
            call.signature = CHAT + json.dumps({"server": self.provider, **extra})
            self.draft.grow(len(call.signature))
        arguments = function.get("arguments")
        text = json.dumps(arguments) if isinstance(arguments, dict | list) else function.text("arguments")
        self.draft.extend(call, text)

    def _take_details(self, pieces: Sequence[JsonObject]) -> None:
        """Collect them as they come; pieces of one detail (equal index and type) become one again."""
        for piece in pieces:
            detail = JsonObject(present(piece))
            if not detail:
                continue
            self.draft.grow(1 + sum(len(value) for value in detail.values() if isinstance(value, str)))
            last = self._details[-1] if self._details else JsonObject()
            if any(detail.get(key) != last.get(key) for key in ("index", "type")):
                self._details.append(detail)
                continue
            grown = {key: last.text(key) + detail.text(key) for key in _GROWING if key in detail}
            last |= detail | grown

    def _sign_thoughts(self) -> None:
        """Keep with the thoughts that led to calls in which form the server sent them: some want them back."""
        if not self.draft.has_calls or not (self._thought_field or self._details):
            return
        proof = {"server": self.provider, "field": self._thought_field}
        last = {**proof, _DETAILS: self._details} if self._details else proof
        self.draft.sign_thoughts(CHAT + json.dumps(proof), CHAT + json.dumps(last))


def _words(said: JsonObject, name: str) -> str:
    """Return the words of a field, which is a string, or in some servers a list of parts."""
    return said.text(name) or "".join(part.text("text") for part in said.listed(name))
