from __future__ import annotations

import json

import httpx2
import pytest

from pattern_core.messages import Reasoning, Text, ToolResult
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import calls, says, together
from pattern_core.testing.wire import Entry
from pattern_core.testing.wire_openai import refuses
from pattern_core.testing.wire_responses import ending, replies, serve_responses

KEY = {"authorization": "Bearer k"}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
SAYS = {"type": "message", "role": "assistant", "content": []}
CALLS = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"}
ANSWERS = {"type": "function_call_output", "call_id": "c", "output": ""}
THINKS = {"type": "reasoning", "id": "rs", "summary": []}


def test_a_reply_as_a_stream() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2, cache_write_tokens=1, reasoning_tokens=1)
    reply = together(says("hello", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    thought = Reasoning(text="so", signature='openai:{"id": "rs", "encrypted_content": "x"}')
    whole = ModelReply(parts=(thought, *reply.parts), finish_reason="tool_calls", usage=usage)
    stream = [json.loads(event.partition("data: ")[2]) for event in replies(whole).body.decode().split("\n\n")[:-1]]
    assert [data["type"].removeprefix("response.") for data in stream] == [
        "created",
        "output_item.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "output_item.done",
        "output_item.added",
        "output_text.delta",
        "output_text.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert stream[4]["item"]["encrypted_content"] == "x"
    assert stream[-1] == ending(whole)
    assert stream[-1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 1}
    cut = ModelReply(parts=(Text(text="x"),), finish_reason="length", usage=usage)
    assert ending(cut, usage=False) == {
        "type": "response.incomplete",
        "response": {
            "id": "resp_scripted",
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "error": None,
            "output": [
                {
                    "type": "message",
                    "id": "msg_0",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "x", "annotations": []}],
                }
            ],
        },
    }


def test_models_do_not_answer_with_results() -> None:
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        replies(ModelReply(parts=(result,), finish_reason="stop", usage=says("").usage))


@pytest.mark.parametrize(
    ("path", "headers", "change", "status"),
    [
        ("/v1/responses", KEY, {}, 200),
        ("/v1/responses", KEY, {"input": [USER, THINKS, CALLS, ANSWERS]}, 200),
        ("/v1/responses", KEY, {"input": [USER, THINKS, SAYS, USER]}, 200),
        ("/v1/chat/completions", KEY, {}, 404),
        ("/v1/responses", {}, {}, 401),
        ("/v1/responses", KEY, {"model": None}, 400),
        ("/v1/responses", KEY, {"store": True}, 400),
        ("/v1/responses", KEY, {"input": []}, 400),
        ("/v1/responses", KEY, {"input": [USER, CALLS]}, 400),
        ("/v1/responses", KEY, {"input": [USER, ANSWERS]}, 400),
        ("/v1/responses", KEY, {"input": [USER, THINKS]}, 400),
        ("/v1/responses", KEY, {"input": [USER, THINKS, USER]}, 400),
    ],
)
async def test_it_refuses_what_the_vendor_refuses(
    path: str, headers: dict[str, str], change: dict[str, object], status: int
) -> None:
    script: list[Entry | ModelReply] = [says("hi")]
    body = {"model": "m", "store": False, "input": [USER], **change}
    async with serve_responses(script) as server, httpx2.AsyncClient(timeout=60) as client:
        answer = await client.post(server.url + path, json=body, headers=headers)
        assert answer.status_code == status


async def test_it_plays_what_is_no_reply_as_it_is() -> None:
    async with serve_responses([refuses(503, "busy")]) as server, httpx2.AsyncClient(timeout=60) as client:
        body = {"model": "m", "store": False, "input": [USER]}
        assert (await client.post(f"{server.url}/v1/responses", json=body, headers=KEY)).status_code == 503
        assert "script is over" in (await client.post(f"{server.url}/v1/responses", json=body, headers=KEY)).text
