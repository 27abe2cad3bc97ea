from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Image, Message, Reasoning, Text, ToolCall, ToolResult, user
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
from pattern_core.models.providers.draft import Garbled, Unfinished
from pattern_core.models.providers.openai import ChatDecoder, OpenAIProvider, encode
from pattern_core.models.providers.settings import ProviderSettings, Secret
from pattern_core.models.providers.sse import EventDecoder, ServerEvent
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
        assert (reply.parts, reply.finish_reason, reply.usage) == (RICH.parts, "tool_calls", USAGE)
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
            assert (reply.parts, reply.finish_reason, reply.usage) == (RICH.parts, "tool_calls", USAGE)
        assert server.connections == 1
        await listener.provider.aclose()


def test_any_cut_of_the_bytes_decodes_alike() -> None:
    body = replies(RICH).body
    for at in range(0, len(body) + 1, 3):
        events_, decoder = EventDecoder(), ChatDecoder(REQUEST, "openai")
        for event in (*events_.feed(body[:at]), *events_.feed(body[at:]), *events_.end()):
            decoder.feed(event)
        assert decoder.reply(None).parts == RICH.parts


async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable() -> None:
    started = Play(chunks=replies(says("Hello there")).chunks[:2], headers={"content-type": "text/event-stream"})
    hanging = Play(chunks=started.chunks, headers=started.headers, never_ends=True)
    async with serve_openai([says("load"), Play(never_answers=True), hanging, says("again")]) as server:
        listener = Listener(server)
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        await listener.ask()
        listener.seen.clear()
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
        assert "Hello there".startswith(listener.text())
        assert (await listener.ask()).parts == says("again").parts
        await listener.provider.aclose()


def parts_of(*deltas: dict[str, object], finish: str | None = "stop") -> ModelReply:
    decoder = ChatDecoder(REQUEST, "openai")
    for delta in deltas:
        decoder.feed(ServerEvent(event="", data=json.dumps(chunk(delta))))
    decoder.feed(ServerEvent(event="", data=json.dumps(chunk({}, finish_reason=finish))))
    decoder.feed(ServerEvent(event="", data="[DONE]"))
    return decoder.reply(None)


def call(
    arguments: object, *, index: object = 0, call_id: str | None = None, name: str | None = None
) -> dict[str, object]:
    piece: dict[str, object] = {"function": {"name": name, "arguments": arguments}, "id": call_id, "index": index}
    return {"content": None, "tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def test_a_server_without_usage_gets_an_estimate() -> None:
    usage = parts_of({"content": "four words are here"}).usage
    assert usage.is_estimate
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0


def test_calls_in_one_piece_without_ids_or_with_repeated_indices() -> None:
    reply = parts_of(
        call('{"a":1}', name="x"), call({"b": 2}, name="y", call_id="c2"), call(None, name="z", call_id="c3")
    )
    found = [part for part in reply.parts if isinstance(part, ToolCall)]
    assert [(part.tool, part.arguments) for part in found] == [("x", {"a": 1}), ("y", {"b": 2}), ("z", {})]
    assert found[0].call_id.startswith("call_0_")
    no_index = parts_of(
        call('{"a":', index=None, name="x", call_id="c1"),
        call("1}", index=None),
        call("{}", index=None, name="y", call_id="c2"),
    )
    assert [(part.tool, part.arguments) for part in no_index.parts if isinstance(part, ToolCall)] == [
        ("x", {"a": 1}),
        ("y", {}),
    ]
    assert no_index.finish_reason == "tool_calls"


def test_names_repeated_in_every_chunk_are_one_name() -> None:
    reply = parts_of(call('{"a":', name="x", call_id="c1"), call("1}", name="x", call_id="c1"))
    assert reply.parts == (ToolCall(call_id="c1", tool="x", arguments={"a": 1}),)


def test_arguments_that_are_no_json_become_an_invalid_call() -> None:
    assert parts_of(call('{"a":', name="x", call_id="c"), finish="length") == ModelReply(
        parts=(ToolCall(call_id="c", tool="x", invalid='{"a":'),),
        finish_reason="length",
        usage=parts_of(call('{"a":', name="x", call_id="c"), finish="length").usage,
        request_id="chatcmpl-scripted",
    )


def test_other_forms_of_content() -> None:
    assert parts_of({"content": [{"type": "text", "text": "a"}, {"text": None}, 3]}).parts == (Text(text="a"),)
    assert parts_of({"refusal": "no"}).parts == (Text(text="no"),)
    assert parts_of({"reasoning": "r", "content": "c"}).parts == (Reasoning(text="r"), Text(text="c"))
    both = parts_of({"reasoning": "r", "reasoning_content": "r", "content": None})
    assert both.parts == (Reasoning(text="r"),)
    assert [
        parts_of({"content": "x"}, finish=end).finish_reason for end in ("eos", "content_filter", "length", None)
    ] == [
        "other",
        "content_filter",
        "length",
        "stop",
    ]


def test_the_end_of_a_stream() -> None:
    decoder = ChatDecoder(REQUEST, "openai")
    decoder.feed(ServerEvent(event="", data=json.dumps(chunk({"content": "half"}))))
    with pytest.raises(Unfinished):
        decoder.reply(None)
    decoder.feed(ServerEvent(event="", data=json.dumps(chunk({}, finish_reason="stop"))))
    assert not decoder.is_done
    assert decoder.reply("req").request_id == "req"
    empty = ChatDecoder(REQUEST, "openai")
    empty.feed(ServerEvent(event="", data="[DONE]"))
    with pytest.raises(Garbled, match="without an answer"):
        empty.reply(None)


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
    message = {"role": "assistant", "content": "hi", "tool_calls": [call("{}", name="x", call_id="c")["tool_calls"][0]]}  # type: ignore[index]  # JSON
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


KEYS = ["choices", "delta", "message", "content", "tool_calls", "function", "index", "id", "name", "arguments"]
KEYS += ["usage", "prompt_tokens", "completion_tokens", "finish_reason", "error", "code", "x"]
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
malformed = junk.map(json.dumps) | st.text(max_size=20) | junk.map(lambda value: json.dumps(chunk({"content": value})))
malformed |= junk.map(lambda value: json.dumps(chunk({"tool_calls": [value]}, finish_reason="stop")))
malformed |= junk.map(lambda value: json.dumps({"choices": [value]}))


def feed_all(datas: list[str]) -> Iterator[Delta]:
    decoder = ChatDecoder(REQUEST, "openai")
    for data in datas:
        yield from decoder.feed(ServerEvent(event="", data=data))
    for part in decoder.reply(None).parts:
        json.dumps(repr(part), ensure_ascii=False).encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(malformed, min_size=1, max_size=3))
def test_malformed_chunks_are_garbled_or_errors_of_the_model(datas: list[str]) -> None:
    with suppress(Garbled, Unfinished, ModelError):
        list(feed_all(datas))


def test_the_fields_of_a_request() -> None:
    request = ModelRequest(
        model="gpt",
        system=(),
        messages=(),
        tools=[ToolSpec(name="search", description="Find.", parameters={"type": "object"})],
        max_output_tokens=99,
        temperature=0.0,
        stop=["END"],
        seed=1 << 62 | 5,
        extra={"reasoning_effort": "low"},
    )
    function = {"name": "search", "description": "Find.", "parameters": {"type": "object"}}
    assert encode(request, is_openai=True) == {
        "model": "gpt",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 99,
        "temperature": 0.0,
        "stop": ["END"],
        "seed": 5,
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": function}],
    }
    plain = encode(REQUEST, is_openai=False)
    assert plain["max_tokens"] == 4_096
    assert not {"tools", "seed", "stop", "temperature", "top_p", "max_completion_tokens"} & set(plain)


def test_the_messages_of_a_request() -> None:
    conversation = [
        user("find tea"),
        Message(role="assistant", parts=(Reasoning(text="hm", signature="s"), Text(text="Looking."), *RICH.parts[2:])),
        Message(role="tool", parts=(ToolResult(call_id="c1", tool="search", content="none", is_error=True),)),
        Message(role="tool", parts=(ToolResult(call_id="c2", tool="recall", content="ok"),)),
        Message(role="system", parts=(Text(text="a notice"),)),
        Message(role="assistant", parts=(ToolCall(call_id="c3", tool="search", invalid="{"),)),
        Message(role="tool", parts=(ToolResult(call_id="c3", tool="search", content="x"),)),
        Message(role="assistant", parts=(Reasoning(text="only thought"),)),
    ]
    request = ModelRequest(model="gpt", system=["one", "two"], messages=conversation, tail=["now is noon"])
    messages = encode(request, is_openai=True)["messages"]
    assert isinstance(messages, list)
    roles = ["system", "user", "assistant", "tool", "tool", "system", "assistant", "tool", "system"]
    assert [message["role"] for message in messages] == roles
    assert messages[0]["content"] == "one\n\ntwo"
    assert messages[2]["content"] == "Looking."
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {"query": 'tea "with" żółw'}
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "Error: none"}
    assert messages[6]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert messages[6]["content"] is None
    assert messages[-1] == {"role": "system", "content": "now is noon"}


def test_forced_tools_answers_by_a_schema_and_effort() -> None:
    tools = [ToolSpec(name="search", description="", parameters={})]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    request = ModelRequest(
        model="m", system=(), messages=(), tools=tools, force_tool="*", response_schema=schema, reasoning_effort="low"
    )
    body = encode(request, is_openai=True)
    assert body["tool_choice"] == "required"
    assert body["reasoning_effort"] == "low"
    answer = {"name": "answer", "schema": schema, "strict": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": answer}
    named = encode(ModelRequest(model="m", system=(), messages=(), tools=tools, force_tool="search"), is_openai=True)
    assert named["tool_choice"] == {"type": "function", "function": {"name": "search"}}
    assert "tool_choice" not in encode(
        ModelRequest(model="m", system=(), messages=(), force_tool="search"), is_openai=True
    )


def test_images_make_content_a_list() -> None:
    parts = (
        Text(text="see"),
        Image(media_type="image/png", data=b"\x89PNG"),
        Image(media_type="", url="https://x/a.png"),
        Image(media_type="image/png", digest="ab"),
    )
    request = ModelRequest(model="m", system=(), messages=[Message(role="user", parts=parts), user("plain")])
    messages = encode(request, is_openai=False)["messages"]
    assert isinstance(messages, list)
    assert messages[0]["content"][:3] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
    ]
    assert "not at hand" in messages[0]["content"][3]["text"]
    assert messages[1]["content"] == "plain"


def test_what_servers_hang_on_a_call_goes_back_to_them() -> None:
    extra = {"google": {"thought_signature": "s"}}
    piece = call("{}", name="x", call_id="c")
    piece["tool_calls"][0]["extra_content"] = extra  # type: ignore[index]  # JSON
    (kept,) = parts_of(piece).parts
    assert isinstance(kept, ToolCall)
    assert kept.signature == 'chat:{"google": {"thought_signature": "s"}}'
    request = ModelRequest(model="m", system=(), messages=[Message(role="assistant", parts=(kept,))])
    messages = encode(request, is_openai=False)["messages"]
    assert isinstance(messages, list)
    assert messages[0]["tool_calls"][0]["extra_content"] == extra


async def test_omitted_fields_are_not_sent() -> None:
    async with serve_openai([says("hi")]) as server:
        made = ProviderSettings(kind="openai", base_url=f"{server.url}/v1", omit=("stream_options", "seed"))
        provider = OpenAIProvider.from_settings("mistral", made)
        await provider.ask(ModelRequest(model="m", system=(), messages=[user("hi")], seed=3), Listener(server).on_delta)
        assert not {"stream_options", "seed"} & set(server.requests[0].json())
        await provider.aclose()
        await provider.aclose()


def test_a_key_is_needed_for_the_vendors_own_server_only() -> None:
    with pytest.raises(ModelNotConfigured, match="OPENAI_API_KEY"):
        OpenAIProvider.from_settings("openai", ProviderSettings(kind="openai"))
    assert (
        OpenAIProvider.from_settings("ollama", ProviderSettings(kind="openai", base_url="http://x/v1")).name == "ollama"
    )


@pytest.mark.parametrize(
    ("last", "ends"),
    [
        (user("hi"), [{"role": "user", "content": "hi\n\nnow is noon"}]),
        (Message(role="assistant", parts=(Text(text="well"),)), [{"role": "user", "content": "now is noon"}]),
    ],
)
def test_other_servers_are_told_the_tail_in_the_users_words(last: Message, ends: list[dict[str, object]]) -> None:
    request = ModelRequest(model="m", system=["one"], messages=[last], tail=["now is noon"])
    sent = cast("list[dict[str, object]]", encode(request, is_openai=False)["messages"])
    assert sent[-1:] == ends
    assert [message["role"] for message in sent].count("system") == 1
    own = cast("list[dict[str, object]]", encode(request, is_openai=True)["messages"])
    assert own[-1] == {"role": "system", "content": "now is noon"}
