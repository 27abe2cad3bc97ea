"""The vendors' stand-ins: streams as the vendors' references show them, and refusals by the vendors' own rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from pattern_core.messages import Reasoning, ToolResult
from pattern_core.models.model import Usage
from pattern_core.testing import calls, says, together, wire_anthropic, wire_google, wire_openai
from pattern_core.testing.wire import Play, Scripted

REPLY = together(
    says("hello you", usage=Usage(input_tokens=7, output_tokens=3, cached_tokens=2)),
    calls("search", {"q": "ż"}, call_id="c1"),
)


@pytest.mark.parametrize(
    ("replies", "thought", "pieces"),
    [
        (
            wire_anthropic.replies,
            Reasoning(text="so", signature="anthropic:m sig"),
            [
                'event: message_start\ndata: {"type": "message_start"',
                '"delta": {"type": "thinking_delta", "thinking": "so"}',
                '"delta": {"type": "signature_delta", "signature": "sig"}',
                '"delta": {"type": "text_delta", "text": "hello yo"}',
                '"delta": {"type": "text_delta", "text": "u"}',
                '"usage": {"output_tokens": 3, "output_tokens_details": {"thinking_tokens": 0}}',
                '{"type": "message_stop"}',
            ],
        ),
        (
            wire_openai.replies,
            Reasoning(text="so"),
            [
                '"delta": {"reasoning_content": "so"}',
                '"delta": {"content": "hello yo"}',
                '"delta": {"content": "u"}',
                '"function": {"name": "search", "arguments": ""}',
                '"prompt_tokens": 7',
                "data: [DONE]",
            ],
        ),
        (
            wire_openai.response_replies,
            Reasoning(text="so", signature='openai:{"server": "openai", "id": "rs", "encrypted_content": "x"}'),
            [
                '{"type": "response.created"',
                '{"type": "response.reasoning_summary_text.delta"',
                '"encrypted_content": "x"',
                '{"type": "response.output_text.delta"',
                '{"type": "response.function_call_arguments.delta"',
                '{"type": "response.completed"',
                '"input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0}',
            ],
        ),
        (
            wire_google.replies,
            Reasoning(text="so"),
            [
                '"parts": [{"text": "so", "thought": true}]',
                '"parts": [{"text": "hello yo"}]',
                '"parts": [{"text": "u"}]',
                '"parts": [{"functionCall": {"id": "c1", "name": "search", "args": {"q": "ż"}}}]',
                '"candidatesTokenCount": 3',
            ],
        ),
    ],
)
def test_a_reply_as_the_vendor_streams_it(replies: Callable[..., Play], thought: Reasoning, pieces: list[str]) -> None:
    body = replies(replace(REPLY, parts=(thought, *REPLY.parts))).body.decode()
    for piece in pieces:  # in this order
        _before, found, body = body.partition(piece)
        assert found == piece
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        replies(replace(REPLY, parts=(result,)))


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
    "responses": (wire_openai.serve_responses, responses, "/v1/responses", KEY),
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
