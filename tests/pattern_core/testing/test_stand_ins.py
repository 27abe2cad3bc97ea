"""Stand-ins behave: a scripted model, a server that plays a script, and the vendors' servers, with streams as the
vendors' references show them and refusals by the vendors' own rules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import trio

from pattern_core.messages import Reasoning, ToolCall, ToolResult, user
from pattern_core.models.model import Delta, ModelReply, ModelRequest, Usage
from pattern_core.testing import ScriptedProvider, calls, says, together, wire_anthropic, wire_google, wire_openai
from pattern_core.testing.wire import Play, Scripted, WireServer, document


async def ask(provider: ScriptedProvider, text: str = "hello") -> ModelReply:
    async def on_delta(delta: Delta) -> None:
        """Show nothing."""

    return await provider.ask(ModelRequest(model="any", system=(), messages=[user(text)]), on_delta)


async def test_a_question_beyond_the_script_is_a_bug_of_the_test() -> None:
    provider = ScriptedProvider()
    with pytest.raises(AssertionError, match=r"no answer to question 1 .*hello"):
        await ask(provider)
    assert provider.asked == 1


async def test_tool_calls_get_ids_that_repeat_for_the_same_question_only() -> None:
    search = together(calls("search", {"query": "tea"}), calls("search", {"query": "cake"}))
    first, again, other = [await ask(ScriptedProvider([search]), text) for text in ("hello", "hello", "else")]
    ids = [part.call_id for reply in (first, other) for part in reply.parts if isinstance(part, ToolCall)]
    assert first == again
    assert len(set(ids)) == 4
    given = await ask(ScriptedProvider([calls("search", call_id="mine")]))
    assert given.parts == (ToolCall(call_id="mine", tool="search"),)


async def test_it_plays_its_script_and_then_the_rest() -> None:
    async with (
        WireServer(
            [lambda request: document({"path": request.path}, status=503)], otherwise=Play(chunks=(b"more",))
        ) as server,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        first = await client.post(f"{server.url}/one", json={"q": "ż"})
        assert (first.status_code, first.json()) == (503, {"path": "/one"})
        assert [(await client.get(server.url)).text for _ in range(2)] == ["more", "more"]
        assert server.requests[0].json() == {"q": "ż"}
        assert [request.method for request in server.requests] == ["POST", "GET", "GET"]
        for exchange in server.exchanges:
            await exchange.finished.wait()
            assert not exchange.client_gone.is_set()


async def test_closes_its_connections_at_the_end() -> None:
    async with WireServer([Play(never_answers=True)]) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await server.arrived()
    with trio.fail_after(60):
        with suppress(trio.BrokenResourceError):
            assert await stream.receive_some(1) == b""
    await stream.aclose()
    assert server.open_connections == 0


async def test_errors_of_the_context_come_out_bare() -> None:
    with pytest.raises(KeyError):
        async with WireServer():
            raise KeyError
    with trio.move_on_after(0.01) as scope:
        async with WireServer():
            await trio.sleep_forever()
    assert scope.cancelled_caught


# Vendors

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
