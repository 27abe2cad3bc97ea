"""Anthropic's messages, spoken by a server on loopback from a script.

Source: Anthropic API reference, "Create a Message", "Streaming Messages" and "Errors".
"""

from __future__ import annotations

from pattern_core.messages import Part, Reasoning, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.models.providers.encoding import ANTHROPIC, REDACTED, proof_of
from pattern_core.testing import wire

_STOP = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "other": "pause_turn",
}
PING: dict[str, object] = {"type": "ping"}


def replies(reply: ModelReply) -> wire.Play:
    """Return the stream that makes a client see `reply`."""
    counted = reply.usage
    before = {
        "input_tokens": counted.input_tokens - counted.cached_tokens - counted.cache_write_tokens,
        "cache_creation_input_tokens": counted.cache_write_tokens,
        "cache_read_input_tokens": counted.cached_tokens,
        "output_tokens": 1,
    }
    message = {"id": "msg_scripted", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    datas: list[dict[str, object]] = [
        {"type": "message_start", "message": {**message, "usage": before}},
        PING,
    ]
    for index, part in enumerate(reply.parts):
        datas += _block(part, index)
    ending: dict[str, object] = {
        "type": "message_delta",
        "delta": {"stop_reason": _STOP[reply.finish_reason], "stop_sequence": None},
        "usage": {
            "output_tokens": counted.output_tokens,
            "output_tokens_details": {"thinking_tokens": counted.reasoning_tokens},
        },
    }
    return wire.events(*datas, ending, {"type": "message_stop"}, names=True)


def refuses(status: int, message: str, *, kind: str = "api_error", headers: dict[str, str] | None = None) -> wire.Play:
    """Return an error body with its status; `headers` may hold `retry-after`."""
    return wire.document({"type": "error", "error": {"type": kind, "message": message}}, status=status, headers=headers)


def _problem(request: wire.WireRequest) -> str | None:
    """Return the vendor's rules: those of turns, no text is empty, results come first."""
    body = request.json()
    messages = body.get("messages")
    if "anthropic-version" not in request.headers or not isinstance(body.get("max_tokens"), int):
        return "anthropic-version: header is required; max_tokens: a number is required"
    if not isinstance(messages, list) or not messages:
        return "messages: a list is required"
    turns = []
    for index, message in enumerate(messages):
        content = message["content"]
        if not content or any(block["type"] == "text" and not block["text"].strip() for block in content):
            return f"messages.{index}: text must not be empty"
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if any(block["type"] != "tool_result" for block in content[: len(results)]):
            return f"messages.{index}: each tool_use is answered first in the next message"
        turns.append((message["role"], results, [block["id"] for block in content if block["type"] == "tool_use"]))
    return wire.disorder(turns, "assistant")


def _block(part: Part, index: int) -> list[dict[str, object]]:
    texts = wire.pieces(part)
    start: dict[str, object] = {"type": "text", "text": ""}
    deltas = [{"type": "text_delta", "text": piece} for piece in texts]
    match part:
        case Reasoning() if data := proof_of(REDACTED, part.signature):
            start, deltas = {"type": "redacted_thinking", "data": data.rpartition(" ")[2]}, []
        case Reasoning():
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in texts]
            if proof := proof_of(ANTHROPIC, part.signature):
                deltas.append({"type": "signature_delta", "signature": proof.rpartition(" ")[2]})
        case ToolCall():
            start = {"type": "tool_use", "id": part.call_id, "name": part.tool, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *texts)]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


# Clients use `base_url` `server.url`.
serve_anthropic = wire.vendor(replies, refuses, _problem, path=r"/v1/messages", keys=("authorization", "x-api-key"))
