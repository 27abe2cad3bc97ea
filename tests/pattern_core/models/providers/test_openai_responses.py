from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Image, Message, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.model import (
    Delta,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    ReasoningEffort,
    TextDelta,
    ToolSpec,
    Usage,
)
from pattern_core.models.providers.draft import StreamEvent
from pattern_core.models.providers.exchange import EventDecoder
from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.openai_responses import ResponseDecoder, encode_response, needs_responses, sampling
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.testing import says
from pattern_core.testing.wire import Entry, Play, WireServer, document, events
from pattern_core.testing.wire_openai import refuses
from pattern_core.testing.wire_responses import ending, replies, serve_responses
from tests.pattern_core.models.providers.rig import ADDED, check_malformed, with_news

REQUEST = ModelRequest(model="gpt-5", system=("Be kind.",), messages=[user("hello")])
SIGNATURE = 'openai:{"id": "rs_0", "encrypted_content": "gAAA"}'
RICH = ModelReply(
    parts=(
        Reasoning(text="Let me think.", signature=SIGNATURE),
        Text(text="Zażółć 😀 gęślą.", signature='openai:{"phase": "commentary"}'),
        ToolCall(call_id="c1", tool="search", arguments={"query": 'tea "with" żółw'}),
        ToolCall(call_id="c2", tool="recall", arguments={"op": "insert"}),
    ),
    finish_reason="tool_calls",
    usage=Usage(input_tokens=9, output_tokens=5, cached_tokens=2, cache_write_tokens=3, reasoning_tokens=4),
    request_id="resp_scripted",
)
SSE = {"content-type": "text/event-stream"}


@dataclass
class Listener:
    """A provider that talks to a wire server, and the deltas that it gave."""

    server: WireServer
    seen: list[Delta] = field(default_factory=list)
    heard: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        made = ProviderSettings(
            kind="openai", base_url=f"{self.server.url}/v1", api_key=Secret("sk-secret"), api="responses"
        )
        self.provider = OpenAIProvider("openai", made)

    async def on_delta(self, delta: Delta) -> None:
        self.seen.append(delta)
        self.heard.set()

    async def ask(self, request: ModelRequest = REQUEST) -> ModelReply:
        return await self.provider.ask(request, self.on_delta)

    def text(self, kind: type[Delta] = TextDelta) -> str:
        return "".join(delta.text for delta in self.seen if isinstance(delta, kind))


async def answer(play: Play | ModelReply, request: ModelRequest = REQUEST) -> ModelReply:
    async with serve_responses([play]) as server:
        listener = Listener(server)
        try:
            return await listener.ask(request)
        finally:
            await listener.provider.aclose()


async def test_reasoning_text_calls_and_usage_arrive() -> None:
    async with serve_responses([RICH]) as server:
        listener = Listener(server)
        assert await listener.ask() == RICH
        assert listener.text() == "Zażółć 😀 gęślą."
        assert listener.text(ReasoningDelta) == "Let me think."
        assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
        await listener.provider.aclose()


async def test_what_was_thought_goes_back_encrypted() -> None:
    results = [
        Message(role="tool", parts=(ToolResult(call_id=call_id, tool="t", content="ok"),)) for call_id in ("c1", "c2")
    ]
    async with serve_responses([RICH, says("done")]) as server:
        listener = Listener(server)
        first = await listener.ask()
        conversation = [user("hello"), Message(role="assistant", parts=first.parts), *results]
        assert (await listener.ask(replace(REQUEST, messages=conversation))).parts == says("done").parts
        items = server.requests[1].json()["input"]
        assert isinstance(items, list)
        summary = [{"type": "summary_text", "text": "Let me think."}]
        assert items[1] == {"type": "reasoning", "id": "rs_0", "encrypted_content": "gAAA", "summary": summary}
        assert items[2]["phase"] == "commentary"
        calls = ["function_call"] * 2 + ["function_call_output"] * 2
        assert [item["type"] for item in items] == ["message", "reasoning", "message", *calls]
        await listener.provider.aclose()


async def test_streams_cut_anywhere_give_the_same_reply_over_one_connection() -> None:
    play = replies(RICH)
    whole = range(len(play.body))
    cuts = [[at] for at in whole[:: len(whole) // 12]]
    cuts += [random.Random(seed).sample(whole, 40) for seed in range(4)]
    script: list[Entry | ModelReply] = [*(play.cut(edges) for edges in cuts), play.cut(whole[::7])]
    async with serve_responses(script) as server:
        listener = Listener(server)
        for _ in script:
            assert await listener.ask() == RICH
        assert server.connections == 1
        await listener.provider.aclose()


def test_any_cut_of_the_bytes_decodes_alike() -> None:
    body = replies(RICH).body
    for at in range(0, len(body) + 1, 11):
        stream, decoder = EventDecoder(), ResponseDecoder(REQUEST, "openai")
        for event in (*stream.feed(body[:at]), *stream.feed(body[at:]), *stream.end()):
            decoder.feed(event)
        assert decoder.reply(None) == RICH


async def test_early_closes_are_noticed_wherever_they_come() -> None:
    body = replies(RICH).body
    places = range(0, len(body) - 2, len(body) // 12)
    async with serve_responses([Play(chunks=(body,), headers=SSE, stops_after=at) for at in places]) as server:
        listener = Listener(server)
        for _ in places:
            with pytest.raises(ModelUnreachable):
                await listener.ask()
        await listener.provider.aclose()


async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable() -> None:
    hanging = Play(chunks=replies(says("Hello there")).chunks[:3], headers=SSE, never_ends=True)
    async with serve_responses([says("load"), Play(never_answers=True), hanging, says("again")]) as server:
        listener = Listener(server)
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        await listener.ask()
        for number in (2, 3):
            listener.heard = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.ask)
                exchange = await server.arrived(number)
                if number == 3:
                    await listener.heard.wait()
                nursery.cancel_scope.cancel()
            with trio.fail_after(60):
                await exchange.client_gone.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert (await listener.ask()).parts == says("again").parts
        await listener.provider.aclose()


FAILED = {
    "type": "response.failed",
    "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}},
}
BUSY = {"type": "error", "code": "rate_limit_exceeded", "message": "slow"}
LONG = {"type": "error", "error": {"code": "context_length_exceeded", "message": "long"}}


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (refuses(401, "Incorrect API key sk-secret", code="invalid_api_key"), ModelRefused, r"key \*\*\*\. Check"),
        (refuses(400, "bad"), ModelRejected, "bad"),
        (refuses(429, "slow down", headers={"retry-after": "7"}), ModelOverloaded, "slow down"),
        (refuses(500, "oops"), ModelServerError, "oops"),
        (events(FAILED, names=True), ModelServerError, "server_error: x"),
        (events(BUSY, names=True), ModelOverloaded, "slow"),
        (events(LONG, names=True), WindowExceeded, "shorter"),
        (events({"type": "response.cancelled", "response": {"status": "cancelled"}}), ModelServerError, "cancelled"),
        (document({"error": {"message": "died"}}), ModelServerError, "died"),
        (document({"hello": 1}), ModelGarbage, "without output"),
        (events("{not json"), ModelGarbage, "not JSON"),
        (events([1]), ModelGarbage, "not a JSON object"),
        (events({"type": "response.function_call_arguments.delta", "delta": "{"}), ModelGarbage, "never began"),
        (events(*({"type": "response.created"},)), ModelUnreachable, "before it was complete"),
        (Play(chunks=(b"<html>login</html>",), headers={"content-type": "text/html"}), ModelGarbage, "base_url"),
    ],
)
async def test_failures_have_types_and_words(play: Play, kind: type[ModelError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await answer(play)
    assert "sk-secret" not in str(caught.value)


def decoded(*datas: dict[str, object]) -> ModelReply:
    decoder = ResponseDecoder(REQUEST, "openai")
    for data in datas:
        decoder.feed(StreamEvent(event="", data=json.dumps(data)))
    return decoder.reply(None)


async def test_a_document_and_items_of_which_no_pieces_came() -> None:
    whole = ending(RICH)
    assert decoded(whole) == RICH
    assert isinstance(whole["response"], dict)
    assert await answer(document(whole["response"])) == RICH
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


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("new", "other")]
)
def test_answers_that_were_cut_off(reason: str, finish: str) -> None:
    response = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    assert decoded({"type": "response.incomplete", "response": response}).finish_reason == finish
    with pytest.raises(ModelUnreachable):
        decoded({"type": "response.created", "response": {"id": "r"}})


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
        tail=["now is noon"],
        response_schema=schema,
        reasoning_effort="high",
        force_tool="*",
        extra={"service_tier": "flex"},
    )
    assert encode_response(request) == {
        "model": "gpt-5",
        "instructions": "one\n\ntwo",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "now is noon"}]},
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
        "service_tier": "flex",
    }
    named = encode_response(replace(request, model="gpt-4.1", force_tool="search", response_schema={"type": "object"}))
    assert named["tool_choice"] == {"type": "function", "name": "search"}
    assert not {"include", "reasoning"} & set(named)
    assert named["temperature"] == 0.0
    assert isinstance(named["text"], dict)
    assert named["text"]["format"]["strict"] is False


@pytest.mark.parametrize(
    ("model", "is_needed"),
    [
        ("gpt-5.4", True),
        ("gpt-5.6-sol", True),
        ("gpt-6.1-terra", True),
        ("o3-pro", True),
        ("gpt-5-pro-2025-10-06", True),
        ("gpt-5.1-codex-max", True),
        ("gpt-5.1", False),
        ("gpt-5-mini", False),
        ("gpt-5.4-chat-latest", False),
        ("o3", False),
        ("gpt-4.1", False),
        ("qwen3:8b", False),
    ],
)
def test_models_that_chat_completions_do_not_take_with_tools(model: str, is_needed: bool) -> None:
    assert needs_responses(model) == is_needed


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
    body = encode_response(request)
    assert ("temperature" in body) == is_sampled
    assert ("reasoning" in body) == (model not in ("gpt-5-chat-latest", "gpt-4.1", "ft:gpt-4.1:me"))


def test_the_messages_of_a_request() -> None:
    long_id = "c" * 65
    conversation = [
        Message(
            role="user",
            parts=(
                Text(text="see"),
                Image(media_type="image/png", data=b"\x89PNG"),
                Image(media_type="", url="https://x/a.png"),
                Image(media_type="image/png", digest="ab"),
            ),
        ),
        Message(
            role="assistant",
            parts=(
                Reasoning(text="hm", signature="of-anthropic"),
                Reasoning(text="", signature="openai:no json"),
                ToolCall(call_id=long_id, tool="t", invalid="{"),
                Reasoning(text="", signature=SIGNATURE),
            ),
        ),
        Message(role="tool", parts=(ToolResult(call_id=long_id, tool="t", content="bad", is_error=True),)),
        Message(role="system", parts=(Text(text="a notice"),)),
        Message(role="assistant", parts=(Text(text="so", signature="google:x"),)),
    ]
    items = encode_response(ModelRequest(model="gpt-5", system=(), messages=conversation))["input"]
    assert isinstance(items, list)
    lost = items[0]["content"].pop()
    assert "not at hand" in lost["text"]
    call_id = items[1]["call_id"]
    assert len(call_id) <= 64
    assert items == [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="},
                {"type": "input_image", "image_url": "https://x/a.png"},
            ],
        },
        {"type": "function_call", "call_id": call_id, "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": "Error: bad"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "a notice"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
    ]


KEYS = ["type", "output_index", "item", "delta", "response", "status", "error", "output", "usage", "input_tokens"]
KEYS += ["id", "name", "call_id", "arguments", "encrypted_content", "phase", "content", "summary", "text", "x"]
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(
    [
        "error",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.completed",
        "response.incomplete",
    ]
)
items = st.builds(
    lambda kind, value: {"type": kind, "content": [value], "summary": value, "name": value, "encrypted_content": value},
    st.sampled_from(["message", "reasoning", "function_call"]),
    junk,
)
malformed = (
    junk.map(json.dumps)
    | st.text(max_size=20)
    | st.builds(
        lambda kind, place, item, value: json.dumps(
            {
                "type": kind,
                "output_index": place,
                "item": item,
                "delta": value,
                "response": {"output": [item], "status": value},
            }
        ),
        kinds,
        st.integers(-1, 2),
        items,
        junk,
    )
)


@settings(max_examples=150, deadline=None)
@given(st.lists(malformed, min_size=1, max_size=4))
def test_broken_events_are_malformed_or_errors_of_the_model(datas: list[str]) -> None:
    check_malformed(ResponseDecoder(REQUEST, "openai"), datas)


@given(ADDED)
def test_what_a_vendor_adds_changes_nothing(added: object) -> None:
    assert with_news(ResponseDecoder(REQUEST, "openai"), replies(RICH).body, added) == RICH
