from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pattern_core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.model import ModelRequest, ReasoningEffort, ToolSpec, Usage
from pattern_core.models.providers.anthropic import MessageDecoder, encode
from pattern_core.models.providers.encoding import JsonObject
from tests.pattern_core.models.providers.rig import ANTHROPIC, CONVERSATION

REQUEST, RICH = ANTHROPIC.request, ANTHROPIC.reply
TOOL = ToolSpec(name="search", description="", parameters={"type": "object"})


CACHED = {"cache_control": {"type": "ephemeral"}}


def test_the_fields_of_a_request() -> None:
    body = ANTHROPIC.body(
        user("hi"),
        model="claude",
        system=["one", "two", "", "three"],
        tools=[ToolSpec(name="search", description="Find.", parameters={"type": "object"})],
        max_output_tokens=99,
        top_p=0.5,
        stop=["END"],
        seed=7,
    )
    assert body == {
        "model": "claude",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]}],
        "stream": True,
        "system": [
            {"type": "text", "text": "one"},
            {"type": "text", "text": "two"},
            {"type": "text", "text": "three", **CACHED},
        ],
        "tools": [{"name": "search", "description": "Find.", "input_schema": {"type": "object"}, **CACHED}],
        "top_p": 0.5,
        "stop_sequences": ["END"],
    }
    assert not {"system", "tools", "temperature"} & set(ANTHROPIC.body())


def test_there_are_no_more_marks_than_the_vendor_allows() -> None:
    tools = [ToolSpec(name=name, description="", parameters={}) for name in "ab"]
    messages = [user("hi"), Message(role="assistant", parts=(Text(text="so"),)), user("and")]
    body = ANTHROPIC.body(*messages, system=list("xyz"), memory=list("mn"), tools=tools)
    assert json.dumps(body).count("ephemeral") == 4
    assert body["system"][2:4] == [{"type": "text", "text": "z", **CACHED}, {"type": "text", "text": "m"}]
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "and", **CACHED}]


@pytest.mark.parametrize(
    ("model", "effort", "tokens_max", "thinking"),
    [
        ("claude-sonnet-5-5", "low", 4_096, {"type": "adaptive", "display": "summarized"}),
        ("claude-opus-4-6", "high", 4_096, {"type": "adaptive", "display": "summarized"}),
        ("claude-opus-4-5-20251101", "high", 20_000, {"type": "enabled", "budget_tokens": 10_000}),
        ("claude-haiku-4-5", "medium", 20_000, {"type": "enabled", "budget_tokens": 4_096}),
        ("claude-sonnet-4-20250514", "low", 20_000, {"type": "enabled", "budget_tokens": 1_024}),
        ("claude-3-7-sonnet-latest", "low", 2_000, {"type": "disabled"}),
        ("claude-sonnet-5-5", "none", 4_096, {"type": "disabled"}),
        ("claude-opus-5-5", "high", 4_096, {"type": "adaptive", "display": "summarized"}),
        ("claude-sonnet-5-5", None, 4_096, None),
    ],
)
def test_how_much_to_reason(
    model: str, effort: ReasoningEffort | None, tokens_max: int, thinking: dict[str, object] | None
) -> None:
    body = ANTHROPIC.body(model=model, max_output_tokens=tokens_max, reasoning_effort=effort, temperature=0.5)
    assert body.get("thinking") == thinking
    is_adaptive = thinking is not None and thinking["type"] == "adaptive"
    assert body.get("output_config") == ({"effort": effort} if is_adaptive else None)
    assert ("temperature" in body) == (thinking == {"type": "disabled"} and model != "claude-sonnet-5-5")


SAMPLED = ["claude-opus-4-6", "claude-sonnet-4-6-20260217", "claude-opus-4-20250514", "claude-haiku-4-5@20251001"]
SAMPLED += ["claude-3-haiku-20240307", "claude-2.1", "glm-5"]
UNSAMPLED = ["claude-opus-4-7", "claude-opus-5", "claude-sonnet-5-20260901", "anthropic/claude-opus-4.7"]


@pytest.mark.parametrize("model", [*SAMPLED, *UNSAMPLED])
def test_models_that_cannot_be_told_how_to_sample_are_not(model: str) -> None:
    is_sampled = model in SAMPLED
    request = ModelRequest(model=model, system=(), messages=(), temperature=0.5, top_p=0.9, stop=["END"])
    body = encode(request)
    assert (body.get("temperature"), "top_p" in body) == (0.5 if is_sampled else None, False)
    assert body["stop_sequences"] == ["END"]
    assert ("top_p" in encode(replace(request, temperature=None))) == is_sampled


def test_models_with_a_budget_do_not_begin_to_think_amid_calls() -> None:
    answers = [
        Message(role="tool", parts=(ToolResult(call_id=call.call_id, tool=call.tool, content="ok"),))
        for call in RICH.parts
        if isinstance(call, ToolCall)
    ]

    def thinking(parts: tuple[Part, ...], *more: Message, model: str = "claude-opus-4-5") -> object:
        messages = [user("hi"), Message(role="assistant", parts=parts), *answers, *more]
        return ANTHROPIC.body(*messages, model=model, reasoning_effort="low")["thinking"]["type"]

    foreign = (Reasoning(text="a", signature="openai:{}"), *RICH.parts[1:])
    own = (Reasoning(text="a", signature="anthropic:claude-opus-4-5 sig"), *RICH.parts[1:])
    assert thinking(own) == "enabled"
    assert thinking(RICH.parts) == "disabled"  # another model thought so
    assert thinking(foreign) == "disabled"
    assert thinking(foreign, user("go on")) == "enabled"
    assert thinking(foreign, model="claude-opus-5") == "adaptive"


def test_forced_tools_and_answers_by_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object"}}}
    body = ANTHROPIC.body(
        model="claude-sonnet-5-5", tools=[TOOL], force_tool="search", reasoning_effort="low", response_schema=schema
    )
    assert body["tool_choice"] == {"type": "tool", "name": "search"}
    assert body["thinking"] == {"type": "disabled"}
    is_closed = {"additionalProperties": False}
    inner = {"a": {"type": "object", **is_closed}}
    expected = {"type": "json_schema", "schema": {"type": "object", "properties": inner, **is_closed}}
    assert body["output_config"] == {"format": expected}
    free = ANTHROPIC.body(tools=[TOOL], force_tool="*", response_schema=schema)
    assert free["tool_choice"] == {"type": "any"}
    both = ANTHROPIC.body(model="claude-opus-5", reasoning_effort="high", response_schema=schema)
    assert both["output_config"] == {"effort": "high", "format": expected}


def test_the_messages_of_a_request() -> None:
    assert ANTHROPIC.body(*CONVERSATION)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "(no words)"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Good morning."}]},
        {"role": "user", "content": [{"type": "text", "text": "find tea"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Let me think.", "signature": "sig+/="},
                {"type": "text", "text": "Zażółć 😀 gęślą."},
                {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": 'tea "with" żółw'}},
                {"type": "tool_use", "id": "c2", "name": "recall", "input": {"op": "insert"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "none", "is_error": True},
                {"type": "tool_result", "tool_use_id": "c2", "content": "ok"},
                {"type": "text", "text": "<system>\na notice\n</system>"},
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c_3", "name": "search", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c_3", "content": "x"},
                {"type": "text", "text": "hurry", **CACHED},
            ],
        },
    ]


@pytest.mark.parametrize("model", ["claude-fable-5", "claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-6"])
def test_models_that_always_think_are_never_told_not_to(model: str) -> None:
    request = ModelRequest(model=model, system=(), messages=(), tools=[TOOL], temperature=0.5)
    adaptive = {"type": "adaptive", "display": "summarized"}
    for effort, level in ((None, None), ("none", "low"), ("medium", "medium")):
        for forced in (None, "search"):
            body = encode(replace(request, reasoning_effort=effort, force_tool=forced))  # type: ignore[arg-type]  # of the three
            assert body["thinking"] == adaptive
            assert body.get("output_config") == (None if level is None else {"effort": level})


FORCED = ["claude-opus-5", "claude-fable-5", "claude-opus-4-20250514", "claude-opus-5-20260724"]
UNFORCED = ["claude-fable-5-1", "claude-opus-5-5", "claude-haiku-6"]


@pytest.mark.parametrize("model", [*FORCED, *UNFORCED])
def test_models_that_cannot_be_made_to_call_a_tool_are_asked_to(model: str) -> None:
    may_be_forced = model in FORCED
    request = ModelRequest(model=model, system=(), messages=[user("a")], tools=[TOOL])
    for forced, words in (("*", "one of your tools"), ("search", "the tool search")):
        body = encode(replace(request, force_tool=forced))
        assert ("tool_choice" in body) == may_be_forced
        assert (words in json.dumps(body["messages"])) != may_be_forced
    assert "Call" not in json.dumps(encode(replace(request, tools=(), force_tool="*"))["messages"])


def test_thoughts_go_back_only_to_the_model_that_had_them_and_not_where_they_are_bound() -> None:
    def thoughts(model: str) -> list[object]:
        signatures = ("anthropic:claude-opus-5 new", "redacted_thinking:claude-opus-5 data", "openai:{}")
        parts: tuple[Part, ...] = tuple(Reasoning(text="hm", signature=one) for one in signatures)
        parts += (Text(text="so"),)
        blocks = ANTHROPIC.body(user("a"), Message(role="assistant", parts=parts), model=model)["messages"][1][
            "content"
        ]
        return [block.get("signature") or block.get("data") for block in blocks if block["type"] != "text"]

    assert thoughts("claude-opus-5") == ["new", "data"]
    assert thoughts("claude-haiku-4-5") == thoughts("claude-opus-5-5") == thoughts("claude-fable-5-1") == []


def test_thoughts_of_which_nothing_came_are_left_out() -> None:
    signed = Reasoning(text="hm", signature="anthropic:m sig")
    thoughts = (signed, Reasoning(text="", signature="redacted_thinking:m d"))
    conversation = [
        user("a"),
        Message(role="assistant", parts=thoughts),
        user("b"),
        Message(role="assistant", parts=(signed, Text(text="so"), signed)),
    ]
    messages = ANTHROPIC.body(*conversation)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [block["type"] for block in messages[1]["content"]] == ["thinking", "text"]


def test_usage_without_a_cache_counts_all_input_once() -> None:
    decoder = MessageDecoder(ANTHROPIC.request, "anthropic")
    decoder.whole(JsonObject(content=[], usage={"input_tokens": 5, "output_tokens": 2}))
    reply = decoder.reply(None)
    assert (reply.usage, reply.finish_reason) == (Usage(input_tokens=5, output_tokens=2), "stop")
