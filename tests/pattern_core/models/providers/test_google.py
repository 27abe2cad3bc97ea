from __future__ import annotations

import json

import pytest

from pattern_core.messages import Message, Reasoning, Text, ToolCall, user
from pattern_core.models.model import ModelReply, ModelRequest, ToolSpec, Usage
from pattern_core.models.providers.draft import StreamEvent
from pattern_core.models.providers.encoding import JsonObject
from pattern_core.models.providers.exchange import EventDecoder
from pattern_core.models.providers.google import GeminiDecoder
from pattern_core.testing import says
from pattern_core.testing.wire_google import chunk, replies
from tests.pattern_core.models.providers.rig import CONVERSATION, GOOGLE

REQUEST = ModelRequest(model="gemini-2.0-flash", system=(), messages=[user("hello")])
SIGNED = ModelReply(
    parts=(
        Reasoning(text="hm"),
        Text(text="One", signature="google:a"),
        ToolCall(call_id="c", tool="t", arguments={"x": [1, "ż"]}, signature="google:b"),
        Text(text="", signature="google:c"),
    ),
    finish_reason="tool_calls",
    usage=Usage(input_tokens=7, output_tokens=5, cached_tokens=2, reasoning_tokens=2),
    request_id="resp-scripted",
)


def decoded(*chunks: dict[str, object]) -> ModelReply:
    decoder = GeminiDecoder(REQUEST, "google")
    for data in chunks:
        decoder.feed(StreamEvent(event="", data=json.dumps(data)))
    return decoder.reply(None)


def test_words_before_a_signed_part_stay_apart_from_it() -> None:
    reply = decoded(
        chunk({"text": "Hel"}),
        chunk({"text": "lo"}, {"text": "!", "thoughtSignature": "s"}),
        chunk({"text": " Bye"}, finish="STOP"),
    )
    assert reply.parts == (Text(text="Hello"), Text(text="!", signature="google:s"), Text(text=" Bye"))
    thought = decoded(chunk({"text": "hm", "thought": True, "thoughtSignature": "s"}, finish="STOP"))
    assert thought.parts == (Reasoning(text="hm", signature="google:s"),)


def test_calls_without_ids_are_told_apart() -> None:
    call = {"functionCall": {"name": "t"}}
    first, second = decoded(chunk(call, call, finish="STOP")).parts
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert first.call_id != second.call_id
    assert (first.tool, first.arguments, first.invalid) == ("t", {}, None)


def test_usage_counts_thoughts_as_output_and_tools_as_input() -> None:
    counts = {"promptTokenCount": 10, "toolUsePromptTokenCount": 2, "thoughtsTokenCount": 5, "candidatesTokenCount": 3}
    reply = decoded({**chunk(finish="STOP"), "usageMetadata": {**counts, "cachedContentTokenCount": 4}})
    assert reply.usage == Usage(input_tokens=12, output_tokens=8, cached_tokens=4, reasoning_tokens=5)
    assert decoded(chunk({"text": "hi"}, finish="STOP")).usage.is_estimate
    assert decoded({"usageMetadata": {"promptTokenCount": 3}}, chunk(finish="STOP")).usage.input_tokens == 3


def test_the_fields_of_a_request() -> None:
    body = GOOGLE.body(
        user("hi"),
        model="gemini-3-flash",
        system=["one", " ", "two"],
        tools=[ToolSpec(name="search", description="Find.", parameters={"type": "object"})],
        max_output_tokens=99,
        temperature=0.0,
        top_p=0.5,
        stop=list("abcdefg"),
        seed=1 << 62 | 5,
        response_schema={"type": "object"},
        reasoning_effort="low",
        force_tool="search",
    )
    assert body == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "search", "description": "Find.", "parametersJsonSchema": {"type": "object"}}
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["search"]}},
        "generationConfig": {
            "maxOutputTokens": 99,
            "temperature": 0.0,
            "topP": 0.5,
            "stopSequences": list("abcde"),
            "seed": 5,
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object"},
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "low"},
        },
    }
    assert GOOGLE.body(model="gemini-2.0-flash")["generationConfig"] == {"maxOutputTokens": 4_096}


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        ("gemini-2.0-flash", "high", None),
        ("gemma-3-27b", "high", None),
        ("gemini-2.5-pro", None, {"includeThoughts": True}),
        ("gemini-2.5-pro", "none", {"includeThoughts": False, "thinkingBudget": 128}),
        ("gemini-2.5-flash", "low", {"includeThoughts": True, "thinkingBudget": 1_024}),
        ("gemini-2.5-flash", "none", {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-3-flash", "none", {"includeThoughts": False, "thinkingLevel": "minimal"}),
        ("models/gemini-3.1-pro", "none", {"includeThoughts": False, "thinkingLevel": "low"}),
        ("gemini-3-pro", "high", {"includeThoughts": True, "thinkingLevel": "high"}),
    ],
)
def test_how_much_to_think(model: str, effort: str | None, config: dict[str, object] | None) -> None:
    assert GOOGLE.body(model=model, reasoning_effort=effort)["generationConfig"].get("thinkingConfig") == config


def test_older_models_are_told_the_schema_in_words_beside_tools() -> None:
    tools = [ToolSpec(name="search", description="Find.", parameters={"type": "object"})]
    schema = {"type": "object"}
    body = GOOGLE.body(model="gemini-2.5-pro", tools=tools, response_schema=schema)
    assert '{"type": "object"}' in json.dumps(body["systemInstruction"]).replace("\\", "")
    assert "responseJsonSchema" not in json.dumps(body["generationConfig"])
    alone = GOOGLE.body(model="gemini-2.5-pro", response_schema=schema)
    assert "systemInstruction" not in alone
    assert "responseJsonSchema" in json.dumps(alone["generationConfig"])


def test_the_messages_of_a_request() -> None:
    unsigned = {"thoughtSignature": "skip_thought_signature_validator"}
    query = {"query": 'tea "with" żółw'}
    assert GOOGLE.body(*CONVERSATION)["contents"] == [
        {"role": "user", "parts": [{"text": "(no words)"}]},
        {"role": "model", "parts": [{"text": "Good morning."}]},
        {"role": "user", "parts": [{"text": "find tea"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Zażółć 😀 gęślą."},
                {"functionCall": {"id": "c1", "name": "search", "args": query}, **unsigned},
                {"functionCall": {"id": "c2", "name": "recall", "args": {"op": "insert"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "search", "response": {"error": "none"}}},
                {"functionResponse": {"id": "c2", "name": "recall", "response": {"output": "ok"}}},
                {"text": "<system>\na notice\n</system>"},
            ],
        },
        {"role": "model", "parts": [{"functionCall": {"id": "c:3", "name": "search", "args": {}}, **unsigned}]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c:3", "name": "search", "response": {"output": "x"}}},
                {"text": "hurry"},
            ],
        },
    ]


def test_signatures_are_kept_and_replayed_and_no_other_vendors() -> None:
    stream, decoder = EventDecoder(), GeminiDecoder(REQUEST, "google")
    for event in stream.feed(replies(SIGNED).body):
        decoder.feed(event)
    assert decoder.reply(None) == SIGNED
    parts = (*SIGNED.parts, Text(text="x", signature="openai:{}"), Reasoning(text="y", signature="google:z"))
    assert GOOGLE.body(user("a"), Message(role="assistant", parts=parts))["contents"][1]["parts"] == [
        {"text": "One", "thoughtSignature": "a"},
        {"functionCall": {"id": "c", "name": "t", "args": {"x": [1, "ż"]}}, "thoughtSignature": "b"},
        {"text": "", "thoughtSignature": "c"},
        {"text": "x"},
        {"text": "y", "thought": True, "thoughtSignature": "z"},
    ]
    assert "skip_thought" not in json.dumps(GOOGLE.body(*CONVERSATION, model="gemini-2.0-flash"))


def test_a_document_instead_of_a_stream() -> None:
    decoder = GeminiDecoder(REQUEST, "google")
    decoder.whole(JsonObject(chunk({"text": "hi"}, finish="STOP")))
    assert decoder.reply("r").parts == says("hi").parts
