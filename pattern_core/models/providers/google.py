"""Google's Gemini models: requests, and the chunks of their streams.

What is particular to it: a conversation is turns of alternating roles, calls need no ids and differ by their
order, thoughts are words with a mark, and a signature belongs to whatever part the thoughts led to: a call, words, or
empty words. Each is kept where it came and replayed there; the newest models refuse a call without.

Source: Gemini API reference, "Generating content"; guides "Thinking", "Thought signatures", "Structured output".
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Mapping
from functools import partial
from typing import ClassVar
from urllib.parse import quote, urlsplit

from pattern_core.messages import Image, Message, Note, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.model import ANY_TOOL, Delta, FinishReason, ModelRequest, ReasoningEffort, Usage
from pattern_core.models.providers.draft import Decoder, Malformed
from pattern_core.models.providers.encoding import (
    GOOGLE,
    LOST_IMAGE,
    NOTHING,
    Encoded,
    JsonObject,
    alternating,
    image_base64,
    plain_name,
    present,
    proof_of,
    system_words,
)
from pattern_core.models.providers.exchange import HttpProvider
from pattern_core.models.providers.failures import failure

STOP_MAX = 5  # sequences that the vendor accepts

_SEED_BITS = 31
# The vendor's own value for calls of another model or with a lost signature.
_UNSIGNED = "skip_thought_signature_validator"
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_BUDGETS = {"none": 0, "low": 1_024, "medium": 8_192, "high": 24_576}  # tokens, before version 3
_PRO_BUDGET_MIN = 128  # thoughts of the large ones cannot be turned off
_LEVELS = {"none": "minimal", "low": "low", "medium": "medium", "high": "high"}  # from version 3 on
# The model tried to call a tool and failed at the format of it: asking again helps.
_BROKEN_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})

_HAS_VERSION = re.compile(r"/v\d\w*$")


class GoogleProvider(HttpProvider):
    """A provider of kind "google". `base_url` may end in the version of the API, else it is v1beta."""

    OWN_URL = "https://generativelanguage.googleapis.com"

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers."""
        return {"x-goog-api-key": key}

    def models_path(self) -> str:
        """Return where the server lists its models, which are all asked below it."""
        return "/models" if _HAS_VERSION.search(urlsplit(self.base_url).path) else "/v1beta/models"

    def encode(self, request: ModelRequest) -> tuple[str, dict[str, object], Decoder]:
        """Return path, body and decoder."""
        model = quote(request.model.removeprefix("models/"), safe="")
        path = f"{self.models_path()}/{model}:streamGenerateContent?alt=sse"
        return path, encode(request), GeminiDecoder(request, self.name)


def encode(request: ModelRequest) -> dict[str, object]:
    """Return the body of the request; the model's name belongs to the address."""
    encode_parts = partial(_encode_parts, is_signing=_version(request.model) >= (3, 0))
    turns = alternating(request.messages, "model", "functionResponse", encode_parts)
    body: dict[str, object] = {
        "contents": [{"role": role, "parts": parts or [{"text": NOTHING}]} for role, parts in turns],
        "generationConfig": _encode_generation(request),
    }
    system = [{"text": part} for part in (*request.system, *request.memory) if part.strip()]
    if request.response_schema is not None and not _takes_schema(request):
        schema = json.dumps(dict(request.response_schema), ensure_ascii=False, sort_keys=True)
        system.append({"text": f"When you answer, answer with nothing but JSON that follows this schema: {schema}"})
    if system:
        body["systemInstruction"] = {"parts": system}
    if request.tools:
        declared = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": dict(tool.parameters)}
            for tool in request.tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
        if request.force_tool is not None:
            names = {} if request.force_tool == ANY_TOOL else {"allowedFunctionNames": [request.force_tool]}
            body["toolConfig"] = {"functionCallingConfig": {"mode": "ANY", **names}}
    return body


def _takes_schema(request: ModelRequest) -> bool:
    """Return whether the model can be held to a schema: the older ones not while they may also call tools."""
    return not request.tools or _version(request.model) >= (3, 0)


def _encode_generation(request: ModelRequest) -> dict[str, object]:
    config: dict[str, object] = {
        "maxOutputTokens": request.max_output_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "stopSequences": list(request.stop)[:STOP_MAX] or None,
        "seed": None if request.seed is None else request.seed & ((1 << _SEED_BITS) - 1),
        "thinkingConfig": _encode_thinking(request.model, request.reasoning_effort) or None,
    }
    if request.response_schema is not None and _takes_schema(request):
        config |= {"responseMimeType": "application/json", "responseJsonSchema": dict(request.response_schema)}
    return present(config)


def _encode_thinking(model: str, effort: ReasoningEffort | None) -> dict[str, object]:
    """Return how much to think; nothing for models that cannot, which refuse the field."""
    version = _version(model)
    if version < (2, 5):
        return {}
    config: dict[str, object] = {"includeThoughts": effort != "none"}
    is_pro = "-pro" in model
    if effort is None:
        return config
    if version >= (3, 0):
        return config | {"thinkingLevel": "low" if is_pro and effort == "none" else _LEVELS[effort]}
    return config | {"thinkingBudget": max(_BUDGETS[effort], _PRO_BUDGET_MIN if is_pro else 0)}


def _version(model: str) -> tuple[int, int]:
    """Return the version in the model's name; (0, 0) of models that are not Gemini."""
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _encode_parts(message: Message, *, is_signing: bool) -> list[Encoded]:
    parts = [encoded for part in message.parts if (encoded := _encode_part(part, message.role))]
    if is_signing:
        # Of calls made side by side only the first is signed.
        first = next((part for part in parts if "functionCall" in part), None)
        if first is not None and "thoughtSignature" not in first:
            first["thoughtSignature"] = _UNSIGNED
    return parts


def _encode_part(part: Part, role: str) -> Encoded | None:
    match part:
        case Text():
            proof = proof_of(GOOGLE, part.signature)
            if not part.text.strip() and proof is None:
                return None
            return {"text": system_words(part.text) if role == "system" else part.text, **_signed(proof)}
        case Note():
            return {"text": part.text}
        case Image():
            return _encode_image(part)
        case Reasoning():
            proof = proof_of(GOOGLE, part.signature)
            return None if proof is None else {"text": part.text, "thought": True, **_signed(proof)}
        case ToolCall():
            # Invalid arguments cannot be replayed; the result says what was wrong with them.
            call = {"id": part.call_id, "name": plain_name(part.tool), "args": dict(part.arguments)}
            return {"functionCall": call, **_signed(proof_of(GOOGLE, part.signature))}
        case ToolResult():
            said = {"error" if part.is_error else "output": part.content}
            return {"functionResponse": {"id": part.call_id, "name": plain_name(part.tool), "response": said}}


def _encode_image(image: Image) -> Encoded:
    data = image_base64(image)
    if data is not None:
        return {"inlineData": {"mimeType": image.media_type, "data": data}}
    if image.url is not None:
        kind = image.media_type or mimetypes.guess_type(image.url)[0] or "image/jpeg"
        return {"fileData": {"mimeType": kind, "fileUri": image.url}}
    return {"text": LOST_IMAGE}


def _signed(proof: str | None) -> dict[str, object]:
    return {} if proof is None else {"thoughtSignature": proof}


class GeminiDecoder(Decoder):
    """Chunks of generated content into a reply; only the first candidate counts, as only one is asked for.

    The format has no last chunk: the stream just ends.
    """

    FINISHES: ClassVar[Mapping[str, FinishReason]] = {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content_filter",
        "RECITATION": "content_filter",
        "BLOCKLIST": "content_filter",
        "PROHIBITED_CONTENT": "content_filter",
        "SPII": "content_filter",
        "IMAGE_SAFETY": "content_filter",
    }

    def take(self, body: JsonObject, kind: str) -> list[Delta]:
        """Process one chunk."""
        if body.get("error"):
            raise self.failed(body)
        self.keep_id(body, "responseId")
        self.usage = _usage(body.nested("usageMetadata")) or self.usage
        candidates = body.listed("candidates")
        if not candidates:
            self._refuse_blocked(body)
            return []
        candidate = candidates[0]
        parts = candidate.nested("content").listed("parts")
        deltas = [delta for part in parts for delta in self._take_part(part)]
        self.finish = candidate.text("finishReason") or self.finish
        if self.finish in _BROKEN_CALLS:
            said = candidate.text("finishMessage") or "no reason given"
            raise Malformed(f"the model broke off while it called a tool ({self.finish}: {said[:200]})")
        return deltas

    def _refuse_blocked(self, chunk: JsonObject) -> None:
        """Read a chunk without an answer: it counts tokens, or says why there is none."""
        reason = chunk.nested("promptFeedback").text("blockReason")
        if reason:
            words = f"the prompt was blocked ({reason}); change the agent's instructions or what it was shown."
            raise failure(self.provider, 400, words, code="blocked")
        if "usageMetadata" not in chunk and "responseId" not in chunk:
            raise Malformed(f"a chunk without candidates: {sorted(chunk)[:10]}")

    def _take_part(self, part: JsonObject) -> list[Delta]:
        proof = part.text("thoughtSignature")
        if isinstance(part.get("functionCall"), dict):
            called = part.nested("functionCall")
            call = self.draft.begin_call(called.text("id"), called.text("name"))
            self.draft.extend(call, json.dumps(called.get("args") or {}, ensure_ascii=False))
            self.draft.grow(len(proof))
            call.signature = GOOGLE + proof if proof else None
            return []
        is_thought = part.get("thought") is True
        if proof:
            # What is signed is a part of its own: words before it were not, and are replayed without.
            self.draft.begin_words(is_reasoning=is_thought, mark=GOOGLE)
        deltas = self.draft.words(part.text("text"), is_reasoning=is_thought)
        if proof:
            self.draft.sign(proof, is_reasoning=is_thought)
        return deltas


def _usage(data: JsonObject) -> Usage | None:
    sent = data.count("promptTokenCount")
    if sent is None:
        return None
    thoughts = data.count("thoughtsTokenCount") or 0
    return Usage(
        input_tokens=sent + (data.count("toolUsePromptTokenCount") or 0),
        output_tokens=(data.count("candidatesTokenCount") or 0) + thoughts,
        cached_tokens=data.count("cachedContentTokenCount") or 0,
        reasoning_tokens=thoughts,
    )
