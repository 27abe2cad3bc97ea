"""The vendors' servers refuse what the vendors refuse. That their streams are right, the providers' tests show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import httpx2
import pytest

from pattern_core.messages import ToolResult
from pattern_core.models.model import ModelReply
from pattern_core.testing import says, wire_anthropic, wire_google, wire_openai, wire_responses
from pattern_core.testing.wire import Entry, Play, serve_wire
from pattern_core.testing.wire_anthropic import serve_anthropic
from pattern_core.testing.wire_google import serve_google
from pattern_core.testing.wire_openai import serve_openai
from pattern_core.testing.wire_responses import serve_responses

Serve = Callable[[Iterable[Entry | ModelReply]], serve_wire]
Body = dict[str, Any]

ANTHROPIC, ANTHROPIC_KEY = "/v1/messages", {"x-api-key": "sk", "anthropic-version": "2023-06-01"}
GOOGLE, GOOGLE_KEY = "/v1beta/models/m:streamGenerateContent?alt=sse", {"x-goog-api-key": "k"}
OPENAI, KEY = "/v1/chat/completions", {"authorization": "Bearer sk"}
RESPONSES = "/v1/responses"


def anthropic(*messages: Body) -> Body:
    return {"max_tokens": 9, "messages": messages}


def google(*contents: Body) -> Body:
    return {"contents": contents}


def openai(*messages: Body) -> Body:
    return {"model": "m", "messages": messages}


def responses(*items: Body) -> Body:
    return {"model": "m", "store": False, "input": items}


A_USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
A_CALLS = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t", "input": {}}]}
A_ANSWERS = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": ""}]}
A_BLANK = {"role": "user", "content": [{"type": "text", "text": " "}]}
G_USER = {"role": "user", "parts": [{"text": "hi"}]}
G_CALLS = {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "t", "args": {}}}]}
G_ANSWERS = {"role": "user", "parts": [{"functionResponse": {"id": "c", "name": "t", "response": {}}}]}
O_USER = {"role": "user", "content": "hi"}
O_CALLS = {"role": "assistant", "tool_calls": [{"id": "c"}]}
O_ANSWERS = {"role": "tool", "tool_call_id": "c", "content": ""}
R_USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
R_SAYS = {"type": "message", "role": "assistant", "content": []}
R_CALLS = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"}
R_ANSWERS = {"type": "function_call_output", "call_id": "c", "output": ""}
R_THINKS = {"type": "reasoning", "id": "rs", "summary": []}


@pytest.mark.parametrize(
    ("serve", "path", "headers", "body", "status"),
    [
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_USER), 200),
        (serve_anthropic, ANTHROPIC, {**KEY, "anthropic-version": "x"}, anthropic(A_USER, A_CALLS, A_ANSWERS), 200),
        (serve_anthropic, "/v1/other", ANTHROPIC_KEY, anthropic(A_USER), 404),
        (serve_anthropic, ANTHROPIC, {}, anthropic(A_USER), 401),
        (serve_anthropic, ANTHROPIC, {"x-api-key": "sk"}, anthropic(A_USER), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, {"messages": [A_USER]}, 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_USER, A_USER), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_CALLS), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_USER, A_CALLS), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_USER, A_CALLS, A_USER), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_ANSWERS), 400),
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_BLANK), 400),
        (serve_google, GOOGLE, GOOGLE_KEY, google(G_USER, G_CALLS, G_ANSWERS), 200),
        (serve_google, "/v1beta/models/m:generateContent", GOOGLE_KEY, google(G_USER), 404),
        (serve_google, GOOGLE.partition("?")[0], GOOGLE_KEY, google(G_USER), 404),
        (serve_google, GOOGLE, {}, google(G_USER), 403),
        (serve_google, GOOGLE, GOOGLE_KEY, {}, 400),
        (serve_google, GOOGLE, GOOGLE_KEY, google(G_USER, G_USER), 400),
        (serve_google, GOOGLE, GOOGLE_KEY, google({"role": "user", "parts": []}), 400),
        (serve_google, GOOGLE, GOOGLE_KEY, google(G_USER, G_CALLS), 400),
        (serve_google, GOOGLE, GOOGLE_KEY, google(G_USER, G_CALLS, G_USER), 400),
        (serve_google, GOOGLE, GOOGLE_KEY, google(G_ANSWERS), 400),
        (serve_openai, OPENAI, KEY, openai(O_CALLS, O_ANSWERS, O_USER), 200),
        (serve_openai, "/v1/other", KEY, openai(O_USER), 404),
        (serve_openai, OPENAI, {}, openai(O_USER), 401),
        (serve_openai, OPENAI, KEY, openai(), 400),
        (serve_openai, OPENAI, KEY, {"messages": [O_USER]}, 400),
        (serve_openai, OPENAI, KEY, openai(O_ANSWERS), 400),
        (serve_openai, OPENAI, KEY, openai(O_CALLS), 400),
        (serve_openai, OPENAI, KEY, openai(O_CALLS, O_USER), 400),
        (serve_responses, RESPONSES, KEY, responses(R_USER, R_THINKS, R_CALLS, R_ANSWERS), 200),
        (serve_responses, RESPONSES, KEY, responses(R_USER, R_THINKS, R_SAYS, R_USER), 200),
        (serve_responses, OPENAI, KEY, responses(R_USER), 404),
        (serve_responses, RESPONSES, {}, responses(R_USER), 401),
        (serve_responses, RESPONSES, KEY, {**responses(R_USER), "model": None}, 400),
        (serve_responses, RESPONSES, KEY, {**responses(R_USER), "store": True}, 400),
        (serve_responses, RESPONSES, KEY, responses(), 400),
        (serve_responses, RESPONSES, KEY, responses(R_USER, R_CALLS), 400),
        (serve_responses, RESPONSES, KEY, responses(R_USER, R_ANSWERS), 400),
        (serve_responses, RESPONSES, KEY, responses(R_USER, R_THINKS), 400),
        (serve_responses, RESPONSES, KEY, responses(R_USER, R_THINKS, R_USER), 400),
    ],
)
async def test_what_the_vendor_refuses(
    serve: Serve, path: str, headers: dict[str, str], body: Body, status: int
) -> None:
    async with serve([says("hi")]) as server, httpx2.AsyncClient(timeout=60) as client:
        response = await client.post(server.url + path, headers=headers, json=body)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("serve", "path", "headers", "body", "busy"),
    [
        (serve_anthropic, ANTHROPIC, ANTHROPIC_KEY, anthropic(A_USER), wire_anthropic.refuses(529, "busy")),
        (serve_google, GOOGLE, GOOGLE_KEY, google(G_USER), wire_google.refuses(503, "busy")),
        (serve_openai, OPENAI, KEY, openai(O_USER), wire_openai.refuses(503, "busy")),
        (serve_responses, RESPONSES, KEY, responses(R_USER), wire_openai.refuses(503, "busy")),
    ],
)
async def test_a_script_holds_plays_and_functions(
    serve: Serve, path: str, headers: dict[str, str], body: Body, busy: Play
) -> None:
    async with (
        serve([busy, lambda _request: busy]) as server,
        httpx2.AsyncClient(headers=headers, timeout=60) as client,
    ):
        answers = [await client.post(server.url + path, json=body) for _number in range(3)]
    assert [answer.status_code for answer in answers] == [busy.status, busy.status, 400]
    assert answers[0].content == busy.body
    assert "script is over" in answers[2].text


@pytest.mark.parametrize("vendor", [wire_anthropic, wire_google, wire_openai, wire_responses])
def test_models_do_not_answer_with_results(vendor: Any) -> None:
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        vendor.replies(ModelReply(parts=(result,), finish_reason="stop", usage=says("").usage))
