from __future__ import annotations

import gzip
import random
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from pattern_core.messages import Reasoning, Text, ToolCall, user
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
from pattern_core.models.providers.openai import OpenAIProvider, worded
from pattern_core.models.providers.openai_chat import ChatDecoder, Server
from pattern_core.models.providers.openai_responses import ResponseDecoder
from pattern_core.models.providers.settings import OpenAIFormat, ProviderSettings, Secret
from pattern_core.testing import StoppedClock, calls, says, together
from pattern_core.testing.wire import Entry, Play, WireServer, document, events
from pattern_core.testing.wire_openai import chunk, refuses, replies, serve_openai

REQUEST = ModelRequest(model="m", system=("Be kind.",), messages=[user("hello")])
USAGE = Usage(input_tokens=7, output_tokens=3, cached_tokens=2, cache_write_tokens=4, reasoning_tokens=1)
RICH = together(
    says("Zażółć 😀 gęślą.", reasoning="Let me think.", usage=USAGE),
    calls("search", {"query": 'tea "with" żółw'}, call_id="c1"),
    calls("recall", {"op": "insert"}, call_id="c2"),
)
# What is sent back with the calls: the thoughts, in the field in which they came.
SIGNED = Reasoning(text="Let me think.", signature='chat:{"server": "openai", "field": "reasoning_content"}')
HEARD = (SIGNED, *RICH.parts[1:])


@dataclass
class Listener:
    """A provider that talks to a wire server, and the deltas that it gave."""

    server: WireServer
    key: str = "sk-secret"
    seen: list[Delta] = field(default_factory=list)
    heard: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.provider = OpenAIProvider("openai", Secret(self.key), f"{self.server.url}/v1", clock=StoppedClock())

    async def on_delta(self, delta: Delta) -> None:
        self.seen.append(delta)
        self.heard.set()

    async def ask(self, request: ModelRequest = REQUEST) -> ModelReply:
        return await self.provider.ask(request, self.on_delta)

    def text(self, kind: type[Delta] = TextDelta) -> str:
        return "".join(delta.text for delta in self.seen if isinstance(delta, kind))


async def answer(play: Play | ModelReply, request: ModelRequest = REQUEST) -> ModelReply:
    async with serve_openai([play]) as server:
        listener = Listener(server)
        try:
            return await listener.ask(request)
        finally:
            await listener.provider.aclose()


async def test_text_reasoning_calls_and_usage_arrive() -> None:
    async with serve_openai([RICH]) as server:
        listener = Listener(server)
        reply = await listener.ask()
        assert (reply.parts, reply.finish_reason, reply.usage) == (HEARD, "tool_calls", USAGE)
        assert reply.request_id == "chatcmpl-scripted"
        assert listener.text() == "Zażółć 😀 gęślą."
        assert listener.text(ReasoningDelta) == "Let me think."
        assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
        await listener.provider.aclose()


async def test_streams_cut_anywhere_give_the_same_reply_over_one_connection() -> None:
    play = replies(RICH)
    whole = range(len(play.body))
    cuts = [[at] for at in whole[:: len(whole) // 12]]
    cuts += [random.Random(seed).sample(whole, 40) for seed in range(6)]
    script: list[Entry | ModelReply] = [*(play.cut(edges) for edges in cuts), play.cut(whole)]
    async with serve_openai(script) as server:
        listener = Listener(server)
        for _ in script:
            reply = await listener.ask()
            assert (reply.parts, reply.finish_reason, reply.usage) == (HEARD, "tool_calls", USAGE)
        assert server.connections == 1
        await listener.provider.aclose()


async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable() -> None:
    started = Play(chunks=replies(says("Hello there")).chunks[:2], headers={"content-type": "text/event-stream"})
    hanging = Play(chunks=started.chunks, headers=started.headers, never_ends=True)
    async with serve_openai([says("load"), Play(never_answers=True), hanging, says("again")]) as server:
        listener = Listener(server)
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        await listener.ask()
        listener.seen.clear()
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
        assert "Hello there".startswith(listener.text())
        assert (await listener.ask()).parts == says("again").parts
        await listener.provider.aclose()


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (refuses(401, "Incorrect API key sk-secret", code="invalid_api_key"), ModelRefused, r"key \*\*\*\. Check"),
        (refuses(404, "no such model"), ModelRefused, "model_name"),
        (refuses(400, "bad"), ModelRejected, "bad"),
        (refuses(400, "too long", code="context_length_exceeded"), WindowExceeded, "shorter"),
        (refuses(429, "slow down", headers={"retry-after": "7"}), ModelOverloaded, "slow down"),
        (refuses(500, "oops"), ModelServerError, "oops"),
        (refuses(529, "busy"), ModelOverloaded, "busy"),
        (Play(status=502, chunks=(b"<html>Bad gateway",)), ModelServerError, "Bad gateway"),
        (Play(status=500, chunks=(b"abc",), stops_after=1), ModelUnreachable, "failed"),
        (document({"error": {"message": "queue full", "code": 429}}), ModelOverloaded, "queue full"),
        (events({"error": {"message": "died", "type": "server_error"}}), ModelServerError, "died"),
        (events(chunk({"content": "a"}), {"error": {"message": "died"}}), ModelServerError, "died"),
        (events("{not json"), ModelGarbage, "not JSON"),
        (events([1]), ModelGarbage, "not a JSON object"),
        (events({"foo": 1}), ModelGarbage, "without choices"),
        (events(chunk({"content": "half"})), ModelUnreachable, "before it was complete"),
        (events(), ModelUnreachable, "before it was complete"),
        (Play(chunks=(b"<html>login</html>",), headers={"content-type": "text/html"}), ModelGarbage, "base_url"),
        (Play(chunks=(b"nonsense",), headers={"content-type": "application/json"}), ModelGarbage, "not JSON"),
        (Play(chunks=(b"nonsense",)), ModelUnreachable, "complete"),
        (Play(chunks=(b"data: x",), stops_after=3), ModelUnreachable, "failed"),
    ],
)
async def test_failures_have_types_and_words(play: Play, kind: type[ModelError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await answer(play)
    assert "sk-secret" not in str(caught.value)
    assert caught.value.provider == "openai"
    if play.headers.get("retry-after"):
        assert caught.value.retry_after_s == 7


# httpx2 leaves its inner generators to the garbage collector when decompression fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_compressed_answers_are_read_and_broken_compression_is_garbage() -> None:
    plain = replies(says("hi"))
    packed = gzip.compress(plain.body)
    headers = {**plain.headers, "content-encoding": "gzip"}
    assert (await answer(Play(chunks=(packed,), headers=headers))).parts == says("hi").parts
    with pytest.raises(ModelGarbage, match="format"):
        await answer(Play(chunks=(b"no gzip",), headers=headers))


async def test_no_server_no_name_no_scheme() -> None:
    for url in ("http://127.0.0.1:9/v1", "ftp://somewhere/v1", "nonsense"):
        provider = OpenAIProvider("local", None, url)
        with pytest.raises(ModelUnreachable, match="local"):
            await provider.ask(REQUEST, Listener.on_delta.__get__(Listener(WireServer((), Play()))))
        await provider.aclose()


async def test_a_server_that_does_not_stream_is_understood() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "x", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    whole = {"id": "1", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": None}
    reply = await answer(document(whole))
    assert reply.parts == (Text(text="hi"), ToolCall(call_id="c", tool="x"))


async def test_what_on_delta_raises_comes_out_as_it_is() -> None:
    async def broken(delta: Delta) -> None:
        raise ValueError("a bug of ours")

    async with serve_openai([says("hi")]) as server:
        listener = Listener(server)
        with pytest.raises(ValueError, match="a bug of ours"):
            await listener.provider.ask(REQUEST, broken)
        await listener.provider.aclose()


async def test_omitted_fields_are_not_sent() -> None:
    async with serve_openai([says("hi")]) as server:
        made = ProviderSettings(kind="openai", base_url=f"{server.url}/v1", omit=("stream_options", "seed"))
        provider = OpenAIProvider.from_settings("mistral", made)
        await provider.ask(ModelRequest(model="m", system=(), messages=[user("hi")], seed=3), Listener(server).on_delta)
        assert not {"stream_options", "seed"} & set(server.requests[0].json())
        await provider.aclose()
        await provider.aclose()


@pytest.mark.parametrize(
    ("model", "is_own", "api", "is_responses"),
    [
        ("gpt-6.1-sol", True, "chat", True),
        ("gpt-6.1-sol", False, "chat", False),
        ("gpt-4.1", True, "chat", False),
        ("qwen3", False, "responses", True),
    ],
)
def test_the_format_is_the_one_that_the_server_takes(
    model: str, is_own: bool, api: OpenAIFormat, is_responses: bool
) -> None:
    body, decoder = worded(replace(REQUEST, model=model), Server(name="x", is_own=is_own), api)
    assert ("input" in body, "messages" in body) == (is_responses, not is_responses)
    assert isinstance(decoder, ResponseDecoder if is_responses else ChatDecoder)


def test_a_key_is_needed_for_the_vendors_own_server_only() -> None:
    with pytest.raises(ModelNotConfigured, match="OPENAI_API_KEY"):
        make_provider("openai", ProviderSettings(kind="openai"))
    assert make_provider("ollama", ProviderSettings(kind="openai", base_url="http://x/v1")).name == "ollama"
