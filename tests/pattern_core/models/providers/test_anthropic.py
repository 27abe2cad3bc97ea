from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Message, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelNotConfigured,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.model import Delta, ModelReply, ModelRequest, ReasoningDelta, TextDelta, ToolSpec, Usage
from pattern_core.models.providers.anthropic import AnthropicProvider, MessageDecoder, encode
from pattern_core.models.providers.draft import Garbled, Unfinished
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.models.providers.sse import EventDecoder, ServerEvent
from pattern_core.testing import StoppedClock, calls, says, together
from pattern_core.testing.wire import Entry, Play, WireServer, document, events
from pattern_core.testing.wire_anthropic import PING, refuses, replies, serve_anthropic

REQUEST = ModelRequest(model="m", system=("Be kind.",), messages=[user("hello")])
USAGE = Usage(input_tokens=7, output_tokens=3, cached_tokens=2)
CALLS = together(
    calls("search", {"query": 'tea "with" żółw'}, call_id="c1"), calls("recall", {"op": "insert"}, call_id="c2")
)
RICH = ModelReply(
    parts=(Reasoning(text="Let me think.", signature="sig+/="), Text(text="Zażółć 😀 gęślą."), *CALLS.parts),
    finish_reason="tool_calls",
    usage=USAGE,
    request_id="msg_scripted",
)


@dataclass
class Listener:
    """A provider that talks to a wire server, and the deltas that it gave."""

    server: WireServer
    seen: list[Delta] = field(default_factory=list)
    heard: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        key = Secret("sk-secret")
        self.provider = AnthropicProvider("anthropic", key, self.server.url, clock=StoppedClock())

    async def on_delta(self, delta: Delta) -> None:
        self.seen.append(delta)
        self.heard.set()

    async def ask(self, request: ModelRequest = REQUEST) -> ModelReply:
        return await self.provider.ask(request, self.on_delta)

    def text(self, kind: type[Delta] = TextDelta) -> str:
        return "".join(delta.text for delta in self.seen if isinstance(delta, kind))


async def answer(play: Play | ModelReply, request: ModelRequest = REQUEST) -> ModelReply:
    async with serve_anthropic([play]) as server:
        listener = Listener(server)
        try:
            return await listener.ask(request)
        finally:
            await listener.provider.aclose()


async def test_thinking_text_calls_and_usage_arrive() -> None:
    async with serve_anthropic([RICH]) as server:
        listener = Listener(server)
        assert await listener.ask() == RICH
        assert listener.text() == "Zażółć 😀 gęślą."
        assert listener.text(ReasoningDelta) == "Let me think."
        sent = server.requests[0]
        assert sent.headers["x-api-key"] == "sk-secret"
        assert sent.headers["authorization"] == "Bearer sk-secret"
        await listener.provider.aclose()


async def test_streams_cut_anywhere_give_the_same_reply_over_one_connection() -> None:
    play = replies(RICH)
    whole = range(len(play.body))
    cuts = [[at] for at in whole[:: len(whole) // 12]]
    cuts += [random.Random(seed).sample(whole, 40) for seed in range(6)]
    script: list[Entry | ModelReply] = [*(play.cut(edges) for edges in cuts), play.cut(whole)]
    async with serve_anthropic(script) as server:
        listener = Listener(server)
        for _ in script:
            assert await listener.ask() == RICH
        assert server.connections == 1
        await listener.provider.aclose()


def test_any_cut_of_the_bytes_decodes_alike() -> None:
    body = replies(RICH).body
    for at in range(0, len(body) + 1, 3):
        stream, decoder = EventDecoder(), MessageDecoder(REQUEST, "anthropic")
        for event in (*stream.feed(body[:at]), *stream.feed(body[at:]), *stream.end()):
            decoder.feed(event)
        assert decoder.reply(None) == RICH


async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable() -> None:
    stream = replies(says("Hello there"))
    hanging = Play(chunks=stream.chunks[:4], headers=stream.headers, never_ends=True)
    async with serve_anthropic([says("load"), Play(never_answers=True), hanging, says("again")]) as server:
        listener = Listener(server)
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        await listener.ask()
        took_s: list[float] = []
        for number in (2, 3):
            listener.heard = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.ask)
                exchange = await server.arrived(number)
                if number == 3:
                    await listener.heard.wait()
                cancelled_at = trio.current_time()
                nursery.cancel_scope.cancel()
            with trio.fail_after(2):
                await exchange.client_gone.wait()
            took_s.append(trio.current_time() - cancelled_at)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert min(took_s) <= 0.1  # the better of two, as a busy machine may stop for longer
        assert (await listener.ask()).parts == says("again").parts
        await listener.provider.aclose()


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (refuses(401, "invalid x-api-key sk-secret", kind="authentication_error"), ModelRefused, r"\*\*\* Check"),
        (refuses(403, "no", kind="permission_error"), ModelRefused, "no"),
        (refuses(404, "model: x", kind="not_found_error"), ModelRefused, "model_name"),
        (refuses(400, "bad", kind="invalid_request_error"), ModelRejected, "bad"),
        (refuses(400, "prompt is too long: 3 > 2", kind="invalid_request_error"), WindowExceeded, "shorter"),
        (refuses(400, "Your credit balance is too low", kind="billing_error"), ModelRejected, "credit"),
        (refuses(429, "slow", kind="rate_limit_error", headers={"retry-after": "7"}), ModelOverloaded, "slow"),
        (refuses(500, "oops"), ModelServerError, "oops"),
        (refuses(529, "Overloaded", kind="overloaded_error"), ModelOverloaded, "Overloaded"),
        (Play(status=502, chunks=(b"<html>Bad gateway",)), ModelServerError, "Bad gateway"),
        (
            events({"type": "error", "error": {"type": "overloaded_error", "message": "later"}}, names=True),
            ModelOverloaded,
            "later",
        ),
        (Play(chunks=(b"event: error\ndata: {}\n\n",)), ModelServerError, "500"),
        (document({"type": "error", "error": {"message": "x"}}), ModelServerError, "x"),
        (document({"hello": 1}), ModelGarbage, "without content"),
        (events("{not json"), ModelGarbage, "not JSON"),
        (events([1]), ModelGarbage, "not a JSON object"),
        (
            events({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta"}}),
            ModelGarbage,
            "never began",
        ),
        (events(PING, {"type": "message_stop"}), ModelUnreachable, "before it was complete"),
        (Play(chunks=replies(RICH).chunks[:9]), ModelUnreachable, "before it was complete"),
        (Play(chunks=(b"<html>login</html>",), headers={"content-type": "text/html"}), ModelGarbage, "base_url"),
        (Play(chunks=(replies(RICH).body,), stops_after=300), ModelUnreachable, "failed"),
    ],
)
async def test_failures_have_types_and_words(play: Play, kind: type[ModelError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await answer(play)
    assert "sk-secret" not in str(caught.value)
    assert caught.value.provider == "anthropic"
    if play.headers.get("retry-after"):
        assert caught.value.retry_after_s == 7


async def test_no_server() -> None:
    provider = AnthropicProvider("gateway", Secret("k"), "http://127.0.0.1:9")
    with pytest.raises(ModelUnreachable, match="gateway"):
        await provider.ask(REQUEST, Listener(WireServer((), Play())).on_delta)
    await provider.aclose()


async def test_a_document_instead_of_a_stream_and_no_usage() -> None:
    content = [
        {"type": "text", "text": "hi"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "tool_use", "id": "c", "name": "t", "input": {"a": 1}},
        {"type": "server_tool_use"},
    ]
    reply = await answer(document({"id": "m", "content": content, "stop_reason": "tool_use"}))
    assert reply.parts == (
        Text(text="hi"),
        Reasoning(text="", signature="redacted_thinking:xyz"),
        ToolCall(call_id="c", tool="t", arguments={"a": 1}),
    )
    assert reply.usage.is_estimate
    assert (await answer(replies(says("hi"), usage=False))).usage.is_estimate


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("new_one", "other"),
    ],
)
def test_finish_reasons(reason: str, finish: str) -> None:
    decoder = MessageDecoder(REQUEST, "anthropic")
    decoder.whole({"content": [], "stop_reason": reason, "usage": {"input_tokens": 1, "output_tokens": 1}})
    assert decoder.reply("req").finish_reason == finish
    assert decoder.is_done


def test_cut_arguments_become_an_invalid_call() -> None:
    cut = ModelReply(parts=(ToolCall(call_id="c", tool="t", invalid='{"a":'),), finish_reason="length", usage=USAGE)
    decoder = MessageDecoder(REQUEST, "anthropic")
    stream = EventDecoder()
    for event in stream.feed(replies(cut).body):
        decoder.feed(event)
    assert decoder.reply("msg_scripted").parts == cut.parts


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "index", "delta", "message", "usage", "text", "id", "name", "input", "error", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
kinds = st.sampled_from(
    ["error", "message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "new"]
)
blocks = st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "text_delta", "input_json_delta"])
malformed = (
    junk.map(json.dumps)
    | st.text(max_size=20)
    | st.builds(lambda kind, value: json.dumps({"type": kind, "delta": value, "message": value}), kinds, junk)
    | st.builds(
        lambda kind, block, value: json.dumps(
            {"type": kind, "index": 0, "content_block": {"type": block, "text": value, "name": value, "input": value}}
        ),
        kinds,
        blocks,
        junk,
    )
    | st.builds(
        lambda block, value: json.dumps(
            {"type": "content_block_delta", "index": 0, "delta": {"type": block, "text": value, "partial_json": value}}
        ),
        blocks,
        junk,
    )
)


@settings(max_examples=1_000, deadline=None)
@given(st.lists(malformed, min_size=1, max_size=4))
def test_malformed_events_are_garbled_or_errors_of_the_model(datas: list[str]) -> None:
    decoder = MessageDecoder(REQUEST, "anthropic")
    with suppress(Garbled, Unfinished, ModelError):
        for data in datas:
            decoder.feed(ServerEvent(event="", data=data))
        for part in decoder.reply(None).parts:
            json.dumps(repr(part), ensure_ascii=False).encode()


CONVERSATION = [
    Message(role="assistant", parts=(Text(text="Good morning."),)),
    user("find tea"),
    Message(role="assistant", parts=(Reasoning(text="hm"), *RICH.parts)),
    Message(role="tool", parts=(ToolResult(call_id="c1", tool="search", content="none", is_error=True),)),
    Message(role="tool", parts=(ToolResult(call_id="c2", tool="recall", content="ok"),)),
    Message(role="system", parts=(Text(text="a notice"),)),
    Message(role="assistant", parts=(ToolCall(call_id="c:3", tool="search", invalid="{"),)),
    user("hurry"),
    Message(role="tool", parts=(ToolResult(call_id="c:3", tool="search", content="x"),)),
]


CACHED = {"cache_control": {"type": "ephemeral"}}


def test_the_fields_of_a_request() -> None:
    request = ModelRequest(
        model="claude",
        system=["one", "two", "", "three"],
        messages=[user("hi")],
        tools=[ToolSpec(name="search", description="Find.", parameters={"type": "object"})],
        max_output_tokens=99,
        top_p=0.5,
        stop=["END"],
        seed=7,
        extra={"thinking": {"type": "adaptive"}},
    )
    assert encode(request) == {
        "model": "claude",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]}],
        "stream": True,
        "system": [
            {"type": "text", "text": "one", **CACHED},
            {"type": "text", "text": "two"},
            {"type": "text", "text": "three", **CACHED},
        ],
        "tools": [{"name": "search", "description": "Find.", "input_schema": {"type": "object"}}],
        "top_p": 0.5,
        "stop_sequences": ["END"],
        "thinking": {"type": "adaptive"},
    }
    assert not {"system", "tools", "temperature"} & set(encode(ModelRequest(model="m", system=(), messages=())))


def test_the_messages_of_a_request() -> None:
    request = ModelRequest(model="claude", system=(), messages=CONVERSATION, tail=["now is noon", " "])
    assert encode(request)["messages"] == [
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
                {"type": "text", "text": "now is noon"},
            ],
        },
    ]


@pytest.mark.parametrize(
    "request_",
    [
        ModelRequest(model="m", system=(), messages=()),
        ModelRequest(model="m", system=(" ",), messages=[user(" ")], tail=["\n"]),
        ModelRequest(model="m", system=(), messages=(), tail=["now"]),
        ModelRequest(model="m", system=(), messages=[user("a"), user("b"), *CONVERSATION, *CONVERSATION[:1]]),
        ModelRequest(model="m", system=(), messages=CONVERSATION, tail=["now"]),
        ModelRequest(
            model="m",
            system=(),
            messages=[
                user("a"),
                Message(role="assistant", parts=(Reasoning(text="", signature="redacted_thinking:d"), Text(text="b"))),
            ],
        ),
    ],
)
async def test_every_conversation_becomes_one_that_the_vendor_takes(request_: ModelRequest) -> None:
    assert (await answer(says("fine"), request_)).parts == says("fine").parts


def test_reasoning_that_only_the_vendor_reads_is_replayed() -> None:
    thought = Message(role="assistant", parts=(Reasoning(text="", signature="redacted_thinking:d"), Text(text="b")))
    body = json.dumps(encode(ModelRequest(model="m", system=(), messages=[user("a"), thought])))
    assert '{"type": "redacted_thinking", "data": "d"}' in body


def test_a_key_is_needed_for_the_vendors_own_server_only() -> None:
    with pytest.raises(ModelNotConfigured, match="ANTHROPIC_API_KEY"):
        AnthropicProvider.from_settings("anthropic", ProviderSettings(kind="anthropic"))
    gateway = ProviderSettings(kind="anthropic", base_url="http://x", omit=("system",))
    assert AnthropicProvider.from_settings("gateway", gateway).name == "gateway"
