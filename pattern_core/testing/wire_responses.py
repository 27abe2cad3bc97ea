"""OpenAI's responses, spoken by a server on loopback from a script.

Source: OpenAI API reference, "Create a model response", "Streaming events" and error bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.models.providers.encoding import OPENAI, json_object, proof_of
from pattern_core.testing.wire import NO_SCRIPT, Entry, Play, WireRequest, events, serve_wire
from pattern_core.testing.wire_openai import refuses

_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter", "other": "of_its_own"}

_Event = dict[str, object]


def replies(reply: ModelReply, *, slice_chars: int = 8, usage: bool = True) -> Play:
    """Return the stream that makes a client see `reply`, its texts and arguments in pieces of `slice_chars`
    characters.
    """
    datas: list[_Event] = [{"type": "response.created", "response": {"id": "resp_scripted", "status": "in_progress"}}]
    for place, part in enumerate(reply.parts):
        datas += _item(part, place, slice_chars)
    return events(*datas, ending(reply, usage=usage), names=True)


def ending(reply: ModelReply, *, usage: bool = True) -> _Event:
    """Return the last event, with the response's items whole."""
    reason = _REASONS.get(reply.finish_reason)
    counted = reply.usage
    response: _Event = {
        "id": "resp_scripted",
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "output": [_whole(part, place) for place, part in enumerate(reply.parts)],
    }
    if usage:
        response["usage"] = {
            "input_tokens": counted.input_tokens,
            "input_tokens_details": {
                "cached_tokens": counted.cached_tokens,
                "cache_write_tokens": counted.cache_write_tokens,
            },
            "output_tokens": counted.output_tokens,
            "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
            "total_tokens": counted.input_tokens + counted.output_tokens,
        }
    return {"type": f"response.{response['status']}", "response": response}


def serve_responses(script: Iterable[Entry | ModelReply] = (), otherwise: Entry | ModelReply = NO_SCRIPT) -> serve_wire:
    """Return a server that plays `script`, in which a `ModelReply` stands for the stream that makes it.

    Clients use `base_url` `f"{server.url}/v1"`.
    """
    return serve_wire((partial(_checked, entry) for entry in script), partial(_checked, otherwise))


def _checked(entry: Entry | ModelReply, request: WireRequest) -> Play:
    """Return the vendor's own refusals of what is malformed, so that a test does not pass by an answer to nonsense."""
    if (request.method, request.path.partition("?")[0]) != ("POST", "/v1/responses"):
        return refuses(404, f"there is no {request.method} {request.path}")
    if not request.headers.get("authorization", "").startswith("Bearer "):
        return refuses(401, "no key was given", code="invalid_api_key")
    body = request.json()
    problem = _problem(body.get("input"))
    if body.get("store") is not False:
        problem = "store: this server keeps nothing"
    if problem or not isinstance(body.get("model"), str):
        return refuses(400, problem or "model: a string is required")
    if isinstance(entry, ModelReply):
        return replies(entry)
    return entry(request) if callable(entry) else entry


def _problem(items: object) -> str | None:
    """Return the vendor's rules: each call has its output, and reasoning is followed by what came of it."""
    if not isinstance(items, list) or not items:
        return "input: a list is required"
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    outputs = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    if calls != outputs:
        return f"no tool output found for function calls: {sorted(calls ^ outputs)}"
    for item, following in zip(items, [*items[1:], {"type": "nothing"}], strict=True):
        answers = following["type"] in ("function_call", "reasoning") or following.get("role") == "assistant"
        if item["type"] == "reasoning" and not answers:
            return f"reasoning {item['id']} was provided without its required following item"
    return None


def _item(part: Part, place: int, size: int) -> list[_Event]:
    """Return the events of one item: it begins, its pieces come, it is whole."""
    whole = _whole(part, place)
    match part:
        case Text():
            begun: _Event = {**whole, "content": []}
            kind, text = "output_text", part.text
        case Reasoning():
            begun = {"type": "reasoning", "id": whole["id"], "summary": []}
            kind, text = "reasoning_summary_text", part.text
        case ToolCall():
            begun = {**whole, "arguments": ""}
            kind, text = "function_call_arguments", str(whole["arguments"])
        case _:
            raise ValueError(f"a model does not answer with {part}")
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [
        {"type": "response.output_item.added", "output_index": place, "item": begun},
        *({"type": f"response.{kind}.delta", "output_index": place, "delta": piece} for piece in pieces),
        {"type": f"response.{kind}.done", "output_index": place},
        {"type": "response.output_item.done", "output_index": place, "item": whole},
    ]


def _whole(part: Part, place: int) -> _Event:
    match part:
        case Text():
            content = [{"type": "output_text", "text": part.text, "annotations": []}]
            phase = json_object(proof_of(OPENAI, part.signature))
            return {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": content, **phase}
        case Reasoning():
            summary = [{"type": "summary_text", "text": part.text}]
            proof = json_object(proof_of(OPENAI, part.signature))
            return {"type": "reasoning", "id": f"rs_{place}", "summary": summary, **proof}
        case ToolCall():
            raw = part.invalid if part.invalid is not None else json.dumps(dict(part.arguments), ensure_ascii=False)
            return {
                "type": "function_call",
                "id": f"fc_{place}",
                "call_id": part.call_id,
                "name": part.tool,
                "arguments": raw,
            }
        case _:
            raise ValueError(f"a model does not answer with {part}")
