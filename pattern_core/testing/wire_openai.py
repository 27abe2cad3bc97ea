"""OpenAI's chat completions, spoken by a server on loopback from a script.

Source: OpenAI API reference, "Create chat completion", its streaming chunks and error bodies.
"""

from __future__ import annotations

from pattern_core.messages import Part, Text, ToolCall
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import wire

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "other": "eos",
}


def replies(reply: ModelReply) -> wire.Play:
    """Return the stream that makes a client see `reply`."""
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    calls = 0
    for part in reply.parts:
        deltas += _deltas(part, calls)
        calls += isinstance(part, ToolCall)
    chunks = [chunk(delta) for delta in deltas]
    chunks.append(chunk({}, finish_reason=_FINISH[reply.finish_reason]))
    chunks.append({**chunk({}), "choices": [], "usage": counts(reply.usage, "prompt", "completion")})
    return wire.events(*chunks, "[DONE]")


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


def counts(usage: Usage, sent: str = "input", got: str = "output") -> dict[str, object]:
    """Return the usage as both of the vendor's formats count it: `sent` and `got` begin the names of the fields."""
    cached = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        f"{sent}_tokens": usage.input_tokens,
        f"{sent}_tokens_details": cached,
        f"{got}_tokens": usage.output_tokens,
        f"{got}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def refuses(status: int, message: str, *, code: str | None = None, headers: dict[str, str] | None = None) -> wire.Play:
    """Return an error body with its status; `headers` may hold `retry-after`."""
    error = {"message": message, "type": "scripted_error", "param": None, "code": code}
    return wire.document({"error": error}, status=status, headers=headers)


def _problem(request: wire.WireRequest) -> str | None:
    """Return the vendor's rule on tool calls: each is answered by the messages that follow it, and no other is."""
    body = request.json()
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(body.get("model"), str):
        return "messages: a list is required; model: a string is required"
    open_ids: set[object] = set()
    for message in [*messages, {"role": "end"}]:
        if message["role"] != "tool":
            if open_ids:
                return f"tool calls without results: {sorted(map(str, open_ids))}"
            open_ids = {call["id"] for call in message.get("tool_calls", [])}
        elif message["tool_call_id"] not in open_ids:
            return f"no tool call precedes the result {message['tool_call_id']}"
        else:
            open_ids.discard(message["tool_call_id"])
    return None


def _deltas(part: Part, index: int) -> list[dict[str, object]]:
    texts = wire.pieces(part)
    if not isinstance(part, ToolCall):
        return [{"content" if isinstance(part, Text) else "reasoning_content": piece} for piece in texts]
    head: dict[str, object] = {"name": part.tool, "arguments": ""}
    first = {"index": index, "id": part.call_id, "type": "function", "function": head}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in texts]
    return [{"tool_calls": [call]} for call in (first, *rest)]


# Clients use `base_url` f"{server.url}/v1".
serve_openai = wire.vendor(replies, refuses, _problem, path=r"/v1/chat/completions", keys=("authorization",))
