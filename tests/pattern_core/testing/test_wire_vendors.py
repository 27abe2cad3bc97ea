"""The vendors' stand-ins: streams as the vendors' references show them, and refusals by the vendors' own rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from pattern_core.messages import Reasoning, Text, ToolResult
from pattern_core.models.model import ModelReply, Usage
from pattern_core.models.providers.encoding import as_dict
from pattern_core.testing import calls, says, together, wire_anthropic, wire_google, wire_openai, wire_responses
from pattern_core.testing.wire import Play, Scripted


def datas(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, but for its end mark."""
    lines = body.decode().removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    return [json.loads(line.partition("data: ")[2]) for line in lines]


def test_a_reply_as_a_stream_of_anthropic() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2)
    reply = together(says("hello", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    signed = ModelReply(
        parts=(Reasoning(text="so", signature="anthropic:m sig"), *reply.parts), finish_reason="stop", usage=usage
    )
    stream = datas(wire_anthropic.replies(signed, slice_chars=4).body)
    assert [data["type"] for data in stream][:3] == ["message_start", "ping", "content_block_start"]
    deltas = [data["delta"] for data in stream if data["type"] == "content_block_delta"]
    assert deltas[:4] == [
        {"type": "thinking_delta", "thinking": "so"},
        {"type": "signature_delta", "signature": "sig"},
        {"type": "text_delta", "text": "hell"},
        {"type": "text_delta", "text": "o"},
    ]
    assert wire_anthropic.replies(signed).body.startswith(b"event: message_start\ndata: {")
    assert stream[-1] == {"type": "message_stop"}
    assert stream[-2]["usage"] == {"output_tokens": 3, "output_tokens_details": {"thinking_tokens": 0}}


def test_a_reply_as_a_stream_of_openai() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2)
    reply = together(says("hello", reasoning="so", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    stream = datas(wire_openai.replies(reply, slice_chars=4).body)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream if chunk["choices"]]
    assert deltas[1:4] == [{"reasoning_content": "so"}, {"content": "hell"}, {"content": "o"}]
    assert deltas[4]["tool_calls"][0]["function"] == {"name": "search", "arguments": ""}
    assert "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[5:-1]) == '{"q": "ż"}'
    last = datas(wire_openai.replies(reply).body)[-1]
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_reply_as_a_stream_of_responses() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2, cache_write_tokens=1, reasoning_tokens=1)
    reply = together(says("hello", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    thought = Reasoning(text="so", signature='openai:{"id": "rs", "encrypted_content": "x"}')
    whole = ModelReply(parts=(thought, *reply.parts), finish_reason="tool_calls", usage=usage)
    stream = datas(wire_responses.replies(whole).body)
    assert " ".join(data["type"].removeprefix("response.").removeprefix("output_") for data in stream) == " ".join(
        (
            "created",
            "item.added reasoning_summary_text.delta reasoning_summary_text.done item.done",
            "item.added text.delta text.done item.done",
            "item.added",
            "function_call_arguments.delta function_call_arguments.delta function_call_arguments.done",
            "item.done",
            "completed",
        )
    )
    assert stream[4]["item"]["encrypted_content"] == "x"
    assert stream[-1] == wire_responses.ending(whole)
    assert stream[-1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 1}
    cut = wire_responses.ending(ModelReply(parts=(Text(text="x"),), finish_reason="length", usage=usage))
    assert cut["type"] == "response.incomplete"
    assert as_dict(cut["response"])["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_reply_as_a_stream_of_google() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1)
    reply = together(says("hello", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    thought = (Reasoning(text="so"), *reply.parts, Text(text="", signature="google:s"))
    whole = ModelReply(parts=thought, finish_reason="tool_calls", usage=usage)
    *chunks, last = datas(wire_google.replies(whole, slice_chars=4).body)
    parts = [chunk["candidates"][0]["content"]["parts"][0] for chunk in chunks]
    assert parts == [
        {"text": "so", "thought": True},
        {"text": "hell"},
        {"text": "o"},
        {"functionCall": {"id": "c1", "name": "search", "args": {"q": "ż"}}},
        {"text": "", "thoughtSignature": "s"},
    ]
    counted = last["usageMetadata"]
    assert (counted["candidatesTokenCount"], counted["thoughtsTokenCount"]) == (2, 1)


REPLIES = [wire_anthropic.replies, wire_google.replies, wire_openai.replies, wire_responses.replies]


@pytest.mark.parametrize("replies", REPLIES)
def test_models_do_not_answer_with_results(replies: Callable[[ModelReply], Play]) -> None:
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        replies(ModelReply(parts=(result,), finish_reason="stop", usage=says("").usage))


ANTHROPIC_KEY = {"x-api-key": "sk", "anthropic-version": "2023-06-01"}
KEY = {"authorization": "Bearer sk"}
GOOGLE_KEY = {"x-goog-api-key": "k"}
GOOGLE_PATH = "/v1beta/models/m:streamGenerateContent?alt=sse"


def anthropic(*messages: object) -> dict[str, object]:
    return {"max_tokens": 9, "messages": messages}


def chat(*messages: object) -> dict[str, object]:
    return {"model": "m", "messages": messages}


def responses(*items: object, **change: object) -> dict[str, object]:
    return {"model": "m", "store": False, "input": items, **change}


def google(*contents: object) -> dict[str, object]:
    return {"contents": contents}


HI: dict[str, Any] = {
    "anthropic": {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    "chat": {"role": "user", "content": "hi"},
    "responses": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    "google": {"role": "user", "parts": [{"text": "hi"}]},
}
CALLS: dict[str, Any] = {
    "anthropic": {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t", "input": {}}]},
    "chat": {"role": "assistant", "tool_calls": [{"id": "c"}]},
    "responses": {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
    "google": {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "t", "args": {}}}]},
}
ANSWERS: dict[str, Any] = {
    "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": ""}]},
    "chat": {"role": "tool", "tool_call_id": "c", "content": ""},
    "responses": {"type": "function_call_output", "call_id": "c", "output": ""},
    "google": {"role": "user", "parts": [{"functionResponse": {"id": "c", "name": "t", "response": {}}}]},
}
VENDORS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, object]], str, dict[str, str]]] = {
    "anthropic": (wire_anthropic.serve_anthropic, anthropic, "/v1/messages", ANTHROPIC_KEY),
    "chat": (wire_openai.serve_openai, chat, "/v1/chat/completions", KEY),
    "responses": (wire_responses.serve_responses, responses, "/v1/responses", KEY),
    "google": (wire_google.serve_google, google, GOOGLE_PATH, GOOGLE_KEY),
}
every = pytest.mark.parametrize("vendor", VENDORS)


async def status_of(vendor: str, body: object, path: str | None = None, headers: dict[str, str] | None = None) -> int:
    serve, _, own_path, own_headers = VENDORS[vendor]
    async with serve(otherwise=says("hi")) as server, httpx2.AsyncClient(timeout=60) as client:
        response = await client.post(
            server.url + (path or own_path), headers=own_headers if headers is None else headers, json=body
        )
        assert ("json" in response.headers["content-type"]) == (response.status_code != 200)
        return response.status_code


@every
async def test_refuses_conversations_that_the_vendor_refuses(vendor: str) -> None:
    body, hi, called, answered = VENDORS[vendor][1], HI[vendor], CALLS[vendor], ANSWERS[vendor]
    assert await status_of(vendor, body(hi)) == 200
    assert await status_of(vendor, body(hi, called, answered)) == 200
    for wrong in ((), (answered,), (hi, called), (hi, called, hi)):
        assert await status_of(vendor, body(*wrong)) == 400, wrong


THINKS = {"type": "reasoning", "id": "rs", "summary": []}
SAYS = {"type": "message", "role": "assistant", "content": []}


@pytest.mark.parametrize(
    ("vendor", "body", "status"),
    [
        ("anthropic", {"messages": [HI["anthropic"]]}, 400),
        ("anthropic", anthropic(HI["anthropic"], HI["anthropic"]), 400),
        ("anthropic", anthropic(CALLS["anthropic"]), 400),
        ("anthropic", anthropic({"role": "user", "content": [{"type": "text", "text": " "}]}), 400),
        ("chat", {"messages": [HI["chat"]]}, 400),
        ("responses", responses(HI["responses"], THINKS, CALLS["responses"], ANSWERS["responses"]), 200),
        ("responses", responses(HI["responses"], THINKS, SAYS, HI["responses"]), 200),
        ("responses", responses(HI["responses"], model=None), 400),
        ("responses", responses(HI["responses"], store=True), 400),
        ("responses", responses(HI["responses"], THINKS), 400),
        ("responses", responses(HI["responses"], THINKS, HI["responses"]), 400),
        ("google", {"contents": None}, 400),
        ("google", google(HI["google"], HI["google"]), 400),
        ("google", google({"role": "user", "parts": []}), 400),
    ],
)
async def test_refuses_by_rules_of_one_vendor(vendor: str, body: object, status: int) -> None:
    assert await status_of(vendor, body) == status


@pytest.mark.parametrize(
    ("vendor", "path", "headers", "status"),
    [
        ("anthropic", "/v1/other", None, 404),
        ("anthropic", None, {**KEY, "anthropic-version": "x"}, 200),
        ("anthropic", None, {}, 401),
        ("anthropic", None, {"x-api-key": "sk"}, 400),
        ("chat", "/v1/other", None, 404),
        ("chat", None, {}, 401),
        ("responses", "/v1/chat/completions", None, 404),
        ("responses", None, {}, 401),
        ("google", "/v1beta/models/m:generateContent", None, 404),
        ("google", GOOGLE_PATH.partition("?")[0], None, 404),
        ("google", None, {}, 401),
    ],
)
async def test_refuses_wrong_addresses_and_keys(
    vendor: str, path: str | None, headers: dict[str, str] | None, status: int
) -> None:
    assert await status_of(vendor, VENDORS[vendor][1](HI[vendor]), path, headers) == status


@every
async def test_functions_and_refusals_in_a_script(vendor: str) -> None:
    serve, body, path, headers = VENDORS[vendor]
    script: list[Scripted] = [
        wire_openai.refuses(429, "slow down", headers={"retry-after": "7"}),
        lambda request: wire_openai.replies(says(request.path)),
    ]
    async with serve(script) as server, httpx2.AsyncClient(headers=headers, timeout=60) as client:
        first, second, third = [await client.post(server.url + path, json=body(HI[vendor])) for _ in range(3)]
    assert (first.status_code, first.headers["retry-after"]) == (429, "7")
    assert path[:7] in second.text
    assert third.status_code == 400 and "script is over" in third.text
