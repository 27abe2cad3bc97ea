"""Anthropic's messages, spoken by a server on loopback from a script.

Source: Anthropic API reference, "Create a Message", "Streaming Messages" and "Errors".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.models.providers.encoding import ANTHROPIC, REDACTED, proof_of
from pattern_core.testing.wire import Entry, Play, WireRequest, document, events, serve_wire

_STOP = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "other": "pause_turn",
}
PING: dict[str, object] = {"type": "ping"}
NO_SCRIPT = document(
    {"type": "error", "error": {"type": "invalid_request_error", "message": "the script is over"}}, status=400
)


def replies(reply: ModelReply, *, slice_chars: int = 8, usage: bool = True) -> Play:
    """Return the stream that makes a client see `reply`, its texts and arguments in pieces of `slice_chars`
    characters.
    """
    counted = reply.usage
    before = {
        "input_tokens": counted.input_tokens - counted.cached_tokens - counted.cache_write_tokens,
        "cache_creation_input_tokens": counted.cache_write_tokens,
        "cache_read_input_tokens": counted.cached_tokens,
        "output_tokens": 1,
    }
    message = {"id": "msg_scripted", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    datas: list[dict[str, object]] = [
        {"type": "message_start", "message": {**message, **({"usage": before} if usage else {})}},
        PING,
    ]
    for index, part in enumerate(reply.parts):
        datas += _block(part, index, slice_chars)
    ending: dict[str, object] = {
        "type": "message_delta",
        "delta": {"stop_reason": _STOP[reply.finish_reason], "stop_sequence": None},
    }
    if usage:
        details = {"thinking_tokens": counted.reasoning_tokens}
        ending["usage"] = {"output_tokens": counted.output_tokens, "output_tokens_details": details}
    return events(*datas, ending, {"type": "message_stop"}, names=True)


def refuses(status: int, message: str, *, kind: str = "api_error", headers: dict[str, str] | None = None) -> Play:
    """Return an error body with its status; `headers` may hold `retry-after`."""
    return document({"type": "error", "error": {"type": kind, "message": message}}, status=status, headers=headers)


def serve_anthropic(script: Iterable[Entry | ModelReply] = (), otherwise: Entry | ModelReply = NO_SCRIPT) -> serve_wire:
    """Return a server that plays `script`, in which a `ModelReply` stands for the stream that makes it.

    Clients use `base_url` `server.url`.
    """
    return serve_wire((partial(_checked, entry) for entry in script), partial(_checked, otherwise))


def _checked(entry: Entry | ModelReply, request: WireRequest) -> Play:
    """Return the vendor's own refusals of what is malformed, so that a test does not pass by an answer to nonsense."""
    if (request.method, request.path.partition("?")[0]) != ("POST", "/v1/messages"):
        return refuses(404, f"there is no {request.method} {request.path}", kind="not_found_error")
    if "authorization" not in request.headers and "x-api-key" not in request.headers:
        return refuses(401, "no key was given", kind="authentication_error")
    if "anthropic-version" not in request.headers:
        return refuses(400, "anthropic-version: header is required", kind="invalid_request_error")
    body = request.json()
    problem = _problem(body.get("messages"))
    if not isinstance(body.get("max_tokens"), int):
        problem = "max_tokens: a number is required"
    if problem:
        return refuses(400, problem, kind="invalid_request_error")
    if isinstance(entry, ModelReply):
        return replies(entry)
    return entry(request) if callable(entry) else entry


def _problem(messages: object) -> str | None:
    """Return the vendor's rules: roles alternate from the user's, no text is empty, each call is answered in the next
    turn.
    """
    if not isinstance(messages, list) or not messages:
        return "messages: a list is required"
    open_ids: set[object] = set()
    for index, message in enumerate(messages):
        content = message["content"]
        if message["role"] != ("assistant" if index % 2 else "user"):
            return f"messages.{index}: roles must alternate and begin with the user's"
        if not content or any(block["type"] == "text" and not block["text"].strip() for block in content):
            return f"messages.{index}: text must not be empty"
        answered = {block["tool_use_id"] for block in content if block["type"] == "tool_result"}
        if answered != open_ids or any(block["type"] != "tool_result" for block in content[: len(answered)]):
            return f"messages.{index}: each tool_use is answered first in the next message, and nothing else is"
        open_ids = {block["id"] for block in content if block["type"] == "tool_use"}
    return "the last tool_use has no tool_result" if open_ids else None


def _block(part: Part, index: int, size: int) -> list[dict[str, object]]:
    match part:
        case Text():
            start: dict[str, object] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(part.text, size)]
        case Reasoning() if data := proof_of(REDACTED, part.signature):
            start = {"type": "redacted_thinking", "data": data.rpartition(" ")[2]}
            deltas = []
        case Reasoning():
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(part.text, size)]
            if proof := proof_of(ANTHROPIC, part.signature):
                deltas.append({"type": "signature_delta", "signature": proof.rpartition(" ")[2]})
        case ToolCall():
            start = {"type": "tool_use", "id": part.call_id, "name": part.tool, "input": {}}
            raw = part.invalid if part.invalid is not None else json.dumps(dict(part.arguments), ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(raw, size)]]
        case _:
            raise ValueError(f"a model does not answer with {part}")
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
