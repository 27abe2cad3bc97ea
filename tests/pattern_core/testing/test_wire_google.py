from __future__ import annotations

import json

import httpx2
import pytest

from pattern_core.messages import Reasoning, Text, ToolResult
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import calls, says, together
from pattern_core.testing.wire import Entry
from pattern_core.testing.wire_google import refuses, replies, serve_google

PATH = "/v1beta/models/m:streamGenerateContent?alt=sse"
KEY = {"x-goog-api-key": "k"}
USER = {"role": "user", "parts": [{"text": "hi"}]}
CALLS = {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "t", "args": {}}}]}
ANSWERS = {"role": "user", "parts": [{"functionResponse": {"id": "c", "name": "t", "response": {}}}]}


def datas(body: bytes) -> list[dict[str, object]]:
    return [json.loads(event.partition("data: ")[2]) for event in body.decode().split("\n\n")[:-1]]


def test_a_reply_as_a_stream() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1)
    reply = together(says("hello", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    thought = (Reasoning(text="so"), *reply.parts, Text(text="", signature="google:s"))
    whole = ModelReply(parts=thought, finish_reason="tool_calls", usage=usage)
    *chunks, last = datas(replies(whole, slice_chars=4).body)
    parts = [chunk["candidates"][0]["content"]["parts"][0] for chunk in chunks]  # type: ignore[index]  # JSON
    assert parts == [
        {"text": "so", "thought": True},
        {"text": "hell"},
        {"text": "o"},
        {"functionCall": {"id": "c1", "name": "search", "args": {"q": "ż"}}},
        {"text": "", "thoughtSignature": "s"},
    ]
    counted = last["usageMetadata"]
    assert isinstance(counted, dict)
    assert (counted["candidatesTokenCount"], counted["thoughtsTokenCount"]) == (2, 1)
    assert "usageMetadata" not in datas(replies(whole, usage=False).body)[-1]


def test_models_do_not_answer_with_results() -> None:
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        replies(ModelReply(parts=(result,), finish_reason="stop", usage=says("").usage))


@pytest.mark.parametrize(
    ("path", "headers", "contents", "status"),
    [
        (PATH, KEY, [USER], 200),
        (PATH, KEY, [USER, CALLS, ANSWERS], 200),
        ("/v1beta/models/m:generateContent", KEY, [USER], 404),
        (PATH.partition("?")[0], KEY, [USER], 404),
        (PATH, {}, [USER], 403),
        (PATH, KEY, [], 400),
        (PATH, KEY, None, 400),
        (PATH, KEY, [USER, USER], 400),
        (PATH, KEY, [{"role": "user", "parts": []}], 400),
        (PATH, KEY, [USER, CALLS], 400),
        (PATH, KEY, [USER, CALLS, USER], 400),
        (PATH, KEY, [ANSWERS], 400),
    ],
)
async def test_it_refuses_what_the_vendor_refuses(
    path: str, headers: dict[str, str], contents: object, status: int
) -> None:
    script: list[Entry | ModelReply] = [says("hi")]
    async with serve_google(script) as server, httpx2.AsyncClient(timeout=60) as client:
        answer = await client.post(server.url + path, json={"contents": contents}, headers=headers)
        assert answer.status_code == status


async def test_after_the_script_it_says_so() -> None:
    async with (
        serve_google([refuses(503, "busy", kind="UNAVAILABLE")]) as server,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        first = await client.post(server.url + PATH, json={"contents": [USER]}, headers=KEY)
        assert first.json()["error"]["status"] == "UNAVAILABLE"
        second = await client.post(server.url + PATH, json={"contents": [USER]}, headers=KEY)
        assert "script is over" in second.text
