"""OpenAI's responses, spoken by a server on loopback from a script.

Source: OpenAI API reference, "Create a model response", "Streaming events" and error bodies.
"""

from __future__ import annotations

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.models.providers.encoding import OPENAI, json_object, proof_of
from pattern_core.testing import wire
from pattern_core.testing.wire_openai import counts, refuses

_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter", "other": "of_its_own"}

_Event = dict[str, object]

_PIECES: dict[str, tuple[str, _Event]] = {  # by the type of an item: what its pieces are, and what is empty before them
    "message": ("output_text", {"content": []}),
    "reasoning": ("reasoning_summary_text", {"summary": []}),
    "function_call": ("function_call_arguments", {"arguments": ""}),
}


def replies(reply: ModelReply) -> wire.Play:
    """Return the stream that makes a client see `reply`."""
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


def _problem(request: wire.WireRequest) -> str | None:
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
    proof = json_object(proof_of(OPENAI, signature))
    return {name: value for name, value in proof.items() if name != "server"}


# Clients use `base_url` f"{server.url}/v1".
serve_responses = wire.vendor(replies, refuses, _problem, path="/v1/responses", keys=("authorization",))
