from __future__ import annotations

import json

import httpx2
import pytest

from pattern_core.messages import Reasoning, ToolResult
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import calls, says, together
from pattern_core.testing.wire import Entry
from pattern_core.testing.wire_anthropic import refuses, replies, serve_anthropic

HEADERS = {"x-api-key": "sk", "anthropic-version": "2023-06-01"}
USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
CALLS = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t", "input": {}}]}
ANSWERS = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": ""}]}
BLANK = {"role": "user", "content": [{"type": "text", "text": " "}]}


def datas(body: bytes) -> list[dict[str, object]]:
    return [json.loads(event.partition("data: ")[2]) for event in body.decode().split("\n\n")[:-1]]


def test_a_reply_as_a_stream() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2)
    reply = together(says("hello", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    signed = ModelReply(
        parts=(Reasoning(text="so", signature="anthropic:m sig"), *reply.parts), finish_reason="stop", usage=usage
    )
    stream = datas(replies(signed, slice_chars=4).body)
    assert [data["type"] for data in stream][:4] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
    ]
    deltas = [data["delta"] for data in stream if data["type"] == "content_block_delta"]
    assert deltas[:4] == [
        {"type": "thinking_delta", "thinking": "so"},
        {"type": "signature_delta", "signature": "sig"},
        {"type": "text_delta", "text": "hell"},
        {"type": "text_delta", "text": "o"},
    ]
    assert replies(signed).body.startswith(b"event: message_start\ndata: {")
    assert stream[-1] == {"type": "message_stop"}
    assert stream[-2]["usage"] == {"output_tokens": 3, "output_tokens_details": {"thinking_tokens": 0}}
    assert "usage" not in datas(replies(signed, usage=False).body)[-2]


def test_models_do_not_answer_with_results() -> None:
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        replies(ModelReply(parts=(result,), finish_reason="stop", usage=says("").usage))


@pytest.mark.parametrize(
    ("path", "headers", "messages", "status"),
    [
        ("/v1/messages", HEADERS, [USER], 200),
        ("/v1/messages", HEADERS, [USER, CALLS, ANSWERS], 200),
        ("/v1/other", HEADERS, [USER], 404),
        ("/v1/messages", {"authorization": "Bearer sk", "anthropic-version": "x"}, [USER], 200),
        ("/v1/messages", {}, [USER], 401),
        ("/v1/messages", {"x-api-key": "sk"}, [USER], 400),
        ("/v1/messages", HEADERS, [], 400),
        ("/v1/messages", HEADERS, [USER, USER], 400),
        ("/v1/messages", HEADERS, [CALLS], 400),
        ("/v1/messages", HEADERS, [USER, CALLS], 400),
        ("/v1/messages", HEADERS, [USER, CALLS, USER], 400),
        ("/v1/messages", HEADERS, [ANSWERS], 400),
        ("/v1/messages", HEADERS, [BLANK], 400),
    ],
)
async def test_refuses_what_the_vendor_refuses(
    path: str, headers: dict[str, str], messages: list[object], status: int
) -> None:
    async with serve_anthropic(otherwise=says("hi")) as server, httpx2.AsyncClient(timeout=60) as client:
        response = await client.post(server.url + path, headers=headers, json={"max_tokens": 9, "messages": messages})
        assert response.status_code == status
        if status != 200:
            assert response.json()["type"] == "error"


async def test_functions_and_refusals_in_a_script() -> None:
    script: list[Entry | ModelReply] = [refuses(529, "busy"), lambda request: replies(says(request.path))]
    body = {"max_tokens": 9, "messages": [USER]}
    async with serve_anthropic(script) as server, httpx2.AsyncClient(headers=HEADERS, timeout=60) as client:
        assert (await client.post(f"{server.url}/v1/messages", json=body)).status_code == 529
        assert "/v1" in (await client.post(f"{server.url}/v1/messages", json=body)).text
        assert "script is over" in (await client.post(f"{server.url}/v1/messages", json=body)).text
        assert (await client.post(f"{server.url}/v1/messages", json={"messages": [USER]})).status_code == 400
