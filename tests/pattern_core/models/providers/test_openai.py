from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from pattern_core.ids import seeded_randomness
from pattern_core.limits import TurnLimits
from pattern_core.messages import Image, Message, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.catalogue import Catalogue, ProviderModels
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import ModelError, ModelOverloaded, ModelServerError, WindowExceeded
from pattern_core.models.model import ModelReply, ModelRequest, ReasoningEffort, ToolSpec, Usage
from pattern_core.models.providers.draft import Malformed, StreamEvent
from pattern_core.models.providers.exchange import EventDecoder
from pattern_core.models.providers.openai import ChatDecoder, OpenAIProvider, Server, encode
from pattern_core.models.providers.openai_responses import ResponseDecoder
from pattern_core.models.providers.settings import OpenAIFormat, ProviderSettings, Secret
from pattern_core.models.throttle import RetryPolicy
from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_core.testing.wire_openai import chunk
from tests.pattern_core.models.providers.rig import OPENAI

OWN, OTHER = Server(name="openai", is_own=True), Server(name="local")
REQUEST, RICH = OPENAI.request, OPENAI.reply


def parts_of(*deltas: dict[str, object], finish: str | None = "stop") -> ModelReply:
    decoder = ChatDecoder(REQUEST, "openai")
    for delta in deltas:
        decoder.feed(StreamEvent(event="", data=json.dumps(chunk(delta))))
    decoder.feed(StreamEvent(event="", data=json.dumps(chunk({}, finish_reason=finish))))
    decoder.feed(StreamEvent(event="", data="[DONE]"))
    return decoder.reply(None)


def call(
    arguments: object, *, index: object = 0, call_id: str | None = None, name: str | None = None
) -> dict[str, object]:
    piece: dict[str, object] = {"function": {"name": name, "arguments": arguments}, "id": call_id, "index": index}
    return {"content": None, "tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def test_calls_in_one_piece_without_ids_or_with_repeated_indices() -> None:
    reply = parts_of(
        call('{"a":1}', name="x"), call({"b": 2}, name="y", call_id="c2"), call(None, name="z", call_id="c3")
    )
    found = [part for part in reply.parts if isinstance(part, ToolCall)]
    assert [(part.tool, part.arguments) for part in found] == [("x", {"a": 1}), ("y", {"b": 2}), ("z", {})]
    assert found[0].call_id.startswith("call_0_")
    no_index = parts_of(
        call('{"a":', index=None, name="x", call_id="c1"),
        call("1}", index=None),
        call("{}", index=None, name="y", call_id="c2"),
    )
    assert [(part.tool, part.arguments) for part in no_index.parts if isinstance(part, ToolCall)] == [
        ("x", {"a": 1}),
        ("y", {}),
    ]
    assert no_index.finish_reason == "tool_calls"


def test_names_repeated_in_every_chunk_are_one_name() -> None:
    reply = parts_of(call('{"a":', name="x", call_id="c1"), call("1}", name="x", call_id="c1"))
    assert reply.parts == (ToolCall(call_id="c1", tool="x", arguments={"a": 1}),)


def test_other_forms_of_content() -> None:
    assert parts_of({"content": [{"type": "text", "text": "a"}, {"text": None}, 3]}).parts == (Text(text="a"),)
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    assert parts_of({"content": thinking}).parts == (Reasoning(text="hm"), Text(text="so"))
    assert parts_of({"refusal": "no"}).parts == (Text(text="no"),)
    assert parts_of({"reasoning": "r", "content": "c"}).parts == (Reasoning(text="r"), Text(text="c"))
    both = parts_of({"reasoning": "r", "reasoning_content": "r", "content": None})
    assert both.parts == (Reasoning(text="r"),)
    assert parts_of({"content": "x"}, finish=None).finish_reason == "stop"


def test_the_end_of_a_stream() -> None:
    decoder = ChatDecoder(REQUEST, "openai")
    decoder.feed(StreamEvent(event="", data=json.dumps(chunk({}, finish_reason="stop"))))
    assert not decoder.is_done
    assert decoder.reply("req").request_id == "req"
    empty = ChatDecoder(REQUEST, "openai")
    empty.feed(StreamEvent(event="", data="[DONE]"))
    with pytest.raises(Malformed, match="without an answer"):
        empty.reply(None)


def test_the_fields_of_a_request() -> None:
    request = ModelRequest(
        model="gpt",
        system=(),
        messages=(),
        tools=[ToolSpec(name="search", description="Find.", parameters={"type": "object"})],
        max_output_tokens=99,
        temperature=0.0,
        stop=["END"],
        seed=1 << 62 | 5,
    )
    function = {"name": "search", "description": "Find.", "parameters": {"type": "object"}}
    assert encode(request, OWN) == {
        "model": "gpt",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 99,
        "temperature": 0.0,
        "stop": ["END"],
        "seed": 5,
        "tools": [{"type": "function", "function": function}],
    }
    plain = encode(REQUEST, OTHER)
    assert plain["max_tokens"] == 4_096
    assert not {"tools", "seed", "stop", "temperature", "top_p", "max_completion_tokens"} & set(plain)


def test_the_messages_of_a_request() -> None:
    conversation = [
        user("find tea"),
        Message(role="assistant", parts=(Reasoning(text="hm", signature="s"), Text(text="Looking."), *RICH.parts[2:])),
        Message(role="tool", parts=(ToolResult(call_id="c1", tool="search", content="none", is_error=True),)),
        Message(role="tool", parts=(ToolResult(call_id="c2", tool="recall", content="Error: 404", is_error=True),)),
        Message(role="system", parts=(Text(text="a notice"),)),
        Message(role="assistant", parts=(ToolCall(call_id="c3", tool="search", invalid="{"),)),
        Message(role="tool", parts=(ToolResult(call_id="c3", tool="search", content="x"),)),
        Message(role="assistant", parts=(Reasoning(text="only thought"),)),
    ]
    request = ModelRequest(model="gpt", system=["one", "two"], messages=conversation, memory=["# Memory", "x"])
    messages = messages_of(request, OWN)
    assert messages.pop(1) == {"role": "system", "content": "# Memory\n\nx"}
    roles = ["system", "user", "assistant", "tool", "tool", "system", "assistant", "tool"]
    assert [message["role"] for message in messages] == roles
    assert messages[0]["content"] == "one\n\ntwo"
    assert messages[2]["content"] == "Looking."
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {"query": 'tea "with" żółw'}
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "Error: none"}
    assert messages[4]["content"] == "Error: 404"
    assert messages[6]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert messages[6]["content"] is None


def test_forced_tools_answers_by_a_schema_and_effort() -> None:
    tools = [ToolSpec(name="search", description="", parameters={})]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    body = OPENAI.body(tools=tools, force_tool="*", response_schema=schema, reasoning_effort="low")
    assert body["tool_choice"] == "required"
    assert body["reasoning_effort"] == "low"
    answer = {"name": "answer", "schema": schema, "strict": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": answer}
    named = OPENAI.body(tools=tools, force_tool="search")
    assert named["tool_choice"] == {"type": "function", "function": {"name": "search"}}
    assert "tool_choice" not in OPENAI.body(force_tool="search")


def test_memory_is_in_the_system_message_of_open_models_unless_many_tools_follow_it() -> None:
    few = ModelRequest(model="m", system=["who", "how"], memory=["# Memory", "tea"], messages=[user("hello")])
    assert shapes(messages_of(few, OTHER)) == [("system", "who\n\n# Memory\n\ntea\n\nhow"), ("user", "hello")]
    many = replace(few, tools=[ToolSpec(name="search", description="find " * 600, parameters={})])
    after = ("user", "# Memory\n\ntea\n\n# Message\n\nhello")
    assert shapes(messages_of(many, OTHER)) == [("system", "who\n\nhow"), after]


def test_images_make_content_a_list() -> None:
    image = Message(role="user", parts=(Image(media_type="", url="https://x/a.png"),))
    request = ModelRequest(model="m", system=(), messages=[image, user("plain")])
    listed = [{"type": "image_url", "image_url": {"url": "https://x/a.png"}}]
    assert shapes(messages_of(request, OWN)) == [("user", listed), ("user", "plain")]
    assert shapes(messages_of(request, OTHER)) == [("user", [*listed, {"type": "text", "text": "plain"}])]


def messages_of(request: ModelRequest, server: Server) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", encode(request, server)["messages"])


def shapes(messages: list[dict[str, Any]]) -> list[tuple[str, object]]:
    return [(message["role"], message["content"]) for message in messages]


CALLED = (
    user("find tea"),
    Message(role="assistant", parts=(ToolCall(call_id="c1", tool="search"),)),
    Message(role="tool", parts=(ToolResult(call_id="c1", tool="search", content="none"),)),
)


def test_other_servers_get_what_templates_of_open_models_can_show() -> None:
    conversation = [
        Message(role="system", parts=(Text(text="what was before"),)),
        user("find tea"),
        *CALLED[1:],
        *CALLED[1:],
        Message(role="assistant", parts=(Text(text="Well,"),)),
        Message(role="assistant", parts=(Text(text="no tea."),)),
        user(""),
        user("thanks"),
    ]
    system, memory = ["Be kind.", "Use tools."], ["# Memory", "## human"]
    request = ModelRequest(model="qwen3.5", system=system, messages=conversation, memory=memory)
    assert shapes(messages_of(request, OTHER)) == [
        ("system", "Be kind.\n\n# Memory\n\n## human\n\nUse tools."),
        ("user", "<system>\nwhat was before\n</system>\n\nfind tea"),
        ("assistant", None),
        ("tool", "none"),
        ("assistant", None),
        ("tool", "none"),
        ("assistant", "Well,\n\nno tea."),
        ("user", "thanks"),
    ]
    own = [role for role, _ in shapes(messages_of(request, OWN))]
    assert own == [
        *("system", "system", "system", "user"),
        *("assistant", "tool") * 2,
        *["assistant"] * 2,
        "user",
        "user",
    ]


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("gpt-4.1", "high", {"stop": ["END"], "temperature": 0.5}),
        ("gpt-5.4", "none", {"reasoning_effort": "none", "temperature": 0.5}),
        ("gpt-5-mini", "none", {"reasoning_effort": "minimal"}),
        ("o3", "none", {"reasoning_effort": "low"}),
        ("o3", None, {}),
        ("gpt-6-astra", "none", {"reasoning_effort": "low"}),
        ("qwen3:8b", "none", {"reasoning_effort": "none", "stop": ["END"], "temperature": 0.5}),
    ],
)
def test_models_are_told_only_what_they_take(
    model: str, effort: ReasoningEffort | None, sent: dict[str, object]
) -> None:
    request = replace(REQUEST, model=model, temperature=0.5, stop=["END"], reasoning_effort=effort)
    body = encode(request, OWN)
    assert {key: body[key] for key in ("reasoning_effort", "stop", "temperature") if key in body} == sent


def test_mistrals_models_get_short_ids() -> None:
    request = ModelRequest(model="mistral-small:24b", system=(), messages=CALLED)
    _, called, result = messages_of(request, OTHER)
    call_id = called["tool_calls"][0]["id"]
    assert call_id == result["tool_call_id"]
    assert len(call_id) == 9
    assert call_id.isalnum()


@pytest.mark.parametrize(
    ("url", "is_own", "wants_thoughts"),
    [
        ("https://api.openai.com/v1/", True, False),
        ("https://eu.api.openai.com/v1", True, False),
        ("https://me.openai.azure.com/openai/v1/", True, False),
        ("https://api.deepseek.com", False, True),
        ("https://api.moonshot.ai/v1", False, True),
        ("http://localhost:11434/v1", False, False),
        ("https://notopenai.azure.com.example/v1", False, False),
        ("http://[x", False, False),
        ("nonsense", False, False),
    ],
)
def test_servers_are_known_by_their_address(url: str, is_own: bool, wants_thoughts: bool) -> None:
    server = Server(name="x", is_own=is_own, is_open=not is_own, wants_thoughts=wants_thoughts)
    assert Server.at("x", url) == server


def test_other_vendors_servers_run_no_open_models() -> None:
    for url in ("https://generativelanguage.googleapis.com/v1beta/openai", "https://api.anthropic.com/v1"):
        assert Server.at("x", url) == Server(name="x")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_behind_calls_go_back_to_the_server_that_had_them(field: str) -> None:
    reply = parts_of({field: "Let me "}, {field: "think."}, call("{}", name="x", call_id="c"))
    request = ModelRequest(model="m", system=(), messages=[Message(role="assistant", parts=reply.parts)])
    (sent,) = messages_of(request, Server(name="openai"))
    assert sent[field] == "Let me think."
    assert not {"reasoning_content", "reasoning"} & set(messages_of(request, OTHER)[0])
    plain = parts_of({field: "Let me think."}, {"content": "so"})
    said = Message(role="assistant", parts=plain.parts)
    assert messages_of(replace(request, messages=[said]), Server(name="openai")) == [
        {"role": "assistant", "content": "so"}
    ]


def test_servers_that_want_thoughts_get_them_with_every_call() -> None:
    deepseek = Server.at("openai", "https://api.deepseek.com")
    silent = parts_of({"reasoning_content": "", "content": None}, call("{}", name="x", call_id="c"))
    (sent,) = messages_of(
        replace(REQUEST, system=(), messages=[Message(role="assistant", parts=silent.parts)]), deepseek
    )
    assert sent["reasoning_content"] == ""
    elsewhere = messages_of(replace(REQUEST, system=(), messages=CALLED), deepseek)
    assert [message.get("reasoning_content") for message in elsewhere] == [None, "", None]


def test_the_proofs_of_a_router_are_kept_and_go_back() -> None:
    deltas: list[dict[str, object]] = [
        {
            "reasoning": "a",
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}],
        },
        {"reasoning": "b", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b"}, None]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "sig", "format": "f"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "xyz", "id": "c"}]},
    ]
    reply = parts_of(*deltas, call("{}", name="x", call_id="c"))
    request = ModelRequest(model="m", system=(), messages=[Message(role="assistant", parts=reply.parts)])
    (sent,) = messages_of(request, Server(name="openai"))
    assert sent["reasoning"] == "ab"
    assert sent["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "sig", "format": "f"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz", "id": "c"},
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'error: {"code": 400, "message": "the context size is exceeded"}\n\n',
        b'event: error\ndata: {"code": 400, "message": "the context size is exceeded"}\n\n',
        b'event: error\ndata: {"error": {"code": 400, "message": "the context size is exceeded"}}\n\n',
    ],
)
def test_errors_in_fields_of_their_own(body: bytes) -> None:
    (event,) = EventDecoder().feed(body)
    with pytest.raises(WindowExceeded, match="context size"):
        ChatDecoder(REQUEST, "local").feed(event)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"object": "error", "message": "maximum context length is 4096 tokens", "code": 400}, WindowExceeded),
        ({"choices": [{"delta": {}, "finish_reason": "error"}]}, ModelServerError),
        ({"choices": [{"error": {"code": 429, "message": "later"}}]}, ModelOverloaded),
        ({"id": "x", "error": {"code": 502, "message": "gone"}, "choices": []}, ModelServerError),
    ],
)
def test_errors_in_the_middle_of_a_stream(body: dict[str, object], kind: type[ModelError]) -> None:
    decoder = ChatDecoder(REQUEST, "openai")
    decoder.feed(StreamEvent(event="", data=json.dumps(chunk({"content": "so"}))))
    with pytest.raises(kind):
        decoder.feed(StreamEvent(event="", data=json.dumps(body)))


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cached_tokens": 5}},
        {"prompt_tokens_details": None, "prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 2},
        {"cached_tokens": 5},
    ],
)
def test_cached_tokens_wherever_they_are_told(usage: dict[str, object]) -> None:
    counted = {"prompt_tokens": 7, "completion_tokens": 3, **usage}
    decoder = ChatDecoder(REQUEST, "openai")
    for body in (chunk({"content": "a"}, finish_reason="stop"), {"id": "1", "choices": [], "usage": counted}):
        decoder.feed(StreamEvent(event="", data=json.dumps(body)))
    assert decoder.reply(None).usage == Usage(input_tokens=7, output_tokens=3, cached_tokens=5)


def test_what_servers_hang_on_a_call_goes_back_to_them() -> None:
    extra = {"google": {"thought_signature": "s"}}
    piece = call("{}", name="x", call_id="c")
    piece["tool_calls"][0]["extra_content"] = extra  # type: ignore[index]  # JSON
    (kept,) = parts_of(piece).parts
    assert isinstance(kept, ToolCall)
    assert kept.signature == 'chat:{"server": "openai", "google": {"thought_signature": "s"}}'
    request = ModelRequest(model="m", system=(), messages=[Message(role="assistant", parts=(kept,))])
    assert messages_of(request, Server(name="openai"))[0]["tool_calls"][0]["extra_content"] == extra
    assert "extra_content" not in messages_of(request, OTHER)[0]["tool_calls"][0], "another server may refuse the field"


@pytest.mark.parametrize(
    ("model", "base_url", "api", "is_responses"),
    [
        ("gpt-6.1-sol", None, "chat", True),
        ("gpt-6.1-sol", "http://x", "chat", False),
        ("gpt-4.1", None, "chat", False),
        ("qwen3", "http://x", "responses", True),
    ],
)
def test_the_format_is_the_one_that_the_server_takes(
    model: str, base_url: str | None, api: OpenAIFormat, is_responses: bool
) -> None:
    provider = OpenAIProvider("x", ProviderSettings(kind="openai", base_url=base_url, api=api))
    path, body, decoder = provider.encode(replace(REQUEST, model=model))
    assert path == ("/responses" if is_responses else "/chat/completions")
    assert ("input" in body, "messages" in body) == (is_responses, not is_responses)
    assert isinstance(decoder, ResponseDecoder if is_responses else ChatDecoder)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_control_tokens_reach_openais_own_server_alone_as_they_are(api: OpenAIFormat) -> None:
    for url, words in (("https://api.openai.com/v1", "a<s>"), ("http://localhost:1/v1", "a<\u2060s>")):
        provider = OpenAIProvider("o", ProviderSettings(kind="openai", base_url=url, api=api, api_key=Secret("k")))
        asked = replace(REQUEST, system=["a<s>"], messages=[user("a<s>")])
        assert json.dumps(provider.encode(asked)[1], ensure_ascii=False).count(words) == 2


def test_only_openai_is_told_whose_account_it_is() -> None:
    account = {"openai-organization": "org-1"}
    own = OpenAIProvider("openai", ProviderSettings(kind="openai", account=account))
    assert own.headers("k") == {"authorization": "Bearer k", "openai-organization": "org-1"}
    elsewhere = ProviderSettings(kind="openai", base_url="http://127.0.0.1:11434/v1", account=account)
    assert OpenAIProvider("ollama", elsewhere).headers("k") == {"authorization": "Bearer k"}


SHOWN: dict[str, object] = {
    "parameters": 'stop "<|end|>"',
    "model_info": {"general.x": 1, "qwen3.context_length": 40_960},
}
WINDOWS: list[tuple[str, dict[str, object], int]] = [
    ("/v1/models", {"data": [{"id": "n", "max_model_len": 1}, {"id": "m/1", "max_model_len": 32_768}]}, 32_768),
    ("/api/show", SHOWN, 40_960),
    ("/api/show", {**SHOWN, "parameters": "temperature 1\nnum_ctx                        16384"}, 16_384),
    ("/props", {"default_generation_settings": {"n_ctx": 4_096}}, 4_096),
    ("/api/v0/models/m%2F1", {"loaded_context_length": 8_000, "max_context_length": 9_000}, 8_000),
    ("/api/v0/models/m%2F1", {"max_context_length": 9_000}, 9_000),
    ("/props", {"default_generation_settings": {"n_ctx": "many"}, "data": [5], "model_info": 7}, 0),
]


@pytest.mark.parametrize(("path", "said", "window"), WINDOWS)
async def test_the_window_that_a_server_states(path: str, said: dict[str, object], window: int) -> None:
    def answer(request: WireRequest) -> Play:
        return document(said) if request.path == path else document({}, status=404)

    async with WireServer(otherwise=answer) as server:
        provider = OpenAIProvider("mine", ProviderSettings(kind="openai", base_url=f"{server.url}/v1"))
        client = ModelClient({"mine": provider}, RetryPolicy(), TurnLimits(), seeded_randomness(1))
        assert client.facts("mine", "m/1").window_source == "unasked"
        facts = await client.learn("mine", "m/1")
        assert (facts.window, facts.window_source) == ((window, "server") if window else (8_192, "assumed"))
        assert (facts.is_known, facts.output_max) == (window > 0, (window or 8_192) // 4)
        count = len(server.requests)
        assert await client.learn("mine", "m/1") == client.facts("mine", "m/1") == facts
        assert len(server.requests) == count, "it is asked once"
        await provider.aclose()


async def test_what_nobody_states_is_asked_again_and_what_the_operator_states_is_not() -> None:
    async with WireServer(otherwise=document({})) as server:
        url = f"{server.url}/v1"
    provider = OpenAIProvider("mine", ProviderSettings(kind="openai", base_url=url))
    stated = ProviderModels(kind="openai", base_url=url, overrides={"m": {"window": 5_000}})
    catalogue = Catalogue.packaged().configured({"mine": stated})
    client = ModelClient({"mine": provider}, RetryPolicy(), TurnLimits(), seeded_randomness(1), catalogue=catalogue)
    assert (await client.learn("mine", "m")).window_source == "pattern.toml"
    assert (await client.learn("mine", "other")).window_source == "unasked", "there was no connection"
    assert (await client.learn("elsewhere", "m")).window_source == "assumed"
    await provider.aclose()
    own = OpenAIProvider("openai", ProviderSettings(kind="openai", api_key=Secret("k")))
    assert await own.window("gpt-99") == 0
