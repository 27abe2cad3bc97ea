"""All providers over real sockets: what arrives, how it fails, and that cancelling closes the connection at once."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio
import trio.testing

from pattern_core.messages import Message, Reasoning, Text, ToolCall, ToolResult, user
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
from pattern_core.models.model import Delta, ModelReply, ModelRequest, ReasoningDelta
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.testing import says, wire_anthropic, wire_google, wire_openai
from pattern_core.testing.wire import Play, document, events
from tests.pattern_core.models.providers.rig import (
    ANTHROPIC,
    CONVERSATION,
    GOOGLE,
    OPENAI,
    RESPONSES,
    Vendor,
    connected,
    every,
)


async def answer(vendor: Vendor, play: Play | ModelReply, request: ModelRequest | None = None) -> ModelReply:
    async with connected(vendor, play) as client:
        return await client.ask(request)


@every
async def test_thoughts_text_calls_and_usage_arrive(vendor: Vendor) -> None:
    async with connected(vendor, vendor.reply) as client:
        assert await client.ask() == vendor.reply
        assert client.text() == "Zażółć 😀 gęślą."
        assert client.text(ReasoningDelta) == "Let me think."
        sent = client.server.requests[0]
        assert (sent.path, sent.headers | vendor.headers) == (vendor.path, sent.headers)


@every
async def test_streams_cut_anywhere_give_the_same_reply_over_one_connection(vendor: Vendor) -> None:
    play = vendor.replies(vendor.reply)
    whole = range(len(play.body))
    cuts = [[at] for at in whole[:: len(whole) // 12]]
    cuts += [random.Random(seed).sample(whole, 40) for seed in range(6)]
    script: list[Play | ModelReply] = [*(play.cut(edges) for edges in cuts), play.cut(whole)]
    async with connected(vendor, *script) as client:
        for _ in script:
            assert await client.ask() == vendor.reply
        assert client.server.connections == 1


@every
async def test_early_closes_are_noticed_wherever_they_come(vendor: Vendor) -> None:
    play = vendor.replies(vendor.reply)
    places = range(0, len(play.body), len(play.body) // 12)
    script = [Play(chunks=(play.body,), headers=play.headers, stops_after=at) for at in places[:-1]]
    async with connected(vendor, *script) as client:
        for _ in script:
            with pytest.raises(ModelUnreachable):
                await client.ask()


@every
async def test_cancelling_closes_the_socket_at_once_and_leaves_the_provider_usable(vendor: Vendor) -> None:
    stream = vendor.replies(says("Hello there"))
    hanging = replace(stream, chunks=stream.chunks[: vendor.first_words], never_ends=True)
    script: list[Play | ModelReply] = [says("load"), Play(never_answers=True), hanging, says("again")]
    async with connected(vendor, *script) as client:
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        await client.ask()
        for number in (2, 3):
            client.heard = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.ask)
                exchange = await client.server.arrived(number)
                if number == 3:
                    await client.heard.wait()
                nursery.cancel_scope.cancel()
            with trio.fail_after(60):
                await exchange.client_gone.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert (await client.ask()).parts == says("again").parts


async def check_failure(vendor: Vendor, play: Play, kind: type[ModelError], words: str) -> None:
    """Fail unless the answer becomes an error of this kind whose words match and show no secret."""
    with pytest.raises(kind, match=words) as caught:
        await answer(vendor, play)
    assert "sk-secret" not in str(caught.value)
    assert caught.value.provider == vendor.name
    if play.headers.get("retry-after") or "Retry in" in words:
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (Play(status=502, chunks=(b"<html>Bad gateway",)), ModelServerError, "Bad gateway"),
        (Play(status=301, headers={"location": "http://127.0.0.1:9/"}), ModelGarbage, "base_url"),
        (Play(status=500, chunks=(b"abc",), stops_after=1), ModelUnreachable, "lost in the middle"),
        (events("{not json"), ModelGarbage, "not a JSON object"),
        (events([1]), ModelGarbage, "not a JSON object"),
        (Play(chunks=(b"<html>login</html>",), headers={"content-type": "text/html"}), ModelGarbage, "base_url"),
        (Play(chunks=(b"nonsense",), headers={"content-type": "application/json"}), ModelGarbage, "not a JSON object"),
        (Play(chunks=(b"nonsense",)), ModelUnreachable, "complete"),
        (Play(chunks=(b"data: x",), stops_after=3), ModelUnreachable, r"\(127\.0\.0\.1:\d+\) was lost in the middle"),
    ],
)
@every
async def test_what_is_no_answer_of_any_vendor(vendor: Vendor, play: Play, kind: type[ModelError], words: str) -> None:
    await check_failure(vendor, play, kind, words)


FAILURES: Mapping[Vendor, list[tuple[Play, type[ModelError], str]]] = {
    ANTHROPIC: [
        (wire_anthropic.refuses(401, "invalid x-api-key sk-secret"), ModelRefused, r"\*\*\*\. Check"),
        (wire_anthropic.refuses(400, "Your credit balance is too low", kind="billing_error"), ModelRefused, "credit"),
        (wire_anthropic.refuses(429, "slow", headers={"retry-after": "7"}), ModelOverloaded, "slow"),
        (
            events({"type": "error", "error": {"type": "overloaded_error", "message": "later"}}, names=True),
            ModelOverloaded,
            "later",
        ),
        (Play(chunks=(b"event: error\ndata: {}\n\n",)), ModelServerError, "500"),
        (document({"type": "error", "error": {"message": "x"}}), ModelServerError, "x"),
        (document({"hello": 1}), ModelGarbage, "without content"),
        (
            events({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta"}}),
            ModelGarbage,
            "never began",
        ),
        (events(wire_anthropic.PING, {"type": "message_stop"}), ModelUnreachable, "before it was complete"),
    ],
    GOOGLE: [
        (wire_google.refuses(400, "API key not valid. sk-secret"), ModelRefused, r"\*\*\*\. Check"),
        (wire_google.refuses(403, "no", kind="PERMISSION_DENIED"), ModelRefused, "PERMISSION_DENIED: no"),
        (
            wire_google.refuses(429, "slow", kind="RESOURCE_EXHAUSTED", details=[{"retryDelay": "7s"}]),
            ModelOverloaded,
            "Retry in",
        ),
        (document([{"error": {"code": 429, "message": "busy"}}], status=429), ModelOverloaded, "busy"),
        (document({"error": {"message": "x"}}), ModelServerError, "x"),
        (document({"hello": 1}), ModelGarbage, "without candidates"),
        (events({"promptFeedback": {"blockReason": "SAFETY"}}), ModelRejected, "blocked \\(SAFETY\\)"),
        (
            events(wire_google.chunk({"text": "a"}), {"error": {"code": 503, "message": "later"}}),
            ModelOverloaded,
            "later",
        ),
        (events(wire_google.chunk({"text": "a"}, finish="MALFORMED_FUNCTION_CALL")), ModelGarbage, "called a tool"),
        (events(wire_google.chunk({"functionCall": {"args": {}}}, finish="STOP")), ModelGarbage, "without a name"),
        (events(wire_google.chunk({"text": "half"})), ModelUnreachable, "before it was complete"),
    ],
    OPENAI: [
        (wire_openai.refuses(401, "Incorrect API key sk-secret"), ModelRefused, r"key \*\*\*\. Check"),
        (wire_openai.refuses(404, "no such model"), ModelRefused, "model_name"),
        (wire_openai.refuses(400, "too long", code="context_length_exceeded"), WindowExceeded, "shorter"),
        (wire_openai.refuses(429, "slow down", headers={"retry-after": "7"}), ModelOverloaded, "slow down"),
        (document({"error": {"message": "queue full", "code": 429}}), ModelOverloaded, "queue full"),
        (events({"error": {"message": "died", "type": "server_error"}}), ModelServerError, "died"),
        (events(wire_openai.chunk({"content": "a"}), {"error": {"message": "died"}}), ModelServerError, "died"),
        (events({"foo": 1}), ModelGarbage, "without choices"),
        (events(wire_openai.chunk({"content": "half"})), ModelUnreachable, "before it was complete"),
    ],
    RESPONSES: [
        (
            events({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}}),
            ModelServerError,
            "server_error: x",
        ),
        (events({"type": "response.failed", "response": {"status": "failed"}}), ModelServerError, "was failed"),
        (events({"type": "response.cancelled", "response": {"status": "cancelled"}}), ModelServerError, "cancelled"),
        (events({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}), ModelOverloaded, "slow"),
        (
            events({"type": "error", "error": {"code": "context_length_exceeded", "message": "long"}}, names=True),
            WindowExceeded,
            "shorter",
        ),
        (document({"error": {"message": "died"}}), ModelServerError, "died"),
        (document({"hello": 1}), ModelGarbage, "without output"),
        (events({"type": "response.function_call_arguments.delta", "delta": "{"}), ModelGarbage, "never began"),
        (events({"type": "response.created"}), ModelUnreachable, "before it was complete"),
    ],
}


@pytest.mark.parametrize(
    ("vendor", "play", "kind", "words"), [(vendor, *row) for vendor, rows in FAILURES.items() for row in rows]
)
async def test_failures_of_a_vendor_have_types_and_words(
    vendor: Vendor, play: Play, kind: type[ModelError], words: str
) -> None:
    await check_failure(vendor, play, kind, words)


# httpx2 leaves its inner generators to the garbage collector when decompression fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_compressed_answers_are_read_and_broken_compression_is_garbage() -> None:
    plain = wire_openai.replies(says("hi"))
    packed = gzip.compress(plain.body)
    headers = {**plain.headers, "content-encoding": "gzip"}
    assert (await answer(OPENAI, Play(chunks=(packed,), headers=headers))).parts == says("hi").parts
    with pytest.raises(ModelGarbage, match="invalid answer"):
        await answer(OPENAI, Play(chunks=(b"no gzip",), headers=headers))


async def ignore(delta: Delta) -> None:
    """Show nothing."""


@every
async def test_no_server_no_name_no_scheme(vendor: Vendor) -> None:
    for url in ("http://127.0.0.1:9/v1", "ftp://somewhere/v1", "nonsense"):
        provider = vendor.provider(url, key=None)
        with pytest.raises(ModelUnreachable, match=vendor.name):
            await provider.ask(vendor.request, ignore)
        await provider.aclose()


async def test_a_server_that_does_not_stream_is_understood() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "x", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    whole = {"id": "1", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": None}
    reply = await answer(OPENAI, document(whole))
    assert reply.parts == (Text(text="hi"), ToolCall(call_id="c", tool="x"))


async def test_a_gateway_that_does_not_stream_and_no_usage() -> None:
    content = [
        {"type": "text", "text": "hi"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "tool_use", "id": "c", "name": "t", "input": {"a": 1}},
        {"type": "server_tool_use"},
    ]
    reply = await answer(ANTHROPIC, document({"id": "m", "content": content, "stop_reason": "tool_use"}))
    assert reply.parts == (
        Text(text="hi"),
        Reasoning(text="", signature="redacted_thinking:m xyz"),
        ToolCall(call_id="c", tool="t", arguments={"a": 1}),
    )
    assert reply.usage.is_estimate


@every
async def test_what_on_delta_raises_comes_out_as_it_is(vendor: Vendor) -> None:
    async def broken(delta: Delta) -> None:
        raise ValueError("a bug of ours")

    async with connected(vendor, says("hi")) as client:
        with pytest.raises(ValueError, match="a bug of ours"):
            await client.provider.ask(vendor.request, broken)


@every
async def test_pings_before_an_answer_begins_are_no_signs_of_life(vendor: Vendor) -> None:
    async with connected(vendor, Play(chunks=(b": ping\n\n",) * 3)) as client:
        with pytest.raises(ModelUnreachable):
            await client.ask()
        assert client.seen == []


@every
async def test_omitted_fields_are_not_sent_and_a_key_may_be_missing(vendor: Vendor) -> None:
    async with connected(vendor, says("hi")) as client:
        server = client.server
        url = f"{server.url}/v1beta/" if vendor is GOOGLE else server.url + vendor.url + "/"
        omit = ("stream_options", "systemInstruction", "system", "instructions")
        provider = vendor.make("mine", ProviderSettings(kind=vendor.name, base_url=url, omit=omit, api=vendor.api))
        assert (await provider.ask(vendor.request, client.on_delta)).parts == says("hi").parts
        assert (server.requests[0].path, set(omit) & set(server.requests[0].json())) == (vendor.path, set())
        await provider.aclose()
        await provider.aclose()


@every
async def test_what_was_signed_goes_back_as_it_came(vendor: Vendor) -> None:
    results = [
        Message(role="tool", parts=(ToolResult(call_id=call.call_id, tool=call.tool, content="ok"),))
        for call in vendor.reply.parts
        if isinstance(call, ToolCall)
    ]
    async with connected(vendor, vendor.reply, says("done")) as client:
        first = await client.ask()
        conversation = [user("hello"), Message(role="assistant", parts=first.parts), *results]
        await client.ask(replace(vendor.request, messages=conversation))
        sent = client.server.requests[1].json()
    assert count_of("sig+/=", sent) == (1 if vendor in (ANTHROPIC, GOOGLE) else 0)
    assert count_of("gAAA", sent) == count_of("commentary", sent) == (1 if vendor is RESPONSES else 0)
    assert count_of("Let me think.", sent) == (0 if vendor is GOOGLE else 1)


def count_of(text: str, body: object) -> int:
    return json.dumps(body).count(text)


async def test_redacted_reasoning_is_kept() -> None:
    redacted = Reasoning(text="", signature="redacted_thinking:m xyz")
    reply = replace(ANTHROPIC.reply, parts=(redacted, *ANTHROPIC.reply.parts))
    assert await answer(ANTHROPIC, reply) == reply


REDACTED = Message(role="assistant", parts=(Reasoning(text="", signature="redacted_thinking:m d"), Text(text="b")))


@pytest.mark.parametrize(
    ("messages", "system", "memory"),
    [
        ([], "", ""),
        ([user(" ")], " ", "\n"),
        ([], "", "now"),
        ([user("a"), user("b"), *CONVERSATION, *CONVERSATION[:1]], "", ""),
        (CONVERSATION, "", "now"),
        ([user("a"), REDACTED], "", ""),
    ],
)
@pytest.mark.parametrize("vendor", [ANTHROPIC, GOOGLE], ids=str)
async def test_every_conversation_becomes_one_that_the_vendor_accepts(
    vendor: Vendor, messages: list[Message], system: str, memory: str
) -> None:
    request = ModelRequest(model="m", system=[system], messages=messages, memory=[memory])
    assert (await answer(vendor, says("fine"), request)).parts == says("fine").parts
