"""OpenAI's chat completions, spoken by a server on loopback from a script.

Source: OpenAI API reference, "Create chat completion", its streaming chunks and error bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.testing.wire import NO_SCRIPT, Entry, Play, WireRequest, document, events, serve_wire

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "other": "eos",
}


def replies(reply: ModelReply, *, slice_chars: int = 8, usage: bool = True) -> Play:
    """Return the stream that makes a client see `reply`, its texts and arguments in pieces of `slice_chars`
    characters.
    """
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    calls = 0
    for part in reply.parts:
        deltas += _deltas(part, calls, slice_chars)
        calls += isinstance(part, ToolCall)
    chunks = [chunk(delta) for delta in deltas]
    chunks.append(chunk({}, finish_reason=_FINISH[reply.finish_reason]))
    if usage:
        counted = {
            "prompt_tokens": reply.usage.input_tokens,
            "completion_tokens": reply.usage.output_tokens,
            "total_tokens": reply.usage.input_tokens + reply.usage.output_tokens,
            "prompt_tokens_details": {
                "cached_tokens": reply.usage.cached_tokens,
                "cache_write_tokens": reply.usage.cache_write_tokens,
            },
            "completion_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
        }
        chunks.append({**chunk({}), "choices": [], "usage": counted})
    return events(*chunks, "[DONE]")


def chunk(delta: dict[str, object], *, finish_reason: str | None = None) -> dict[str, object]:
    """Return one chunk of a stream."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1_767_225_600,
        "model": "scripted",
        "choices": [choice],
    }


def refuses(status: int, message: str, *, code: str | None = None, headers: dict[str, str] | None = None) -> Play:
    """Return an error body with its status; `headers` may hold `retry-after`."""
    error = {"message": message, "type": "scripted_error", "param": None, "code": code}
    return document({"error": error}, status=status, headers=headers)


def serve_openai(script: Iterable[Entry | ModelReply] = (), otherwise: Entry | ModelReply = NO_SCRIPT) -> serve_wire:
    """Return a server that plays `script`, in which a `ModelReply` stands for the stream that makes it.

    Clients use `base_url` `f"{server.url}/v1"`.
    """
    plays = (partial(_checked, entry) for entry in script)
    return serve_wire(plays, partial(_checked, otherwise))


def _checked(entry: Entry | ModelReply, request: WireRequest) -> Play:
    """Return the vendor's own refusals of what is malformed, so that a test does not pass by an answer to nonsense."""
    if (request.method, request.path.partition("?")[0]) != ("POST", "/v1/chat/completions"):
        return refuses(404, f"there is no {request.method} {request.path}")
    if not request.headers.get("authorization", "").startswith("Bearer "):
        return refuses(401, "no key was given", code="invalid_api_key")
    body = request.json()
    problem = _problem(body.get("messages"))
    if problem or not isinstance(body.get("model"), str):
        return refuses(400, problem or "model: a string is required")
    if isinstance(entry, ModelReply):
        return replies(entry)
    return entry(request) if callable(entry) else entry


def _problem(messages: object) -> str | None:
    """Return the vendor's rule on tool calls: each is answered by the messages that follow it, and no other is."""
    if not isinstance(messages, list) or not messages:
        return "messages: a list is required"
    open_ids: set[object] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"no tool call precedes the result {message['tool_call_id']}"
            open_ids.discard(message["tool_call_id"])
            continue
        if open_ids:
            return f"tool calls without results: {sorted(map(str, open_ids))}"
        open_ids = {call["id"] for call in message.get("tool_calls", [])}
    return f"tool calls without results: {sorted(map(str, open_ids))}" if open_ids else None


def _deltas(part: Part, index: int, size: int) -> list[dict[str, object]]:
    match part:
        case Text():
            return [{"content": piece} for piece in _pieces(part.text, size)]
        case Reasoning():
            return [{"reasoning_content": piece} for piece in _pieces(part.text, size)]
        case ToolCall():
            raw = part.invalid if part.invalid is not None else json.dumps(dict(part.arguments), ensure_ascii=False)
            head: dict[str, object] = {"name": part.tool, "arguments": ""}
            first = {"index": index, "id": part.call_id, "type": "function", "function": head}
            pieces = [{"index": index, "function": {"arguments": piece}} for piece in _pieces(raw, size)]
            return [{"tool_calls": [call]} for call in (first, *pieces)]
        case _:
            raise ValueError(f"a model does not answer with {part}")


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
