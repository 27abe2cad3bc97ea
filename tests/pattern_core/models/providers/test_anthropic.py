from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

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
from pattern_core.models.model import (
    Delta,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from pattern_core.models.providers import make_provider
from pattern_core.models.providers.anthropic import AnthropicProvider
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.testing import StoppedClock, calls, says, together
from pattern_core.testing.wire import Entry, Play, WireServer, document, events
from pattern_core.testing.wire_anthropic import PING, refuses, replies, serve_anthropic

REQUEST = ModelRequest(model="m", system=("Be kind.",), messages=[user("hello")])
USAGE = Usage(input_tokens=7, output_tokens=3, cached_tokens=2, cache_write_tokens=3, reasoning_tokens=1)
CALLS = together(
    calls("search", {"query": 'tea "with" żółw'}, call_id="c1"), calls("recall", {"op": "insert"}, call_id="c2")
)
RICH = ModelReply(
    parts=(
        Reasoning(text="Let me think.", signature="anthropic:m sig+/="),
        Text(text="Zażółć 😀 gęślą."),
        *CALLS.parts,
    ),
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


async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable() -> None:
    stream = replies(says("Hello there"))
    hanging = Play(chunks=stream.chunks[:4], headers=stream.headers, never_ends=True)
    async with serve_anthropic([says("load"), Play(never_answers=True), hanging, says("again")]) as server:
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


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (refuses(401, "invalid x-api-key sk-secret", kind="authentication_error"), ModelRefused, r"\*\*\*\. Check"),
        (refuses(403, "no", kind="permission_error"), ModelRefused, "no"),
        (refuses(404, "model: x", kind="not_found_error"), ModelRefused, "model_name"),
        (refuses(400, "bad", kind="invalid_request_error"), ModelRejected, "bad"),
        (refuses(400, "prompt is too long: 3 > 2", kind="invalid_request_error"), WindowExceeded, "shorter"),
        (refuses(400, "Your credit balance is too low", kind="billing_error"), ModelRefused, "credit"),
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
        Reasoning(text="", signature="redacted_thinking:m xyz"),
        ToolCall(call_id="c", tool="t", arguments={"a": 1}),
    )
    assert reply.usage.is_estimate
    assert (await answer(replies(says("hi"), usage=False))).usage.is_estimate


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


async def test_redacted_reasoning_is_kept_and_replayed() -> None:
    redacted = ModelReply(
        parts=(Reasoning(text="", signature="redacted_thinking:m xyz"), *RICH.parts),
        finish_reason="tool_calls",
        usage=USAGE,
        request_id="msg_scripted",
    )
    assert await answer(redacted) == redacted


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


def test_a_key_is_needed_for_the_vendors_own_server_only() -> None:
    with pytest.raises(ModelNotConfigured, match="ANTHROPIC_API_KEY"):
        make_provider("anthropic", ProviderSettings(kind="anthropic"))
    gateway = ProviderSettings(kind="anthropic", base_url="http://x", omit=("system",))
    assert make_provider("gateway", gateway).name == "gateway"
