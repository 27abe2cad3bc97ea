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
from pattern_core.models.model import Delta, ModelReply, ModelRequest, ReasoningDelta, TextDelta, Usage
from pattern_core.models.providers import make_provider
from pattern_core.models.providers.google import GoogleProvider
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.testing import StoppedClock, says
from pattern_core.testing.wire import Entry, Play, WireServer, document, events
from pattern_core.testing.wire_google import chunk, refuses, replies, serve_google

REQUEST = ModelRequest(model="gemini-3-pro", system=("Be kind.",), messages=[user("hello")])
RICH = ModelReply(
    parts=(
        Reasoning(text="Let me think."),
        Text(text="Zażółć 😀 gęślą."),
        ToolCall(call_id="c1", tool="search", arguments={"query": 'tea "with" żółw'}, signature="google:sig+/="),
        ToolCall(call_id="c2", tool="recall", arguments={"op": "insert"}),
    ),
    finish_reason="tool_calls",
    usage=Usage(input_tokens=7, output_tokens=5, cached_tokens=2, reasoning_tokens=2),
    request_id="resp-scripted",
)
SSE = {"content-type": "text/event-stream"}


@dataclass
class Listener:
    """A provider that talks to a wire server, and the deltas that it gave."""

    server: WireServer
    seen: list[Delta] = field(default_factory=list)
    heard: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.provider = GoogleProvider("google", Secret("AI-secret"), self.server.url, clock=StoppedClock())

    async def on_delta(self, delta: Delta) -> None:
        self.seen.append(delta)
        self.heard.set()

    async def ask(self, request: ModelRequest = REQUEST) -> ModelReply:
        return await self.provider.ask(request, self.on_delta)

    def text(self, kind: type[Delta] = TextDelta) -> str:
        return "".join(delta.text for delta in self.seen if isinstance(delta, kind))


async def answer(play: Play | ModelReply, request: ModelRequest = REQUEST) -> ModelReply:
    async with serve_google([play]) as server:
        listener = Listener(server)
        try:
            return await listener.ask(request)
        finally:
            await listener.provider.aclose()


async def test_thoughts_text_calls_and_usage_arrive() -> None:
    async with serve_google([RICH]) as server:
        listener = Listener(server)
        assert await listener.ask() == RICH
        assert listener.text() == "Zażółć 😀 gęślą."
        assert listener.text(ReasoningDelta) == "Let me think."
        assert server.requests[0].headers["x-goog-api-key"] == "AI-secret"
        assert server.requests[0].path == "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"
        await listener.provider.aclose()


async def test_what_was_signed_goes_back_as_it_came() -> None:
    results = [
        Message(role="tool", parts=(ToolResult(call_id=call.call_id, tool=call.tool, content="ok"),))
        for call in RICH.parts
        if isinstance(call, ToolCall)
    ]
    async with serve_google([RICH, says("done")]) as server:
        listener = Listener(server)
        first = await listener.ask()
        conversation = [user("hello"), Message(role="assistant", parts=first.parts), *results]
        await listener.ask(ModelRequest(model="gemini-3-pro", system=(), messages=conversation))
        contents = server.requests[1].json()["contents"]
        assert isinstance(contents, list)
        assert contents[1]["parts"][1]["thoughtSignature"] == "sig+/="
        assert "thoughtSignature" not in contents[1]["parts"][2]
        await listener.provider.aclose()


async def test_streams_cut_anywhere_give_the_same_reply_over_one_connection() -> None:
    play = replies(RICH)
    whole = range(len(play.body))
    cuts = [[at] for at in whole[:: len(whole) // 12]]
    cuts += [random.Random(seed).sample(whole, 40) for seed in range(4)]
    script: list[Entry | ModelReply] = [*(play.cut(edges) for edges in cuts), play.cut(whole)]
    async with serve_google(script) as server:
        listener = Listener(server)
        for _ in script:
            assert await listener.ask() == RICH
        assert server.connections == 1
        await listener.provider.aclose()


async def test_early_closes_are_noticed_wherever_they_come() -> None:
    body = len(replies(RICH).body)
    async with serve_google(
        [Play(chunks=(replies(RICH).body,), headers=SSE, stops_after=at) for at in _places(body)]
    ) as (server):
        listener = Listener(server)
        for _ in _places(body):
            with pytest.raises(ModelUnreachable):
                await listener.ask()
        await listener.provider.aclose()


def _places(size: int) -> range:
    return range(0, size, size // 12)


async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable() -> None:
    hanging = Play(chunks=replies(says("Hello there")).chunks[:1], headers=SSE, never_ends=True)
    async with serve_google([says("load"), Play(never_answers=True), hanging, says("again")]) as server:
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
        (refuses(400, "API key not valid. AI-secret", kind="INVALID_ARGUMENT"), ModelRefused, r"\*\*\*\. Check"),
        (refuses(403, "no", kind="PERMISSION_DENIED"), ModelRefused, "PERMISSION_DENIED: no"),
        (refuses(404, "no such model", kind="NOT_FOUND"), ModelRefused, "model_name"),
        (refuses(400, "bad", kind="INVALID_ARGUMENT"), ModelRejected, "bad"),
        (refuses(400, "The input token count (9) exceeds the maximum"), WindowExceeded, "shorter"),
        (refuses(429, "slow", kind="RESOURCE_EXHAUSTED", details=[{"retryDelay": "7s"}]), ModelOverloaded, "Retry in"),
        (refuses(500, "oops", kind="INTERNAL"), ModelServerError, "oops"),
        (refuses(503, "The model is overloaded", kind="UNAVAILABLE"), ModelOverloaded, "overloaded"),
        (Play(status=502, chunks=(b"<html>Bad gateway",)), ModelServerError, "Bad gateway"),
        (Play(status=301, headers={"location": "http://127.0.0.1:9/"}), ModelGarbage, "base_url"),
        (document([{"error": {"code": 429, "message": "busy"}}], status=429), ModelOverloaded, "busy"),
        (document({"error": {"message": "x"}}), ModelServerError, "x"),
        (document({"hello": 1}), ModelGarbage, "without candidates"),
        (events({"promptFeedback": {"blockReason": "SAFETY"}}), ModelRejected, "blocked \\(SAFETY\\)"),
        (events(chunk({"text": "a"}), {"error": {"code": 503, "message": "later"}}), ModelOverloaded, "later"),
        (events(chunk({"text": "a"}, finish="MALFORMED_FUNCTION_CALL")), ModelGarbage, "called a tool"),
        (events("{not json"), ModelGarbage, "not JSON"),
        (events([1]), ModelGarbage, "not a JSON object"),
        (events(chunk({"functionCall": {"args": {}}}, finish="STOP")), ModelGarbage, "without a name"),
        (events(chunk({"text": "half"})), ModelUnreachable, "before it was complete"),
        (Play(chunks=(b"<html>login</html>",), headers={"content-type": "text/html"}), ModelGarbage, "base_url"),
    ],
)
async def test_failures_have_types_and_words(play: Play, kind: type[ModelError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await answer(play)
    assert "AI-secret" not in str(caught.value)
    assert caught.value.provider == "google"
    if "Retry in" in words:
        assert caught.value.retry_after_s == 7


async def test_no_server() -> None:
    for url in ("http://127.0.0.1:9", "ftp://somewhere", "nonsense"):
        provider = GoogleProvider("gateway", Secret("k"), url)
        with pytest.raises(ModelUnreachable, match="gateway"):
            await provider.ask(REQUEST, Listener(WireServer((), Play())).on_delta)
        await provider.aclose()


async def test_comments_are_signs_of_life_and_a_version_in_the_address_stays() -> None:
    async with serve_google([Play(chunks=(b": ping\n\n", *replies(says("hi")).chunks), headers=SSE)]) as server:
        listener = Listener(server)
        made = ProviderSettings(kind="google", base_url=f"{server.url}/v1beta/", omit=("systemInstruction",))
        provider = GoogleProvider.from_settings("mine", made)
        assert (await provider.ask(REQUEST, listener.on_delta)).parts == says("hi").parts
        assert listener.seen[0] == TextDelta(text="")
        assert "systemInstruction" not in server.requests[0].json()
        await provider.aclose()


def test_a_key_is_needed_for_the_vendors_own_server_only() -> None:
    with pytest.raises(ModelNotConfigured, match="GEMINI_API_KEY"):
        make_provider("google", ProviderSettings(kind="google"))
