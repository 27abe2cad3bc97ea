from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pattern_core.messages import Message, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.model import ModelReply, ModelRequest, ReasoningEffort, ToolSpec
from pattern_core.models.providers.draft import StreamEvent
from pattern_core.models.providers.encoding import JsonObject
from pattern_core.models.providers.openai_responses import ResponseDecoder, encode_response, needs_responses, sampling
from pattern_core.testing.wire_openai import ending
from tests.pattern_core.models.providers.rig import RESPONSES

REQUEST, RICH = RESPONSES.request, RESPONSES.reply


def decoded(*datas: dict[str, object]) -> ModelReply:
    decoder = ResponseDecoder(REQUEST, "openai")
    for data in datas:
        decoder.feed(StreamEvent(event="", data=json.dumps(data)))
    return decoder.reply(None)


def test_a_document_and_items_of_which_no_pieces_came() -> None:
    whole = ending(RICH)
    assert decoded(whole) == RICH
    assert isinstance(whole["response"], dict)
    document = ResponseDecoder(REQUEST, "openai")
    document.whole(JsonObject(whole["response"]))
    assert document.reply(None) == RICH
    item = whole["response"]["output"][2]
    assert (
        decoded({"type": "response.output_item.done", "output_index": 2, "item": item}, whole).parts[0] == RICH.parts[2]
    )
    unstreamed = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    end: dict[str, object] = {"type": "response.completed", "response": {"status": "completed"}}
    assert decoded(unstreamed, done, end).parts == (RICH.parts[2],)
    assert decoded(unstreamed, done, end).usage.is_estimate


def test_summaries_in_parts_and_refusals() -> None:
    reply = decoded(
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        {"type": "response.reasoning_summary_text.delta", "delta": "a"},
        {"type": "response.reasoning_summary_part.added", "summary_index": 1},
        {"type": "response.reasoning_summary_text.delta", "delta": "b"},
        {"type": "response.output_item.added", "output_index": 1, "item": {"type": "web_search_call"}},
        {"type": "response.output_item.added", "output_index": 2, "item": {"type": "message"}},
        {"type": "response.refusal.delta", "delta": "no"},
        {"type": "response.completed", "response": {"status": "completed"}},
    )
    assert reply.parts == (Reasoning(text="a\n\nb"), Text(text="no"))


def test_the_fields_of_a_request() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    request = ModelRequest(
        model="gpt-5",
        system=["one", "two"],
        messages=[user("hi")],
        tools=[ToolSpec(name="search", description="Find.", parameters={"type": "object"})],
        max_output_tokens=99,
        temperature=0.0,
        stop=["END"],
        seed=3,
        memory=["# Memory", "x"],
        response_schema=schema,
        reasoning_effort="high",
        force_tool="*",
    )
    assert encode_response(request, "openai") == {
        "model": "gpt-5",
        "instructions": "one\n\ntwo",
        "input": [
            {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "# Memory\n\nx"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
        "stream": True,
        "store": False,
        "max_output_tokens": 99,
        "tools": [
            {
                "type": "function",
                "name": "search",
                "description": "Find.",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "tool_choice": "required",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto", "effort": "high"},
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
    }
    changed = replace(request, model="gpt-4.1", force_tool="search", response_schema={"type": "object"})
    named = encode_response(changed, "openai")
    assert named["tool_choice"] == {"type": "function", "name": "search"}
    assert not {"include", "reasoning"} & set(named)
    assert named["temperature"] == 0.0
    assert isinstance(named["text"], dict)
    assert named["text"]["format"]["strict"] is False


RESPONSES_ONLY = ["gpt-5.4", "gpt-5.6-sol", "gpt-6.1-terra", "o3-pro", "gpt-5-pro-2025-10-06", "gpt-5.1-codex-max"]
IN_BOTH_FORMATS = ["gpt-5.1", "gpt-5-mini", "gpt-5.4-chat-latest", "o3", "gpt-4.1", "qwen3:8b"]


@pytest.mark.parametrize("model", [*RESPONSES_ONLY, *IN_BOTH_FORMATS])
def test_models_that_chat_completions_do_not_take_with_tools(model: str) -> None:
    assert needs_responses(model) == (model in RESPONSES_ONLY)


@pytest.mark.parametrize(
    ("model", "effort", "is_sampled"),
    [
        ("gpt-5", None, False),
        ("o3-mini", None, False),
        ("ft:o4-mini:me", "high", False),
        ("openai/gpt-5.4-mini", "low", False),
        ("gpt-5.4", "none", True),
        ("gpt-5-chat-latest", None, True),
        ("gpt-4.1", None, True),
        ("ft:gpt-4.1:me", None, True),
        ("qwen3:8b", None, True),
    ],
)
def test_models_that_reason_are_not_told_how_to_sample(
    model: str, effort: ReasoningEffort | None, is_sampled: bool
) -> None:
    request = ModelRequest(model=model, system=(), messages=(), temperature=0.5, top_p=0.9, reasoning_effort=effort)
    assert sampling(request) == ({"temperature": 0.5, "top_p": 0.9} if is_sampled else {})
    body = encode_response(request, "openai")
    assert ("temperature" in body) == is_sampled
    assert ("reasoning" in body) == (model not in ("gpt-5-chat-latest", "gpt-4.1", "ft:gpt-4.1:me"))


def test_the_messages_of_a_request() -> None:
    long_id = "c" * 65
    conversation = [
        user("see"),
        Message(
            role="assistant",
            parts=(
                Reasoning(text="hm", signature="of-anthropic"),
                Reasoning(text="", signature="openai:no json"),
                ToolCall(call_id=long_id, tool="t", invalid="{"),
                Reasoning(text="", signature='openai:{"server": "openai", "id": "rs_0", "encrypted_content": "g"}'),
            ),
        ),
        Message(role="tool", parts=(ToolResult(call_id=long_id, tool="t", content="bad", is_error=True),)),
        Message(role="system", parts=(Text(text="a notice"),)),
        Message(role="assistant", parts=(Text(text="so", signature="google:x"),)),
        Message(role="assistant", parts=RICH.parts[:2]),
    ]
    items = RESPONSES.body(*conversation)["input"]
    call_id = items[1]["call_id"]
    assert items == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}]},
        {"type": "function_call", "call_id": call_id, "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": "Error: bad"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "a notice"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {
            "type": "reasoning",
            "id": "rs_0",
            "encrypted_content": "gAAA",
            "summary": [{"type": "summary_text", "text": "Let me think."}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Zażółć 😀 gęślą."}],
            "phase": "commentary",
        },
    ]


def test_proofs_go_back_to_the_server_that_made_them_alone() -> None:
    """Another one speaks the same format, and refuses what it cannot decrypt."""
    request = replace(REQUEST, messages=[Message(role="assistant", parts=RICH.parts[:2])])
    own, other = (json.dumps(encode_response(request, name)) for name in ("openai", "azure"))
    assert "gAAA" in own and "commentary" in own
    assert "gAAA" not in other and "commentary" not in other and "Za" in other
