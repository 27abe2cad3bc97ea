"""OpenAI's two formats, chat completions and responses, spoken by a server on loopback from a script.

Source: OpenAI API reference, "Create chat completion", "Create a model response", their streams and error bodies.
"""

from __future__ import annotations

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply, Usage
from pattern_core.models.providers.encoding import OPENAI, JsonObject, proof_of
from pattern_core.testing import wire

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "other": "eos",
}


_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter", "other": "of_its_own"}

_Event = dict[str, object]

_PIECES: dict[str, tuple[str, _Event]] = {  # by the type of an item: what its pieces are, and what is empty before them
    "message": ("output_text", {"content": []}),
    "reasoning": ("reasoning_summary_text", {"summary": []}),
    "function_call": ("function_call_arguments", {"arguments": ""}),
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


def response_replies(reply: ModelReply) -> wire.Play:
    """Return the stream of a response that makes a client see `reply`."""
    datas: list[_Event] = [{"type": "response.created", "response": {"id": "resp_scripted", "status": "in_progress"}}]
    for place, part in enumerate(reply.parts):
        datas += _item(part, place)
    return wire.events(*datas, ending(reply), names=True)


def ending(reply: ModelReply) -> _Event:
    """Return the last event, with the response's items whole."""
    reason = _REASONS.get(reply.finish_reason)
    response: _Event = {
        "id": "resp_scripted",
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "output": [_whole(part, place) for place, part in enumerate(reply.parts)],
        "usage": counts(reply.usage),
    }
    return {"type": f"response.{response['status']}", "response": response}


def _response_problem(request: wire.WireRequest) -> str | None:
    """Return the vendor's rules: each call has its output, and reasoning is followed by what came of it."""
    body = request.json()
    items = body.get("input")
    if not isinstance(items, list) or not items or not isinstance(body.get("model"), str):
        return "input: a list is required; model: a string is required"
    if body.get("store") is not False:
        return "store: this server keeps nothing"
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    outputs = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    if calls != outputs:
        return f"no tool output found for function calls: {sorted(calls ^ outputs)}"
    for item, following in zip(items, [*items[1:], {"type": "nothing"}], strict=True):
        answers = following["type"] in ("function_call", "reasoning") or following.get("role") == "assistant"
        if item["type"] == "reasoning" and not answers:
            return f"reasoning {item['id']} was provided without its required following item"
    return None


def _item(part: Part, place: int) -> list[_Event]:
    """Return the events of one item: it begins, its pieces come, it is whole."""
    whole = _whole(part, place)
    kind, empty = _PIECES[str(whole["type"])]
    return [
        {"type": "response.output_item.added", "output_index": place, "item": whole | empty},
        *({"type": f"response.{kind}.delta", "output_index": place, "delta": piece} for piece in wire.pieces(part)),
        {"type": f"response.{kind}.done", "output_index": place},
        {"type": "response.output_item.done", "output_index": place, "item": whole},
    ]


def _whole(part: Part, place: int) -> _Event:
    match part:
        case Text():
            content = [{"type": "output_text", "text": part.text, "annotations": []}]
            message = {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": content}
            return message | _proof(part.signature)
        case Reasoning():
            summary = [{"type": "summary_text", "text": part.text}]
            return {"type": "reasoning", "id": f"rs_{place}", "summary": summary, **_proof(part.signature)}
        case ToolCall():
            called = {"call_id": part.call_id, "name": part.tool, "arguments": "".join(wire.pieces(part))}
            return {"type": "function_call", "id": f"fc_{place}", **called}
    raise ValueError(f"a model does not answer with {part}")


def _proof(signature: str | None) -> _Event:
    proof = JsonObject.parse(proof_of(OPENAI, signature))
    return {name: value for name, value in proof.items() if name != "server"}


# Clients use `base_url` f"{server.url}/v1".
serve_openai = wire.vendor(replies, refuses, _problem, path=r"/v1/chat/completions", keys=("authorization",))
serve_responses = wire.vendor(
    response_replies, refuses, _response_problem, path="/v1/responses", keys=("authorization",)
)
