from __future__ import annotations

import json

import httpx2
import pytest

from pattern_core.messages import Reasoning, ToolResult
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import calls, says, together
from pattern_core.testing.wire import Entry
from pattern_core.testing.wire_openai import refuses, replies, serve_openai

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY = {"authorization": "Bearer sk"}


def chunks(body: bytes) -> list[dict[str, object]]:
    lines = body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_reply_as_a_stream() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, cached_tokens=2)
    reply = together(says("hello", reasoning="so", usage=usage), calls("search", {"q": "ż"}, call_id="c1"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(replies(reply, slice_chars=4).body) if chunk["choices"]]  # type: ignore[index]  # JSON
    assert deltas[1:4] == [{"reasoning_content": "so"}, {"content": "hell"}, {"content": "o"}]
    assert deltas[4]["tool_calls"][0]["function"] == {"name": "search", "arguments": ""}
    assert "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[5:-1]) == '{"q": "ż"}'
    last = chunks(replies(reply).body)[-1]
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert "usage" not in chunks(replies(reply, usage=False).body)[-1]


def test_models_do_not_answer_with_results() -> None:
    result = ToolResult(call_id="c", tool="t", content="x")
    with pytest.raises(ValueError, match="does not answer"):
        replies(ModelReply(parts=(Reasoning(text="x"), result), finish_reason="stop", usage=says("").usage))


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/v1/chat/completions", KEY, HELLO, 200),
        ("/v1/other", KEY, HELLO, 404),
        ("/v1/chat/completions", {}, HELLO, 401),
        ("/v1/chat/completions", KEY, {"model": "m", "messages": []}, 400),
        ("/v1/chat/completions", KEY, {"messages": HELLO["messages"]}, 400),
        (
            "/v1/chat/completions",
            KEY,
            {"model": "m", "messages": [{"role": "tool", "tool_call_id": "c", "content": ""}]},
            400,
        ),
        (
            "/v1/chat/completions",
            KEY,
            {"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            400,
        ),
        (
            "/v1/chat/completions",
            KEY,
            {"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}, {"role": "user"}]},
            400,
        ),
    ],
)
async def test_refuses_what_the_vendor_refuses(
    path: str, headers: dict[str, str], body: dict[str, object], status: int
) -> None:
    async with serve_openai(otherwise=says("hi")) as server, httpx2.AsyncClient(timeout=60) as client:
        response = await client.post(server.url + path, headers=headers, json=body)
        assert response.status_code == status
        assert ("error" in response.text) == (status != 200)


async def test_functions_and_refusals_in_a_script() -> None:
    script: list[Entry | ModelReply] = [
        refuses(429, "slow down", headers={"retry-after": "7"}),
        lambda request: replies(says(request.path)),
    ]
    async with serve_openai(script) as server, httpx2.AsyncClient(headers=KEY, timeout=60) as client:
        first = await client.post(f"{server.url}/v1/chat/completions", json=HELLO)
        assert (first.status_code, first.headers["retry-after"], first.json()["error"]["message"]) == (
            429,
            "7",
            "slow down",
        )
        assert "/v1/chat" in (await client.post(f"{server.url}/v1/chat/completions", json=HELLO)).text
        assert (await client.post(f"{server.url}/v1/chat/completions", json=HELLO)).status_code == 400
