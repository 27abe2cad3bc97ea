"""OpenAI's own client, in its newer form: responses with ids, which the server keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
import trio

from pattern_core.models.errors import ModelRefused
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from tests.pattern_server.http.v1.test_chat import ADA, client_of, rows, sessions_of, shown
from tests.pattern_server.place import Place, config_for, serving

pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'openai:ResourceWarning")
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
# As the description of Open Responses has it: also null, never missing.
FIELDS = (
    *("background", "completed_at", "created_at", "error", "frequency_penalty", "id", "incomplete_details"),
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "object", "output"),
    *("parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key", "reasoning"),
    *("safety_identifier", "service_tier", "status", "store", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "usage"),
)


async def ask(client: Any, words: Any, **more: Any) -> Any:
    return await client.responses.create(model=ADA, input=words, **more)


async def test_a_response_is_complete_and_continues_by_its_id(home: Place, scripted: ScriptedProvider) -> None:
    async with client_of(home) as client:
        raw = await client.responses.with_raw_response.create(
            model=ADA, input="Hello", instructions="Be short.", metadata={"k": "v"}
        )
        assert {*FIELDS} <= {*raw.http_response.json()}
        first = raw.parse()
        assert (first.output_text, first.status, first.metadata) == ("All right.", "completed", {"k": "v"})
        assert first.usage is not None and first.usage.total_tokens == 15 and first.instructions == "Be short."
        assert scripted.requests[-1].system[-1] == "Be short."
        second = await ask(client, "And then?", previous_response_id=first.id)
        assert shown(scripted) == ["user: Hello", "assistant: All right.", "user: And then?"]
        assert second.conversation is not None and second.previous_response_id == first.id
        await ask(client, "Once more", conversation=second.conversation.id)
        assert len(shown(scripted)) == 5 and len(await sessions_of(home)) == 1
        other = await ask(client, "Or else?", previous_response_id=first.id)  # a branch: the conversation went on
        assert shown(scripted) == ["user: Hello", "assistant: All right.", "user: Or else?"]
        assert other.conversation != second.conversation
        repeated = {"x-stainless-retry-count": "1"}
        again = await ask(client, "Or else?", previous_response_id=first.id, extra_headers=repeated)
        assert again.id == other.id and len(await sessions_of(home)) == 2, "no other branch for a repetition"
        read = await client.responses.retrieve(first.id)
        assert (read.output, read.status, read.usage) == (first.output, "completed", first.usage)
        for name in ("resp_x", f"resp_{'0' * 52}"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(name)


async def test_a_stream_has_every_event_in_order_and_resumes(home: Place, scripted: ScriptedProvider) -> None:
    scripted._slice_chars = 2
    async with client_of(home) as client:
        events = [event async for event in await client.responses.create(model=ADA, input="Hello", stream=True)]
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert {*kinds[4:-4]} == {"output_text.delta"}
        assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted({*numbers})
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "All right."
        [done] = [event for event in events if event.type == "response.completed"]
        assert done.response.output_text == "All right."
        for cut in range(len(events)):
            rest = await client.responses.retrieve(done.response.id, stream=True, starting_after=numbers[cut])
            again = [event async for event in rest]
            if kinds[cut] in (
                "created",
                "in_progress",
            ):  # no text was seen: all of it comes
                assert again[-1].type == "response.completed"
                assert "".join(one.delta for one in again if one.type == "response.output_text.delta") == "All right."
            else:
                assert [one.type for one in again] == [
                    event.type for event in events[max(cut + 1, len(events) - 4) :]
                ], kinds[cut]


async def test_in_the_background_a_response_is_read_until_it_is_there(home: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    scripted._script = iter(
        [Paced(answer=says("At last."), gate=gate), Paced(answer=says("Never."), gate=trio.Event())]
    )
    async with client_of(home) as client:
        made = await ask(client, "Hello", background=True)
        assert made.status in ("queued", "in_progress") and made.background and made.output == []
        gate.set()
        while (read := await client.responses.retrieve(made.id)).status != "completed":
            await trio.sleep(0.01)
        assert read.output_text == "At last."
        slow = await ask(client, "Hello again", background=True)
        assert (await client.responses.cancel(slow.id)).status == "cancelled"
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
    assert rows(home, "SELECT count(*) FROM messages WHERE content = 'At last.' AND is_deleted = 0") == [(0,)]


async def test_calls_of_functions_continue_over_a_restart(alone: Path, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("weather", {"place": "Oslo"}, text="I ask.", call_id="c"), says("It rains.")])
    config = config_for(alone)
    async with serving(config, {"scripted": scripted}) as place:
        await place.constellation()
        async with client_of(place) as client:
            stream = await client.responses.create(model=ADA, input="Weather?", tools=[WEATHER], stream=True)
            events = [event async for event in stream]
    assert [event.type for event in events][-5:-1] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    first = events[-1].response
    [_words, call] = first.output
    assert first.status == "completed" and json.loads(call.arguments) == {"place": "Oslo"}
    async with serving(config, {"scripted": scripted}) as place, client_of(place) as client:
        with pytest.raises(openai.BadRequestError, match="has no result"):
            await ask(client, "And?", previous_response_id=first.id)
        given = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        second = await ask(client, given, previous_response_id=first.id)
        assert second.output_text == "It rains." and second.id != first.id
        assert second.usage is not None and second.usage.total_tokens == 15
        assert (await client.responses.retrieve(first.id)).output == first.output, "it stays as it was"
        assert (await client.responses.retrieve(second.id)).output_text == "It rains."
        stream = await client.responses.retrieve(second.id, stream=True)
        assert [one.delta async for one in stream if one.type == "response.output_text.delta"] == ["It rains."]


async def test_what_is_not_stored_leaves_only_usage(home: Place, scripted: ScriptedProvider) -> None:
    talk: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "I am Ruth."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"role": "user", "content": "Who am I?"},
    ]
    async with client_of(home) as client:
        answer = await ask(client, talk, store=False)
        assert answer.output_text == "All right." and answer.store is False
        assert shown(scripted) == ["user: I am Ruth.", "assistant: Hello.", "user: Who am I?"]
        for more in ({"stream": True}, {"background": True}, {"previous_response_id": "resp_x"}):
            with pytest.raises(openai.BadRequestError, match="store"):
                await ask(client, talk, store=False, **more)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answer.id)
    assert rows(home, "SELECT count(*) FROM turn") == [(0,)] and rows(home, "SELECT count(*) FROM usage") == [(1,)]


async def test_failures_and_what_is_refused(home: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([ModelRefused("the key is wrong", provider="scripted")] * 2)
    wrong: list[Mapping[str, Any]] = [
        {"max_tool_calls": 3},
        {"top_logprobs": 2},
        {"reasoning": {"effort": "endless"}},
        {"max_output_tokens": 0},
        {"prompt": {"id": "p"}},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"previous_response_id": "resp_x", "conversation": "ses_x"},
    ]
    async with client_of(home) as client:
        failed = await ask(client, "Hello")
        assert failed.status == "failed" and failed.error is not None and "the key is wrong" in failed.error.message
        events = [event async for event in await client.responses.create(model=ADA, input="Hello", stream=True)]
        assert events[-1].type == "response.failed"
        for more in wrong:
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(**{"model": ADA, "input": "Hello", **more})
