"""OpenAI's own client talks with agents and groups, as front ends do: it sends the whole conversation each time."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import trio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pattern_core.models.errors import ModelRefused
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together
from pattern_db.connection import open_connection
from tests.pattern_server.place import Place, config_for, serving

# The client leaves its own iterators unfinished behind the last chunk.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'openai:ResourceWarning")
ADA = "agent:home/ada"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EDIT = {"op": "append", "label": "human", "content": "Likes tea."}
TASK = "### Task:\nSuggest a title.\n### Chat History:\n<chat_history>\nUSER: Hello\n</chat_history>"
RAG = "### Task:\nRespond to the user query using the provided context.\n<context>x</context>\nWhere is the key?"


@asynccontextmanager
async def client_of(place: Place, *, token: str = "", **options: Any) -> AsyncIterator[Any]:
    """OpenAI's client; strict: what does not fit its types is an error."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        yield AsyncOpenAI(
            api_key=token or place.parts.local_token,
            base_url=f"{place.url}/v1",
            http_client=http,
            **{"_strict_response_validation": True, **options},
        )


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


async def ask(client: Any, *messages: Any, model: str = ADA, **more: Any) -> ChatCompletion:
    found: ChatCompletion = await client.chat.completions.create(model=model, messages=list(messages), **more)
    return found


async def stream(client: Any, *messages: Any, model: str = ADA, **more: Any) -> list[ChatCompletionChunk]:
    found = await client.chat.completions.create(model=model, messages=list(messages), stream=True, **more)
    async with found:
        return [chunk async for chunk in found]


def text_of(answer: ChatCompletion | Sequence[ChatCompletionChunk]) -> str:
    if isinstance(answer, ChatCompletion):
        return answer.choices[0].message.content or ""
    return "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)


def shown(provider: ScriptedProvider, number: int = -1) -> list[str]:
    """The texts of the conversation of a request."""
    return [f"{one.role}: {one.text}" for one in provider.requests[number].messages]


async def sessions_of(place: Place, owner: str = "ada") -> list[dict[str, Any]]:
    found = (await place.admin.get(f"/constellations/home/agents/{owner}/sessions")).json()
    return list(found["items"])


def rows(place: Place, query: str) -> list[tuple[Any, ...]]:
    [path] = place.parts.state.config.data_dir.glob("constellations/*/pattern.db")
    connection = open_connection(path)
    try:
        return list(connection.execute(query))
    finally:
        connection.close()


async def test_a_conversation_is_a_session_in_which_only_the_last_messages_are_new(
    home: Place, scripted: ScriptedProvider
) -> None:
    scripted._script = iter([says("Hi Ruth."), says("Lisbon."), says("Hi Tom."), says("No.")])
    async with client_of(home) as client:
        first = await ask(client, user("Hello"))
        second = await ask(client, user("Hello"), assistant("Hi Ruth."), user("Where do I live?"))
        assert (text_of(first), text_of(second)) == ("Hi Ruth.", "Lisbon.")
        assert shown(scripted) == ["user: Hello", "assistant: Hi Ruth.", "user: Where do I live?"]
        # Another conversation that begins with the same words has a session of its own, and is found by its answer.
        await ask(client, user("Hello"))
        await ask(client, user("Hello"), assistant(" Hi Ruth.\n"), user("Where?"), assistant("Lisbon."), user("Sure?"))
        assert shown(scripted)[-3:] == ["user: Where do I live?", "assistant: Lisbon.", "user: Sure?"]
    assert [one["origin"] for one in await sessions_of(home)] == ["openai", "openai"]
    assert first.id.startswith("chatcmpl-turn_") and first.choices[0].finish_reason == "stop"
    assert first.usage is not None and (first.usage.prompt_tokens, first.usage.completion_tokens) == (10, 5)
    scripted._script = iter([])
    await home.say("Do you know me?")
    assert len(shown(scripted)) == 1, "the main conversation shows nothing of it"


async def test_several_new_messages_are_one_with_a_line_between_them(home: Place, scripted: Any) -> None:
    async with client_of(home) as client:
        await ask(client, user("Hello"), user([{"type": "text", "text": one} for one in ("Where", "do I live?")]))
    assert shown(scripted) == ["user: Hello\n\nWhere\ndo I live?"]


async def test_the_front_ends_own_id_or_a_session_names_the_conversation(home: Place, scripted: Any) -> None:
    async with client_of(home) as client:
        for _time in range(2):
            await ask(client, user("Hello"), extra_headers={"X-OpenWebUI-Chat-Id": "c1"})
        await ask(client, user("Hello"), extra_headers={"X-OpenWebUI-Chat-Id": "c2"})
        assert len(await sessions_of(home)) == 2
        [_, first] = await sessions_of(home)
        raw = await client.chat.completions.with_raw_response.create(
            model=ADA, messages=[{"role": "user", "content": "Again"}], extra_headers={"X-Session-Id": first["id"]}
        )
        assert raw.headers["x-session-id"] == first["id"] and raw.headers["x-turn-id"].startswith("turn_")
    assert shown(scripted)[-1] == "user: Again" and len(shown(scripted)) == 5


async def test_instructions_and_sampling_hold_for_one_turn_and_are_not_stored(home: Place, scripted: Any) -> None:
    system = [{"role": "system", "content": "Speak like a pirate."}, {"role": "developer", "content": "Be short."}]
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    async with client_of(home) as client:
        await ask(
            client,
            *system,
            user("Hello"),
            temperature=0.5,
            top_p=0.25,
            stop=["END"],
            max_completion_tokens=77,
            reasoning_effort="minimal",
            response_format=form,
        )
        request = scripted.requests[-1]
        assert request.system[-1] == "Speak like a pirate.\n\nBe short."
        assert (request.temperature, request.top_p, request.stop, request.max_output_tokens) == (
            0.5,
            0.25,
            ("END",),
            77,
        )
        assert (request.reasoning_effort, request.response_schema) == ("low", schema)
        await ask(
            client, user("Hello"), assistant("All right."), user("Go on"), response_format={"type": "json_object"}
        )
    assert "pirate" not in str(scripted.requests[-1]) and "one JSON object" in scripted.requests[-1].system[-1]
    assert rows(home, "SELECT count(*) FROM turn WHERE options IS NOT NULL") == [(0,)]
    assert rows(home, "SELECT count(*) FROM messages WHERE content LIKE '%pirate%'") == [(0,)]


async def test_an_answer_may_repeat_the_requests_instructions(home: Place, scripted: Any) -> None:
    words = "The gate opens at dawn and closes at dusk, every day but Sunday."
    scripted._script = iter([says(words)])
    async with client_of(home) as client:
        answer = await ask(client, {"role": "system", "content": f"Answer with:\n{words}"}, user("When?"))
    assert text_of(answer) == words and scripted.asked == 1, "it is no copy of our prompt"


async def test_a_stream_says_what_an_answer_says(home: Place, scripted: Any) -> None:
    scripted._slice_chars = 3
    script = [calls("search", {"query": "tea"}, text="Let me look."), says("You like green tea.")]
    scripted._script = iter([*script, *script])
    async with client_of(home) as client:
        plain = await ask(client, user("What do I like?"))
        chunks = await stream(client, user("What do I like?"), stream_options={"include_usage": True})
    assert text_of(plain) == text_of(chunks) == "Let me look.\n\nYou like green tea."
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 30
    assert all(chunk.usage is None for chunk in chunks[:-1]) and len({chunk.id for chunk in chunks}) == 1


async def test_images_are_shown(home: Place, scripted: Any) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    async with client_of(home) as client:
        await ask(client, user(parts))
        await ask(client, user(parts), model="ephemeral:ada")
        with pytest.raises(openai.BadRequestError, match="reads texts and images"):
            await ask(client, user([{"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}}]))
    assert rows(home, "SELECT count(*) FROM messages WHERE parts LIKE '%image/png%'") == [(1,)]


async def test_what_has_no_meaning_here_is_refused_by_name(home: Place, scripted: Any) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("seed", {"seed": 1}),
        ("n", {"n": 2}),
        ("logprobs", {"logprobs": True}),
        ("presence_penalty", {"presence_penalty": 1.0}),
        ("logit_bias", {"logit_bias": {"50256": -100}}),
        ("temperature", {"temperature": 3.0}),
        ("tools", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("tools", {"tools": [WEATHER, WEATHER]}),
        ("tools", {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "search"}}]}),
        ("format", {"response_format": {"type": "xml"}}),
    ]
    async with client_of(home) as client:
        for name, more in wrong:
            with pytest.raises(openai.BadRequestError) as info:
                await ask(client, user("Hello"), **more)
            assert name in str(info.value), more
            assert (info.value.code, info.value.type) == ("invalid_input", "invalid_request_error")
        with pytest.raises(openai.BadRequestError, match="messages"):
            await ask(client, {"role": "narrator", "content": "Once"})
        for same in ({"n": 1}, {"presence_penalty": 0}, {"frequency_penalty": 0.0}, {"user": "u"}, {"store": False}):
            await ask(client, user("Hello"), **same)
    assert scripted.asked == 5


@pytest.mark.parametrize("words", [TASK, "Provide a concise, 5-word-or-less title for the conversation, please."])
async def test_side_calls_of_front_ends_leave_nothing_but_usage(home: Place, scripted: Any, words: str) -> None:
    scripted._script = iter([says("Tea")])
    async with client_of(home) as client:
        assert text_of(await ask(client, user(words))) == "Tea"
        assert await sessions_of(home) == [] and rows(home, "SELECT count(*) FROM turn") == [(0,)]
        await ask(client, user(RAG))
        assert len(await sessions_of(home)) == 1, "a question about documents is a real one"
    assert rows(home, "SELECT purpose, input_tokens FROM usage ORDER BY key") == [("aside", 10), ("step", 10)]


async def test_an_ephemeral_model_or_a_header_keeps_nothing(home: Place, scripted: Any) -> None:
    scripted._slice_chars = 2
    talk = user("I am Ruth."), assistant("Hello Ruth."), user("Who am I?")
    async with client_of(home) as client:
        plain = await ask(client, {"role": "system", "content": "Be short."}, *talk, model=f"ephemeral:{ADA}")
        chunks = await stream(
            client, *talk, extra_headers={"X-Ephemeral": "true"}, stream_options={"include_usage": True}
        )
        assert text_of(plain) == text_of(chunks) == "All right." and plain.id != chunks[0].id
        assert shown(scripted) == ["user: I am Ruth.", "assistant: Hello Ruth.", "user: Who am I?"]
        assert scripted.requests[0].system[-1] == "Be short." and not scripted.requests[0].tools
        assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 15
        scripted._script = iter([calls("weather", {"place": "Oslo"}, call_id="c1"), ModelRefused("no", provider="x")])
        called = await ask(client, *talk, model="ephemeral:ada", tools=[WEATHER])
        assert called.choices[0].finish_reason == "tool_calls"
        with pytest.raises(openai.APIError, match="no"):
            await stream(client, *talk, model="ephemeral:ada")
    assert rows(home, "SELECT count(*) FROM turn") == rows(home, "SELECT count(*) FROM messages") == [(0,)]


async def test_a_turn_that_waits_for_a_person_answers_with_a_link(home: Place, scripted: Any) -> None:

    rules = [{"tool": "block_edit", "type": "requires_consent"}]
    await home.admin.patch("/constellations/home/agents/ada", json={"tool_rules": rules})
    scripted._script = iter([calls("block_edit", EDIT, text="One moment."), calls("block_edit", EDIT)])
    async with client_of(home) as client:
        plain = await ask(client, user("Note that."))
        chunks = await stream(client, user("Note it."))
    [later, first] = (await home.admin.get("/constellations/home/approvals")).json()["items"]
    assert text_of(plain).startswith("One moment.\n\nI wait for a person's approval of block_edit")
    assert f"{home.url}/api/v1/constellations/" in text_of(plain) and first["id"] in text_of(plain)
    assert later["id"] in text_of(chunks) and chunks[-1].choices[0].finish_reason == "stop"


async def test_a_group_is_a_model(home: Place, scripted: Any) -> None:
    await home.admin.post("/constellations/home/agents", json={"name": "bea"})
    group: dict[str, Any] = {
        "name": "desk",
        "pattern_type": "pipeline",
        "members": [{"agent_id": "ada"}, {"agent_id": "bea"}],
    }
    made = await home.admin.post("/constellations/home/groups", json=group)
    assert made.status_code == 201, made.text
    scripted._slice_chars = 1
    scripted._script = iter([says("Draft."), says("Final.")] * 2)
    async with client_of(home) as client:
        system = {"role": "system", "content": "Be short."}
        plain = await ask(client, system, user("Hello"), model="group:home/desk")
        assert all(request.system[-1] == "Be short." for request in scripted.requests), "each member is shown them"
        chunks = await stream(client, user("Hello"), model="group:home/desk")
        assert text_of(plain) == text_of(chunks) == "Final.", "of the last one"
        with pytest.raises(openai.BadRequestError, match="only agents"):
            await ask(client, user("Hello"), model="group:home/desk", tools=[WEATHER])
        await ask(client, user(TASK), model="group:home/desk")
    assert rows(home, "SELECT count(*) FROM turn WHERE options IS NOT NULL") == [(0,)]


async def test_errors_have_openais_form_and_are_not_repeated_where_that_is_wrong(home: Place, scripted: Any) -> None:
    scripted._script = iter([ModelRefused("the key is wrong", provider="scripted")] * 2)
    async with client_of(home, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as info:
            await ask(client, user("Hello"))
        assert info.value.response.headers["x-should-retry"] == "false" and info.value.code == "turn_failed"
        assert "the key is wrong" in info.value.message and info.value.type == "server_error"
        with pytest.raises(openai.APIError, match="the key is wrong"):
            await stream(client, user("Hello"))
        assert scripted.asked == 2
        with pytest.raises(openai.NotFoundError, match="no model 'agent:home/nobody'"):
            await ask(client, user("Hello"), model="agent:home/nobody")
        with pytest.raises(openai.BadRequestError, match="empty"):
            await ask(client, user(""))
    async with client_of(home, token="x" * 40) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await ask(client, user("Hello"))
        assert refused.value.type == "authentication_error"
    for path, method, status in (("/v1/chat/completions", "GET", 405), ("/v1/nothing", "POST", 404)):
        answer = await home.admin.request(method, f"{home.url}{path}")
        assert (answer.status_code, sorted(answer.json())) == (status, ["error"])


async def test_a_client_that_repeats_a_request_finds_its_turn(home: Place, scripted: Any) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("At last."), gate=gate)])
    async with client_of(home, max_retries=2, timeout=0.7) as client, trio.open_nursery() as nursery:

        async def open_later() -> None:
            await trio.sleep(1.5)  # longer than the client waits
            gate.set()

        nursery.start_soon(open_later)
        assert text_of(await ask(client, user("Hello"))) == "At last."
    assert scripted.asked == 1 and rows(home, "SELECT count(*) FROM turn") == [(1,)]
    async with client_of(home) as client:
        same = user("Hello")
        await ask(client, same)  # not a repetition: the same words again
        repeated = {"x-stainless-retry-count": "1"}
        assert text_of(await ask(client, same, extra_headers=repeated)) == "All right."
        chunks = await stream(client, same)
        again = await stream(client, same, extra_headers=repeated)
        assert (again[0].id, text_of(again)) == (chunks[0].id, "All right.")
        await ask(client, user("Other"), extra_headers=repeated)
        assert rows(home, "SELECT count(*) FROM turn") == [(4,)]
        first = await ask(client, same, extra_headers={"Idempotency-Key": "k1"})
        second = await ask(client, same, extra_headers={"Idempotency-Key": "k1"})
        assert first.id == second.id
        with pytest.raises(openai.BadRequestError, match="idempotency key"):
            await ask(client, user("Else"), extra_headers={"Idempotency-Key": "k1"})
    assert rows(home, "SELECT count(*) FROM turn") == [(5,)] and len(await sessions_of(home)) == 5


async def test_a_token_reaches_what_it_may(home: Place, scripted: Any) -> None:
    home_id = (await home.admin.get("/constellations/home")).json()["id"]
    await home.constellation("den")
    mine = await home.client("ann", "chat")
    await mine.post("/constellations", json={"name": "x"})
    async with client_of(home) as client:
        names = [model.id async for model in client.models.list()]
        assert {ADA, "agent:den/ada", "ephemeral:agent:den/ada"} <= {*names} and "ada" not in names
        assert (await client.models.retrieve("agent:den/ada")).id == "agent:den/ada"
        with pytest.raises(openai.BadRequestError, match="several"):
            await ask(client, user("Hello"), model="ada")
    made = await home.admin.post("/tokens", json={"scopes": ["chat"], "constellation": home_id})
    assert made.status_code == 201, made.text
    async with client_of(home, token=made.json()["token"]) as client:
        assert [model.id async for model in client.models.list()] == [ADA, f"ephemeral:{ADA}", "ada"]
        assert text_of(await ask(client, user("Hello"), model="ada")) == "All right."
        with pytest.raises(openai.NotFoundError):
            await ask(client, user("Hello"), model="agent:den/ada")
    token = str(mine.headers["authorization"]).removeprefix("Bearer ")
    async with client_of(home, token=token) as client:
        assert [model.id async for model in client.models.list()] == []
        with pytest.raises(openai.NotFoundError):
            await ask(client, user("Hello"))


def result(call: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def said(answer: ChatCompletion) -> dict[str, Any]:
    """The answer as the client sends it back."""
    return answer.choices[0].message.model_dump(exclude_none=True)


OSLO = calls("weather", {"place": "Oslo"}, text="I ask.", call_id="call_a")


async def test_a_tool_of_the_client_ends_the_answer_and_its_result_continues_the_turn(
    home: Place, scripted: Any
) -> None:
    scripted._script = iter([OSLO, says("It rains."), says("Yes.")])
    async with client_of(home) as client:
        first = await ask(client, user("Weather in Oslo?"), tools=[WEATHER], tool_choice="required")
        [choice] = first.choices
        assert choice.finish_reason == "tool_calls" and choice.message.content == "I ask."
        [call] = choice.message.tool_calls or []
        assert call.type == "function" and json.loads(call.function.arguments) == {"place": "Oslo"}
        assert scripted.requests[-1].force_tool == "*" and scripted.requests[-1].tools[-1].name == "weather"
        assert len(scripted.requests[-1].tools) > 1, "beside the agent's own"
        talk = [user("Weather in Oslo?"), said(first)]
        with pytest.raises(openai.BadRequestError, match="has no result"):
            await ask(client, *talk, user("And?"), tools=[WEATHER])
        second = await ask(client, *talk, result(call, "rain"), tools=[WEATHER])
        assert (text_of(second), second.choices[0].finish_reason) == ("It rains.", "stop")
        assert second.usage is not None and second.usage.total_tokens == 15, "of this answer alone"
        [given] = scripted.requests[-1].messages[-1].parts
        assert "rain" in given.content and scripted.requests[-1].force_tool is None
        again = await ask(client, *talk, result(call, "rain"), tools=[WEATHER])  # its answer was lost
        assert text_of(again) == "It rains."
        await ask(client, *talk, result(call, "rain"), said(second), user("Sure?"), tools=[WEATHER])
    assert shown(scripted)[-1] == "user: Sure?"
    assert rows(home, "SELECT count(*) FROM turn") == [(2,)] and len(await sessions_of(home)) == 1


async def test_several_calls_and_the_agents_own_in_streams(home: Place, scripted: Any) -> None:
    bergen = calls("weather", {"place": "Bergen"}, call_id="call_b")
    own = calls("search", {"query": "umbrella"}, call_id="call_c")
    scripted._slice_chars = 2
    scripted._script = iter([together(OSLO, own, bergen), says("Both rain.")])
    async with client_of(home) as client:
        chunks = await stream(client, user("Weather?"), tools=[WEATHER])
        found = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
        assert [call.index for call in found] == [0, 1] and chunks[-1].choices[0].finish_reason == "tool_calls"
        assert text_of(chunks) == "I ask."
        made = [
            {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": "{}"}} for call in found
        ]
        talk = user("Weather?"), assistant("I ask.", tool_calls=made)
        with pytest.raises(openai.BadRequestError, match=str(found[1].id)):
            await ask(client, *talk, result(found[0], "rain"))
        with pytest.raises(openai.BadRequestError, match="alone"):
            await ask(client, *talk, *(result(call, "rain") for call in found), user("And?"))
        with pytest.raises(openai.NotFoundError):
            await ask(client, {"role": "tool", "tool_call_id": "call_x", "content": "rain"})
        answer = await stream(client, *talk, *(result(call, "rain") for call in found), tools=[WEATHER])
        assert text_of(answer) == "Both rain."
        repeated = await stream(client, *talk, *(result(call, "rain") for call in found), tools=[WEATHER])
        assert text_of(repeated) == "Both rain."


async def test_calls_wait_over_a_restart_with_the_options_of_their_turn(alone: Path, scripted: Any) -> None:
    config = config_for(alone)
    scripted._script = iter([OSLO, says("It rains.")])
    system = {"role": "system", "content": "Be short."}
    async with serving(config, {"scripted": scripted}) as place:
        await place.constellation()
        async with client_of(place) as client:
            first = await ask(client, system, user("Weather in Oslo?"), tools=[WEATHER], temperature=0.5)
    async with serving(config, {"scripted": scripted}) as place:
        [call] = first.choices[0].message.tool_calls or []
        async with client_of(place) as client:
            second = await ask(client, user("Weather in Oslo?"), said(first), result(call, "rain"))
        assert text_of(second) == "It rains."
        request = scripted.requests[-1]
        assert request.system[-1] == "Be short." and request.temperature == 0.5
        assert request.tools[-1].name == "weather"


async def test_only_the_client_answers_its_call_but_a_person_may_end_it(home: Place, scripted: Any) -> None:
    scripted._script = iter([OSLO, says("I do not know."), calls("block_edit", EDIT)])
    async with client_of(home) as client:
        first = await ask(client, user("Weather?"), tools=[WEATHER])
        [call] = first.choices[0].message.tool_calls or []
        where = f"/constellations/home/approvals/{call.id}"
        agreed = await home.admin.post(where, json={"decision": "approve"})
        assert agreed.status_code == 422 and "the client" in agreed.json()["detail"]
        assert (await home.admin.post(where, json={"decision": "deny"})).status_code == 200
        with pytest.raises(openai.ConflictError, match="closed without a result"):
            await ask(client, user("Weather?"), said(first), result(call, "rain"))
        # A result is no answer to a question that is for people.
        rules = [{"tool": "block_edit", "type": "requires_consent"}]
        await home.admin.patch("/constellations/home/agents/ada", json={"tool_rules": rules})
        await ask(client, user("Note it."))
        [asked] = (await home.admin.get("/constellations/home/approvals")).json()["items"]
        with pytest.raises(openai.BadRequestError, match="results are not of calls"):
            await ask(client, {"role": "tool", "tool_call_id": asked["id"], "content": "yes"})
